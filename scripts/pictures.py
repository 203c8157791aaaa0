"""Photograph what people look at: the page of an incident, the page of goodput and the map of stragglers.

    python scripts/pictures.py [FOLDER]        # default: docs/images; needs Chromium and matplotlib with Pillow

The job is simulated: journals of 8 nodes over two days, and the evidence of a hang, both as tests have them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from PIL import Image  # noqa: E402

from holdfast.incidents.report.page import page  # noqa: E402
from tests.incidents.cases_for_reports import judged  # noqa: E402
from tests.views.simulated_job import DAY, write_journals  # noqa: E402

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH = 1000
"""Pixels, of pages."""


def holdfast(place: str, *words: str | Path) -> None:
    command = [sys.executable, "-m", "holdfast", *words]
    subprocess.run(command, check=True, cwd=place, stdout=subprocess.DEVNULL)


def shrink(path: Path) -> None:
    """128 colours are enough for text and bars, and take a third of the bytes."""
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)


def photograph(source: Path, target: Path, height: int) -> None:
    """The first `height` pixels of a page."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"pictures: none of these is installed: {', '.join(BROWSERS)}")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--screenshot={target}"]
    window = f"--window-size={WIDTH},{height}"
    subprocess.run([browser, *options, window, source.as_uri()], check=True, capture_output=True)
    shrink(target)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        html, plot = Path(place, "page.html"), (folder / "stragglers.png").resolve()
        write_journals(Path(place, "runs", "a"), 8, 2 * DAY, 5)
        holdfast(place, "goodput", "runs/a", "--html", html)
        html.write_text(html.read_text(encoding="utf-8").replace(place, "/home/me"), encoding="utf-8")
        photograph(html, folder / "goodput.png", 1060)
        holdfast(place, "stragglers", "runs/a", "--plot", plot)
        shrink(plot)
        html.write_text(page(*judged("data_loader"), number=3), encoding="utf-8")
        photograph(html, folder / "incident.png", 1180)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
