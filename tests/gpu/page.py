"""What ran on a GPU, where and when: from docs/gpu.json into docs/gpu.md, README.md and the default of warm start.

    python -m tests.gpu.page [GPU_JSON]      take this file as the new docs/gpu.json, if given, and write all three

A change of the code of warm start takes its fingerprint, and with it the default, back: run the command again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.marks import filled

from .check import FAILED, NOT_POSSIBLE, NOT_REACHED, PASSED, ROOT

JSON = ROOT / "docs" / "gpu.json"
PAGES = (ROOT / "docs" / "gpu.md", ROOT / "README.md")
EVIDENCE = ROOT / "src" / "holdfast" / "fault_tolerance" / "launcher" / "warm" / "gpu_evidence.py"
MARKS = "<!-- gpu -->", "<!-- end of gpu -->"
NEEDED = ("Restart", "Warm start is safe")
SIGNS = {PASSED: "✓", FAILED: "✗ failed", NOT_REACHED: "– not reached", NOT_POSSIBLE: "– not possible here"}


def fingerprint() -> str:
    """Of the code that starts ranks warm."""
    launcher = EVIDENCE.parents[1]
    files = sorted([*EVIDENCE.parent.rglob("*.py"), *(launcher / "ranks" / "prologue").glob("*.py")])
    digest = hashlib.sha256()
    for path in files:
        if path != EVIDENCE:
            digest.update(str(path.relative_to(launcher)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def machine(result: Mapping[str, Any]) -> str:
    """Where and when, in words."""
    return (
        f"{result['gpu']}, driver {result['driver']}, torch {result['torch']} (CUDA {result['cuda']}), "
        f"Python {result['python']}, {result['day']}, commit {result['holdfast']}"
    )


def passed(result: Mapping[str, Any] | None) -> str:
    """Where warm start has passed, for the code that there is now ('' if it has not)."""
    if result is None or result["warm_start"] != fingerprint():
        return ""
    needed = [row["result"] for row in result["rows"] if row["check"] in NEEDED]
    every = {row["check"] for row in result["rows"]}.issuperset(NEEDED)
    return machine(result) if every and all(each == PASSED for each in needed) else ""


def table(result: Mapping[str, Any]) -> str:
    """As Markdown."""
    lines = [f"{machine(result)}; {result['cores']} cores, {result['seconds']} s in all.", ""]
    lines += [f"- {note}" for note in result["notes"]] + [""] * bool(result["notes"])
    lines += ["| check | what | result | figures |", "|---|---|---|---|"]
    for row in result["rows"]:
        lines.append(f"| {row['check']} | {row['name']} | {SIGNS[row['result']]} | {_cell(row)} |")
    return "\n".join(lines)


def line(row: Mapping[str, Any]) -> str:
    """One row for a terminal."""
    return f"{SIGNS[row['result']]:12} {row['check']}: {row['name']}  {_cell(row)}".rstrip()


def _cell(row: Mapping[str, Any]) -> str:
    figures = [f"{name.replace('_', ' ')} {_number(value)}" for name, value in row["figures"].items()]
    return "; ".join(filter(None, [*figures, row["said"]])).replace("|", "/").replace("\n", " ")


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def readme(result: Mapping[str, Any] | None) -> str:
    """Items of the list of what was never run."""
    if result is None:
        return (
            "- any GPU: kernel timing with CUPTI and CUDA events, NVML, warm start with an NVIDIA driver "
            "([`make gpu`](docs/gpu.md) tries them in 8 minutes)"
        )
    rows = result["rows"]
    good = sum(row["result"] == PASSED for row in rows)
    return (
        f"- GPUs but one: {good} of {len(rows)} [GPU checks](docs/gpu.md) have passed on {machine(result)}; "
        f"warm start there is {'on' if passed(result) else 'off'} by default"
    )


def outputs() -> dict[Path, str]:
    """Every file that is written, with what must be in it."""
    result = json.loads(JSON.read_text()) if JSON.exists() else None
    texts = (table(result) if result else "It has not run on a GPU yet.", readme(result))
    found = {page: filled(page.read_text(), text, *MARKS) for page, text in zip(PAGES, texts, strict=True)}
    before, _, rest = EVIDENCE.read_text().partition("PASSED = ")
    found[EVIDENCE] = f"{before}PASSED = {json.dumps(passed(result))}\n{rest.partition(chr(10))[2]}"
    return found


def main(given: list[str]) -> None:
    if given:
        JSON.write_text(json.dumps(json.loads(Path(given[0]).read_text()), indent=1) + "\n")
    for path, text in outputs().items():
        if path.read_text() != text:
            path.write_text(text)
            print(f"{path.relative_to(ROOT)} is written")


if __name__ == "__main__":
    main(sys.argv[1:])
