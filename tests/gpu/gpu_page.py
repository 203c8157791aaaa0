"""Publish the result of `make gpu`: docs/gpu.md, README.md and the default of warm start, from docs/gpu.json.

    python -m tests.gpu.gpu_page [GPU_JSON]

GPU_JSON becomes the new docs/gpu.json; of a run of some checks only, on the same GPU, their rows take the place of the
former ones, and the page states it. A change of the code of warm start invalidates its result, and with it the
default: run the command again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.table import filled

from . import gpu_restart, gpu_warm_start
from .gpu_check import FAILED, NOT_POSSIBLE, NOT_REACHED, PASSED, ROOT

JSON = ROOT / "docs" / "gpu.json"
PAGE, README = ROOT / "docs" / "gpu.md", ROOT / "README.md"
EVIDENCE = ROOT / "src" / "holdfast" / "fault_tolerance" / "launcher" / "warm" / "gpu_evidence.py"
SAME = ("gpu", "driver", "torch", "cuda", "python", "warm_start")
"""What a run of some checks must have in common with the complete one."""
DOCSTRING = '"""GPU, driver'
MARKS = "<!-- gpu -->", "<!-- end of gpu -->"
NEEDED = {
    row for check in (*gpu_restart.CHECKS, *gpu_warm_start.CHECKS) for row in check.rows
} - gpu_restart.COMPARISONS
"""Rows that must have passed before warm start is on by default."""
SYMBOLS = {PASSED: "✓", FAILED: "✗ failed", NOT_REACHED: "– not reached", NOT_POSSIBLE: "– not possible here"}


def fingerprint() -> str:
    """Hash of the code that starts ranks warm."""
    launcher = EVIDENCE.parents[1]
    files = sorted([*EVIDENCE.parent.rglob("*.py"), *(launcher / "ranks" / "prologue").glob("*.py")])
    digest = hashlib.sha256()
    for path in files:
        if path != EVIDENCE:
            digest.update(str(path.relative_to(launcher)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def merged(former: Mapping[str, Any] | None, again: Mapping[str, Any]) -> dict[str, Any]:
    """A complete result with the rows of checks that ran again.

    Raises:
        ValueError: There is no complete result to complete, it is of another machine, or one of them is of a dry run.
    """
    if again["dry"]:
        raise ValueError("the result of a dry run is not published")
    if again["complete"]:
        return dict(again)
    if former is None:
        raise ValueError("a part of the checks is published only after a complete run")
    if differ := [name for name in SAME if former[name] != again[name]]:
        raise ValueError(f"the complete run in {JSON.name} had another {', '.join(differ)}")
    order = list(dict.fromkeys(row["check"] for row in (*former["rows"], *again["rows"])))
    checks = list(dict.fromkeys(row["check"] for row in again["rows"]))
    rows = [row for row in former["rows"] if row["check"] not in checks] + list(again["rows"])
    rows.sort(key=lambda row: order.index(row["check"]))
    later = {"checks": checks, "day": again["day"], "commit": again["commit"]}
    return {**former, "rows": rows, "again": [*former.get("again", []), later]}


def describe_machine(result: Mapping[str, Any]) -> str:
    return (
        f"{result['gpu']}, driver {result['driver']}, torch {result['torch']} (CUDA {result['cuda']}), "
        f"Python {result['python']}, {result['day']}, commit {result['commit']}"
    )


def warm_start_evidence(result: Mapping[str, Any] | None) -> str:
    """Where warm start has passed for the present code, or ''."""
    if result is None or result["dry"] or result["warm_start"] != fingerprint():
        return ""
    passed = {row["name"] for row in result["rows"] if row["result"] == PASSED}
    return describe_machine(result) if passed >= NEEDED else ""


def format_table(result: Mapping[str, Any]) -> str:
    """Markdown."""
    lines = [f"{describe_machine(result)}; {result['cores']} cores, {result['seconds']} s in total.", ""]
    notes = list(result["notes"])
    for later in result.get("again", []):
        notes.append(
            f"Run again on {later['day']} at commit {later['commit']}: {', '.join(later['checks'])}."
        )
    lines += [f"- {note}" for note in notes] + [""] * bool(notes)
    lines += ["| check | | result | figures |", "|---|---|---|---|"]
    for row in result["rows"]:
        cells = (row["check"], row["name"], SYMBOLS[row["result"]], _format_figures(row))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def format_line(row: Mapping[str, Any]) -> str:
    """One row for a terminal."""
    return f"{SYMBOLS[row['result']]:10} {row['check']}: {row['name']}  {_format_figures(row)}".rstrip()


def _format_figures(row: Mapping[str, Any]) -> str:
    figures = [f"{name.replace('_', ' ')} {_format(value)}" for name, value in row["figures"].items()]
    return "; ".join(filter(None, [*figures, row["reason"]])).replace("|", "/").replace("\n", " ")


def _format(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def format_readme(result: Mapping[str, Any] | None) -> str:
    """An item of the README's list of what was never run."""
    if result is None:
        return (
            "- any GPU: kernel timing with CUPTI and CUDA events, NVML, warm start with an NVIDIA driver "
            "([`make gpu`](docs/gpu.md) tests them in 8 minutes)"
        )
    counts = Counter(row["result"] for row in result["rows"])
    default = "on" if warm_start_evidence(result) else "off"
    rest = "".join(f", {counts[each]} {each}" for each in SYMBOLS if each != PASSED and counts[each])
    if again := sorted({check for later in result.get("again", []) for check in later["checks"]}):
        rest = f" ({', '.join(again)} when it was repeated){rest}"
    return (
        f"- more than one GPU; on one, {counts[PASSED]} of {len(result['rows'])} [GPU checks](docs/gpu.md) "
        f"passed{rest}: {describe_machine(result)}; with an NVIDIA driver warm start is {default} by default"
    )


def _wrapped(text: str) -> str:
    """A literal of at most two lines."""
    if len(text) < 100:
        return json.dumps(text)
    cut = text.rindex(", ", 0, 100) + 2
    return f"(\n    {json.dumps(text[:cut])}\n    {json.dumps(text[cut:])}\n)"


def outputs() -> dict[Path, str]:
    """Each published file with its text."""
    result = json.loads(JSON.read_text()) if JSON.exists() else None
    table = format_table(result) if result else "`make gpu` has not run on a GPU yet."
    before, _, rest = EVIDENCE.read_text().partition("PASSED = ")
    return {
        PAGE: filled(PAGE.read_text(), table, *MARKS),
        README: filled(README.read_text(), format_readme(result), *MARKS),
        EVIDENCE: f"{before}PASSED = {_wrapped(warm_start_evidence(result))}\n{rest[rest.index(DOCSTRING) :]}",
    }


def main(given: list[str]) -> int:
    if given:
        former = json.loads(JSON.read_text()) if JSON.exists() else None
        try:
            result = merged(former, json.loads(Path(given[0]).read_text()))
        except ValueError as error:
            print(f"{given[0]}: {error}.", file=sys.stderr)
            return 2
        JSON.write_text(json.dumps(result, indent=1) + "\n")
    for path, text in outputs().items():
        if path.read_text() != text:
            path.write_text(text)
            print(f"{path.relative_to(ROOT)} written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
