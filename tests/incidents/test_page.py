"""The page of an incident: in itself, and in a real browser."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.incidents import judge
from holdfast.incidents.evidence import BoardFacts, Case, RingEvent
from holdfast.incidents.report.page import GROUPS, SHADES, WINDOW, bars, page
from holdfast.incidents.verdict import Activity, Judgement, Kind
from tests.incidents.cases_for_reports import NAMES, hang, judged, large, reading
from tests.incidents.evidence_strategies import ANY_CASES, ANY_JUDGEMENTS
from tests.processes import wait_until

EXAMPLES: dict[str, Callable[[], tuple[Case, Judgement]]] = {
    **{name: functools.partial(judged, name) for name in NAMES},
    "1": lambda: hang(1, 0),
    "8": hang,
    "64": lambda: hang(64),
    "16384": large,
}

VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Tags that are balanced, and what a page loads or runs."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.loads += [
            f"{name}={value}" for name, value in attrs if name in ("src", "href") or name.startswith("on")
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


@pytest.mark.parametrize("name", EXAMPLES)
def test_page_loads_nothing_from_elsewhere(name: str) -> None:
    html = page(*EXAMPLES[name](), number=3)
    reader = read(html)
    assert reader.loads == []
    assert not reader.seen & {"script", "link", "img", "iframe", "object", "form"}
    assert "url(" not in html and "http://" not in html and "https://" not in html
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html
    assert len(html) < 1_500_000


def test_page_texts_of_ranks_are_escaped() -> None:
    html = page(*hang())
    assert "<script" not in html
    assert "UserWarning: <script>alert('x')</script> \\x1b[31mred" in read(html).text


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(ANY_CASES, ANY_JUDGEMENTS, st.booleans())
def test_page_of_any_evidence_is_whole(case: Case, judgement: Judgement, by_rules: bool) -> None:
    assert read(page(case, judge(case) if by_rules else judgement)).loads == []


def shades(html: str) -> dict[int, str]:
    """The shade of each rank's square, by its text."""
    texts = {meaning: shade for shade, meaning in SHADES.items()}
    found = re.findall(r"<title>rank (\d+): ([^<]+?)(?:, node [^<]*)?</title>", html)
    return {int(rank): texts[meaning] for rank, meaning in found if meaning in texts}


def test_page_shade_follows_the_activity() -> None:
    found = shades(page(*judged("two_nodes")))
    assert list(found) == list(range(12))
    assert (found[5], found[0], found[11]) == ("culprit", "waits", "nodata")
    assert shades(page(*judged("exception"))) == {0: "failed", 1: "culprit", 2: "waits", 3: "waits"}


@pytest.mark.parametrize("kind", Kind)
def test_page_every_activity_has_a_shade(kind: str) -> None:
    case, judgement = hang(2, 1)
    html = page(case, replace(judgement, activities=(Activity(0, kind, "x"),)))
    assert shades(html)[0] in set(SHADES) - {"culprit", "nodata"}


def test_page_stacks_have_a_line_for_each_call() -> None:
    case, judgement = hang()
    text = read(page(case, judgement)).text
    for frame in case.ranks[5].stacks[0].frames:
        assert f"\n{frame.function}  {frame.file}:{frame.line}\n" in f"\n{text}"


def test_page_legend_has_what_the_squares_show() -> None:
    text = read(page(*large())).text
    assert "All 16384 ranks" in text
    assert "16383 waiting for other ranks ranks 0-9000, 9002-16383" in text
    assert f"{GROUPS} of 16384 ranks: the culprit and its neighbours." in text


def test_page_lanes_are_of_the_culprit_and_its_neighbours() -> None:
    lanes = re.findall(
        r'<text class="lane( culprit)?"[^>]*>(?:▸ )?rank (\d+)</text>', page(*large(1024, 500))
    )
    assert len(lanes) == GROUPS
    assert lanes[:3] == [(" culprit", "500"), ("", "468"), ("", "469")]
    assert lanes[-1] == ("", "531")


def test_bars_lie_within_the_window() -> None:
    events = (
        RingEvent("end", 55.0, "before"),
        RingEvent("start", 50.0, "outer"),
        RingEvent("start", 49.0, "inner"),
        RingEvent("end", 48.0, "inner"),
        RingEvent("end", 47.0, "outer"),
        RingEvent("step", 46.0, value=3),
    )
    found = bars(BoardFacts(connected=True, events=events))
    assert [(bar.name, bar.begun, bar.ended, bar.depth) for bar in found] == [
        ("before", 55.0, 55.0, 0),
        ("inner", 49.0, 48.0, 1),
        ("outer", 50.0, 47.0, 0),
    ]
    board = reading().board
    assert board is not None
    (still,) = [bar for bar in bars(board) if bar.is_open]
    assert (still.name, still.begun, still.ended) == ("data_loading", 31.2, 0.0)
    assert all(0 <= bar.ended <= bar.begun <= WINDOW for bar in bars(board))


# --- in a browser


def chromium() -> str:
    found = shutil.which("chromium")
    if not found:
        pytest.skip("no chromium: scripts/test-requirements installs it where it can")
    return found


def browse(tmp_path: Path, html: str, *options: str) -> str:
    """What one run of the browser prints; its profile is in a folder with a short name, since sockets are in it."""
    file = tmp_path / "incident.html"
    file.write_text(html)
    fixed = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    fixed += ["--no-first-run", "--disable-background-networking", "--disable-breakpad"]
    home = tempfile.mkdtemp(prefix="hf-", dir="/tmp")
    environment = {"HOME": home, "TMPDIR": home, "XDG_RUNTIME_DIR": home, "PATH": os.environ["PATH"]}
    command = [chromium(), *fixed, f"--user-data-dir={home}/p", *options, file.as_uri()]
    browser = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        told, errors = browser.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(browser.pid, signal.SIGKILL)  # helpers outlive it for a moment
        browser.wait()
        wait_until(lambda: removed(home), what=f"{home} is removed")
    assert browser.returncode == 0, errors[-2000:]
    return told


def removed(folder: str) -> bool:
    """What still ends may still write there."""
    shutil.rmtree(folder, ignore_errors=True)
    return not os.path.exists(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1", "16384"])
def test_a_browser_lays_it_out_and_runs_no_script(tmp_path: Path, name: str) -> None:
    html = page(*EXAMPLES[name]())
    said = browse(
        tmp_path, html.replace("</main>", "<script>document.title='ran'</script></main>"), "--dump-dom"
    )
    assert "<title>HANG: rank" in said
    measured = html.replace(
        re.findall(r'<meta http-equiv="Content-Security-Policy"[^>]*>', html)[0], ""
    ).replace(
        "</main>",
        "<script>document.title = document.documentElement.scrollWidth + ' of ' + innerWidth</script></main>",
    )
    for width in (520, 1300):
        told = browse(tmp_path, measured, f"--window-size={width},900", "--dump-dom")
        found = re.search(r"<title>(\d+) of (\d+)</title>", told)
        assert found and int(found[1]) <= int(found[2]), found
