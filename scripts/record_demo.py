"""Record the second run and the summary of `make demo` as a terminal in an SVG.

    python scripts/record_demo.py [LOG]        # writes docs/demo.svg; LOG: saved output in place of a new run

Tracebacks of ranks are left out, and long lines are cut. Nothing else of the output is changed, but paths.
"""

from __future__ import annotations

import re
import subprocess
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, LINE_HEIGHT, MARGIN = 132, 18, 16
COLOURS = (
    ("[holdfast]", "#79c0ff"),
    ("$ ", "#d2a8ff"),
    ("== ", "#ffffff"),
    ("[holdfast.testing]", "#ffa657"),
)
PLAIN = "#c9d1d9"


def record() -> str:
    """The output of a run of the demo, both streams in their order."""
    command = [sys.executable, str(ROOT / "examples" / "demo.py")]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    return run.stdout


def select_lines(output: str) -> list[str]:
    """What the drawing shows of the output."""
    text = output[output.index("== 2.") :].replace(f"{ROOT}/", "")
    text = re.sub(r"/\S*/holdfast-demo-\w+", "$DIR", text)
    lines = [line.rstrip() for line in text.splitlines() if not re.match(r"\[rank\d+\]:", line)]
    return [line if len(line) <= COLUMNS else f"{line[: COLUMNS - 1]}…" for line in lines]


def draw(lines: list[str]) -> str:
    """The lines as an SVG with a dark background of its own."""
    width, height = 2 * MARGIN + round(COLUMNS * 7.83), 2 * MARGIN + LINE_HEIGHT * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        ' aria-label="A terminal with make demo" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace"'
        f' font-size="13"><rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>'
    ]
    for number, line in enumerate(lines, start=1):
        colour = next((colour for start, colour in COLOURS if line.startswith(start)), PLAIN)
        place = f'x="{MARGIN}" y="{MARGIN + LINE_HEIGHT * number - 5}" fill="{colour}"'
        parts.append(
            f"<text {place}>{escape(line).replace(' ', chr(0xA0))}</text>"
        )  # SVG joins ordinary spaces
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    output = Path(sys.argv[1]).read_text(encoding="utf-8") if len(sys.argv) > 1 else record()
    (ROOT / "docs" / "demo.svg").write_text(draw(select_lines(output)), encoding="utf-8")
