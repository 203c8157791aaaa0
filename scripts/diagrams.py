"""Draw the diagrams of docs/how-it-works.md and the README.

    python scripts/diagrams.py [FOLDER]        # default: docs

Each SVG has a light background of its own, so it is readable on light and dark pages, and needs no font file.
The times in how-hang.svg are from docs/benchmarks.md; change them here when that page changes.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

INK, LINE, BLUE, RED, GREEN, GREY = "#1f2933", "#52606d", "#dbeafe", "#fde2e1", "#dcf5e3", "#eef1f4"
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}"
 font-family="Helvetica, Arial, sans-serif" font-size="14" fill="{ink}">
<title>{title}</title>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
<path d="M0 0 L8 4 L0 8 z" fill="{line}"/></marker></defs>
<rect width="{width}" height="{height}" rx="8" fill="#ffffff" stroke="#cbd2d9"/>
"""


class Drawing:
    """Boxes, arrows and labels; every coordinate is in pixels from the upper left corner."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self._parts = [HEAD.format(title=escape(title), width=width, height=height, ink=INK, line=LINE)]

    def box(self, x: int, y: int, width: int, height: int, title: str, *lines: str, fill: str = BLUE) -> None:
        """A rounded rectangle with a bold title and one line of text for each of `lines`."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{LINE}"/>'
        )
        first = y + height / 2 - 9 * len(lines) + 5
        self.text(x + width / 2, first, title, anchor="middle", weight="bold")
        for number, line in enumerate(lines, start=1):
            self.text(x + width / 2, first + 18 * number, line, anchor="middle", size=13)

    def text(
        self, x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", size: int = 14
    ) -> None:
        """One line; `y` is its baseline."""
        style = f'text-anchor="{anchor}" font-weight="{weight}" font-size="{size}"'
        self._parts.append(f'<text x="{x:g}" y="{y:g}" {style}>{escape(text)}</text>')

    def arrow(self, *points: tuple[int, int], both: bool = False) -> None:
        """A line through the points with a tip at its end, and one at its start if `both`."""
        path = " ".join(f"{x},{y}" for x, y in points)
        start = ' marker-start="url(#tip)"' if both else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="1.5"{start} marker-end="url(#tip)"/>'
        )

    def __str__(self) -> str:
        return "\n".join([*self._parts, "</svg>"]) + "\n"


def processes() -> Drawing:
    """The processes of one node, and what passes between them."""
    drawing = Drawing("The processes of one node", 860, 400)
    drawing.box(30, 40, 220, 80, "ranks 0 … N-1", "your training", fill=GREEN)
    drawing.box(320, 40, 220, 80, "boards", "a memory page per rank", fill=GREY)
    drawing.box(610, 40, 220, 80, "monitor", "finds hangs, reads stacks")
    drawing.arrow((250, 80), (320, 80))
    drawing.text(285, 28, "heartbeats, sections, steps", anchor="middle", size=13)
    drawing.arrow((540, 80), (610, 80))
    drawing.box(320, 210, 220, 80, "launcher", "driver and node controller")
    drawing.arrow((720, 120), (720, 250), (540, 250))
    drawing.text(714, 180, "verdict", anchor="end", size=13)
    drawing.arrow((610, 104), (575, 104), (575, 150), (190, 150), (190, 120))
    drawing.text(380, 168, "terminates a hung rank", anchor="middle", size=13)
    drawing.arrow((320, 235), (90, 235), (90, 120))
    drawing.text(100, 226, "starts, stops, sweeps", size=13)
    drawing.box(30, 290, 220, 80, "zygote, standbys", "have imported torch already", fill=GREY)
    drawing.arrow((50, 290), (50, 120))
    drawing.text(58, 272, "forks become ranks", size=13)
    drawing.box(320, 330, 220, 50, "run directory", "journal, incidents", fill=GREY)
    drawing.arrow((430, 290), (430, 330))
    drawing.box(610, 310, 220, 70, "store (TCPStore)", "launchers of other nodes", fill=GREY)
    drawing.arrow((540, 270), (580, 270), (580, 345), (610, 345), both=True)
    return drawing


def hang() -> Drawing:
    """What happens when a rank stops, with times measured from its deadline."""
    drawing = Drawing("The life of a hang", 1000, 250)
    stages = [
        ("last heartbeat", ["rank 1 stops", "in its data loader"], "timeout earlier", GREEN),
        ("deadline passes", ["the monitor", "finds the rank"], "0 s", RED),
        ("evidence", ["stacks, collectives:", "who is the culprit?"], "", BLUE),
        ("culprit is killed", ["other ranks stop,", "leftovers are swept"], "0.06 s", RED),
        ("script runs again", ["standbys become", "the ranks"], "0.09 s", GREEN),
        ("report", ["culprit, reason,", "next step"], "afterwards", GREY),
    ]
    for number, (title, lines, moment, fill) in enumerate(stages):
        x = 20 + 163 * number
        drawing.box(x, 60, 145, 90, title, *lines, fill=fill)
        drawing.text(x + 72, 182, moment, anchor="middle", weight="bold")
        if number:
            drawing.arrow((x - 18, 105), (x, 105))
    drawing.text(20, 34, "A rank hangs: what Holdfast does, and when", weight="bold", size=16)
    note = "Seconds after the deadline, medians on 2 cores without a GPU: make bench ARGS=hang_detection"
    drawing.text(20, 226, note, size=13)
    return drawing


def controller() -> Drawing:
    """The phases of the node controller."""
    drawing = Drawing("The phases of the node controller", 900, 340)
    places = {
        "GATHER": (20, 50, "find the nodes", BLUE),
        "CONFIRM": (200, 50, "fresh rank store", BLUE),
        "START": (380, 50, "start the ranks", BLUE),
        "RUN": (560, 50, "training", GREEN),
        "DONE": (740, 50, "all ended with 0", GREEN),
        "STOP": (200, 210, "terminate, sweep", RED),
        "SETTLE": (380, 210, "evidence, cause", RED),
        "PREEMPT": (560, 210, "ranks save and exit", GREY),
        "LEAVE": (740, 210, "exit code", GREY),
    }
    for name, (x, y, line, fill) in places.items():
        drawing.box(x, y, 140, 70, name, line, fill=fill)
    for x in (160, 340, 520, 700):
        drawing.arrow((x, 85), (x + 40, 85))
    drawing.arrow((590, 120), (590, 165), (450, 165), (450, 210))
    drawing.text(520, 158, "a rank fails", anchor="middle", size=13)
    drawing.arrow((660, 120), (660, 210))
    drawing.text(666, 172, "signal", size=13)
    drawing.arrow((380, 245), (340, 245))
    drawing.arrow((200, 245), (90, 245), (90, 120))
    drawing.text(96, 172, "next cycle", size=13)
    drawing.arrow((810, 120), (810, 210))
    drawing.arrow((630, 280), (630, 300), (300, 300), (300, 280))
    drawing.arrow((240, 280), (240, 322), (810, 322), (810, 280))
    drawing.text(640, 316, "the job is over", size=13)
    return drawing


def main(folder: Path) -> None:
    for name, drawing in {"processes": processes(), "hang": hang(), "controller": controller()}.items():
        (folder / f"how-{name}.svg").write_text(str(drawing), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1] / "docs")
