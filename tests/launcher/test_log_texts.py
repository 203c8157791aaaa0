"""All that launcher, monitor and client log, against a golden file: a change of wording is a diff to read.

The blocks on hangs and failures are rendered; of all other lines the file has the format, as the source has it.
`python -m tests.launcher.test_log_texts` writes the golden file. Does not cover: texts of the controller, which
simulated jobs show (tests/simulation/log_texts.txt).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.fault_tolerance.launcher import console
from holdfast.fault_tolerance.launcher.exit_codes import RankExit
from holdfast.fault_tolerance.launcher.ranks.failures import Failure, block

GOLDEN = Path(__file__).with_name("log_texts.txt")
SOURCE = Path(console.__file__).parents[1]
LEVELS = {"debug", "info", "warning", "error", "log"}


def rank(number: int, **fields: Any) -> dict[str, Any]:
    """A rank in a verdict of the monitor."""
    return {
        "rank": number, "pid": 4000 + number, "cycle": 2, "where": "step", "finished": False, "connected": True,
        "heartbeats": True, "state": "S", "for": 31.0, "step": 4181, **fields,
    }  # fmt: skip


def verdict(**fields: Any) -> dict[str, Any]:
    """A verdict of the monitor on rank 1."""
    text = "Section 'data_loading' did not end. Waited 31.00 seconds."
    found = {"text": text, "limit": 30.0, "reason": "section", "where": "data_loading > read", "state": "D"}
    return rank(1, **{**found, **fields})


def ended(number: int, status: int, at: float, message: str = "", *lines: str) -> Failure:
    """A rank that failed, with the message of its ValueError if there is one."""
    found = RankExit(number, number, 4000 + number, status, at)
    kept = {
        "type": "ValueError",
        "message": message,
        "traceback": "Traceback:\n  in step",
        "pid": found.pid,
        "at": at,
    }
    return Failure(found, kept if message else None, lines)


def texts() -> str:
    """All blocks, each with its title."""
    others = [
        *(rank(each) for each in (0, 2, 3, 4, 5)),
        rank(6, where="", step=None, connected=False, heartbeats=0),
    ]
    crashed = [ended(3, 1, 5.0, "bad batch"), ended(0, -6, 5.25), ended(1, -9, 5.5)]
    blocks = {
        "hang": console.hang("gpu-7", verdict(others=others, wait_channel="nfs_wait", signal="SIGKILL")),
        "hang with a verdict": console.hang("gpu-7", verdict(sentence="Rank 1 is blocked.", confidence="high")),
        "hang before its deadline": console.hang("gpu-7", verdict(reason="early")),
        "past its timeout as well": [console.overdue("gpu-7", verdict())],
        "recovered": [console.recovered("gpu-7", verdict())],
        "failure before a restart": block(crashed, "gpu-7", 2, whole=False),
        "failure at the end": block(crashed, "gpu-7", 2, whole=True),
        "failure with stderr": block([ended(3, 3, 5.0, "", "loading", "no such file")], "gpu-7", 2, whole=True),
        "failure of many": block([ended(each, 1, 5.0 + each / 10) for each in range(12)], "gpu-7", 0, whole=False),
    }  # fmt: skip
    return "\n".join(
        f"== {title}\n" + "".join(f"{line}\n" for line in lines) for title, lines in blocks.items()
    )


def formats() -> str:
    """The format of each logger call of the package, by module. A value in it is `{}`, or as `logging` has it."""
    found = {
        path.relative_to(SOURCE).as_posix(): sorted(set(formats_of(path))) for path in SOURCE.rglob("*.py")
    }
    return "\n".join(
        f"== {name}\n" + "".join(f"{line}\n" for line in lines)
        for name, lines in sorted(found.items())
        if lines
    )


def formats_of(path: Path) -> Iterator[str]:
    """Those of one module. A text that a variable has is the text, or the texts, that the module assigns to it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    for call in (each for each in nodes if isinstance(each, ast.Call)):
        method = call.func
        if (
            not isinstance(method, ast.Attribute)
            or method.attr not in LEVELS
            or "log" not in ast.unparse(method.value)
        ):
            continue
        message = call.args[method.attr == "log"]
        if isinstance(message, ast.Name):
            assigned = (each for each in nodes if isinstance(each, ast.Assign))
            values = [each.value for each in assigned if ast.unparse(each.targets[0]) == message.id]
        else:
            values = [message]
        yield from filter(lambda text: text.strip("{}%s"), map(text_of, values))


def text_of(value: ast.expr) -> str:
    """A text of the source, with `{}` for what is not in it."""
    if isinstance(value, ast.JoinedStr):
        return "".join(map(text_of, value.values))
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else "{}"


def test_log_texts_are_the_golden_ones() -> None:
    assert f"{texts()}\n{formats()}" == GOLDEN.read_text()


if __name__ == "__main__":
    GOLDEN.write_text(f"{texts()}\n{formats()}")
