"""Writes the tables of docs/incident-reports.md from the docstrings of the evidence and the verdict.

    python -m tests.incidents.evidence_page

Does not cover: the text around the tables.
"""

from __future__ import annotations

import ast
import inspect
import re
import types
import typing
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.incidents import evidence, verdict

PAGE = Path(__file__).parents[2] / "docs" / "incident-reports.md"
BEGIN, END = "<!-- evidence -->", "<!-- end of evidence -->"
TITLES: dict[type, str] = {
    verdict.Verdict: "Verdict",
    verdict.Kind: "Kinds of verdicts and activities",
    verdict.Confidence: "Codes of `confidence`",
    evidence.NodeEvidence: "Node",
    evidence.NodeFault: "Fault",
    evidence.RankEvidence: "Rank",
    evidence.BoardFacts: "Board",
    evidence.OpenSection: "Section",
    evidence.RingEvent: "Event",
    evidence.Process: "Process",
    evidence.SystemCall: "System call",
    evidence.KernelThread: "Kernel thread",
    evidence.Child: "Child",
    evidence.Thread: "Thread",
    evidence.Frame: "Frame",
    evidence.Collective: "Collective",
    evidence.Exit: "Exit",
    evidence.Raised: "Exception",
    evidence.PassedLimit: "Passed limit",
    evidence.TriggerKind: "Codes of `trigger`",
    evidence.Missing: "Codes of `no_stacks` and `no_collectives`",
    evidence.StackSource: "Codes of `stacks_from`",
    evidence.Target: "Codes of a system call's `target`",
    evidence.Nature: "Codes of `nature` and `stderr`",
    evidence.NodeFaultKind: "Codes of a fault's `kind`",
}
PLAIN = {str: "text", int: "number", float: "number", bool: "true or false"}


def page(text: str) -> str:
    """`text` with the tables as they are today."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, "", *_evidence(), "", END]) + after


def _evidence() -> list[str]:
    lines: list[str] = []
    for kind, title in TITLES.items():
        doc = re.sub(r"\s+", " ", inspect.getdoc(kind) or "").replace("is None", "is null")
        meanings = _docstrings(inspect.getmodule(kind), kind.__name__)
        lines += [*([""] if lines else []), f"#### {title}", "", *re.split(r"(?<=\.) ", doc), ""]
        if issubclass(kind, Enum):
            codes = [
                (
                    f"`{each.value}`" if each.value else "empty",
                    getattr(each, "text", meanings.get(each.name, "")),
                )
                for each in kind
            ]
            lines += ["| code | |", "|---|---|", *(f"| {code} | {meaning} |" for code, meaning in codes)]
        elif is_dataclass(kind):
            hints = typing.get_type_hints(kind)
            lines += ["| field | type | |", "|---|---|---|"]
            lines += [
                f"| `{each.name}` | {_type(hints[each.name])} | {meanings.get(each.name, '')} |"
                for each in fields(kind)
            ]
    return lines


def _docstrings(module: ModuleType | None, name: str) -> dict[str, str]:
    """The text under each field of a class."""
    assert module is not None
    (body,) = [
        each.body
        for each in ast.parse(inspect.getsource(module)).body
        if isinstance(each, ast.ClassDef) and each.name == name
    ]
    found: dict[str, str] = {}
    before: list[str] = []
    for statement in body:
        if isinstance(statement, ast.AnnAssign):
            before = [ast.unparse(statement.target)]
        elif isinstance(statement, ast.Assign):
            before = [ast.unparse(target) for target in statement.targets]
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            text = re.sub(r"\s+", " ", str(statement.value.value)).strip().replace("``", "`")
            text = re.sub(r"\bNone\b", "null", text)
            found.update(dict.fromkeys(before, text.replace("|", ",")))
            before = []
        else:
            before = []
    return found


def _type(hint: Any) -> str:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return f"list of {_type(parts[0])}"
    if origin in (types.UnionType, typing.Union):
        return f"{_type(parts[0])} or null"
    if hint in PLAIN:
        return PLAIN[hint]
    anchor = re.sub(r"[^a-z0-9_ -]", "", TITLES[hint].lower()).replace(" ", "-")
    return f"[{'code' if issubclass(hint, Enum) else TITLES[hint].lower()}](#{anchor})"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
