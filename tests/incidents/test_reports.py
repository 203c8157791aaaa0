"""The report of an incident as text and as a page, and the documentation's examples of it."""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.incidents import evidence as E
from holdfast.incidents import judge
from holdfast.incidents.evidence import BoardFacts, Case, RingEvent
from holdfast.incidents.report.page import GROUPS, SHADES, WINDOW, bars, page
from holdfast.incidents.report.text import MOST, rejudged_lines, report_lines, same_stack, stack_lines
from holdfast.incidents.report.wording import clock, counted, grouped, rank_ranges
from holdfast.incidents.verdict import KINDS, LOW, Activity, Judgement, Kind, Strength, Verdict
from holdfast.visible import escaped
from scripts.reference import TITLES
from tests.incidents.cases_for_reports import (
    DOCS,
    EXAMPLES,
    FIXTURES,
    NAMES,
    PAGES,
    SITE,
    hang,
    judged,
    large,
    reading,
    with_examples,
)
from tests.incidents.evidence_strategies import ANY_CASES, ANY_JUDGEMENTS
from tests.pages import browse, read

FOLDER = "/runs/a/incidents/0003"


# -- the first lines -------------------------------------------------------------------------------------------


def test_report_other_ranks_with_the_same_activity_share_a_line() -> None:
    lines = report_lines(*large(), number=1, folder=FOLDER)
    assert len(lines) <= MOST
    (line,) = [line for line in lines if line.startswith("  16383 ranks (0-9000, 9002-16383): each waits in")]
    assert "all_reduce (sequence 8362)" in line and line.endswith(", step 4182")


def test_report_renders_the_judgement_and_decides_nothing() -> None:
    """Another judgement of the same evidence gives another report: text and verdict cannot contradict."""
    case, judgement = hang()
    verdict = Verdict(Kind.LOCK, "Rank 2 keeps a lock.", LOW, 2, "gpu-12")
    activities = [replace(each, kind=Kind.LOCK, text=f"waits {each.rank}") for each in judgement.activities]
    lines = report_lines(case, replace(judgement, verdict=verdict, activities=tuple(activities)))
    assert lines[0].startswith("HANG: rank 2 ") and ": waits 2. Next: find the owner of the lock" in lines[0]
    assert "  Verdict (confidence low): Rank 2 keeps a lock." in lines
    assert not any("waits in" in line for line in lines[: lines.index("  Evidence for rank 2:")])


@pytest.mark.parametrize(
    ("trigger", "kind", "word"),
    [
        (E.HANG, "lock", "HANG:"),
        (E.EARLY, "stopped", "HANG BEFORE ITS TIMEOUT:"),
        (E.DIAGNOSE, "data_loading", "DIAGNOSIS:"),
        (E.CRASH, "signal", "CRASH:"),
        (E.CRASH, "unknown", "FAILED:"),
        (E.CRASH, "exit", "EXIT:"),
        (E.CRASH, "missing_collective", "HANG:"),
        (E.HANG, "node_lost", "NODE LOST:"),
    ],
)
def test_report_first_word(trigger: str, kind: str, word: str) -> None:
    case, judgement = hang(2, 1)
    case = E.Case((replace(case.nodes[0], trigger=trigger),))
    judgement = replace(judgement, verdict=Verdict(kind, "x", LOW, 1))
    assert report_lines(case, judgement)[0].startswith(word)


def test_report_without_a_rank_has_the_meaning_of_the_kind() -> None:
    judgement = Judgement(Verdict(Kind.UNKNOWN, "No rank differs.", LOW))
    first, _, third, *_ = report_lines(E.Case((E.NodeEvidence("a", E.HANG),)), judgement)
    step = "run `holdfast diagnose PID` when it repeats"
    assert first == f"HANG: no single rank: {Kind.UNKNOWN.text}. Next: {step}"
    assert third == "  Verdict (confidence low): No rank differs."


# -- the next step ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("out_of_memory", ("Next step: Lower the memory use of rank 1", "the limit on node gpu-12")),
        ("old_rules", ("u/data.py:12 augment()", "not in all_reduce (sequence 6)")),
        ("exception", ("rank 0 ended as a result, 0.05 s before the snapshot: RuntimeError: [gloo]",)),
        ("two_nodes", ("1 of 3 nodes: no report received ", "collectives of rank 5: the helper thread did")),
    ],
)
def test_report_has_the_facts_of_the_incident(name: str, parts: tuple[str, ...]) -> None:
    text = " ".join("\n".join(report_lines(*judged(name), number=3, folder=FOLDER)).split())
    assert [part for part in parts if part not in text] == [], text
    assert text.count("raise ValueError") == (name == "exception"), "a traceback is shown once"


@pytest.mark.parametrize("place", ["train.py:8 step()", f"{'deep/' * 60}train.py:8 step()"])
def test_first_line_has_the_step_and_is_short(place: str) -> None:
    case, judgement = hang()
    activities = tuple(replace(each, place=place, text=f"is in {place}") for each in judgement.activities)
    for kind in KINDS:
        found = replace(judgement, verdict=replace(judgement.verdict, kind=kind), activities=activities)
        first = report_lines(case, found)[0]
        expected = r"[A-Z ]+: rank 5 \(node gpu-12\), since .*: is in .*\. Next: [a-z].{5,89}"
        assert len(first) <= 200 and re.fullmatch(expected, first), first


@pytest.mark.parametrize(
    ("number", "step"),
    [(signal.SIGXFSZ, "of rank 1 on node gpu-12: ulimit -f."), (15, "Find who sent the signal to rank 1")],
)
def test_next_step_of_a_signal_without_a_core_dump(number: int, step: str) -> None:
    case, _ = judged("segfault")
    ranks = [replace(rank, exit=rank.exit and E.Exit(-number, "killed", 0.1)) for rank in case.ranks]
    case = E.Case((replace(case.nodes[0], ranks=tuple(ranks), faults=()),))
    (line,) = [line for line in report_lines(case, judge(case)) if "Next step: " in line]
    assert step in line and "core" not in line


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        (E.NodeFaultKind.GPU, "drain node gpu-12"),
        (E.NodeFaultKind.HARDWARE, "drain node gpu-12"),
        (E.NodeFaultKind.GPU_BEFORE, "fix the error in "),
    ],
)
def test_next_step_drains_the_node_for_a_fault_of_this_job(kind: E.NodeFaultKind, step: str) -> None:
    """A count since the driver was loaded may be of an earlier job. It stays a fact of the node."""
    (node,) = judged("exception")[0].nodes
    case = E.Case((replace(node, node="gpu-12", faults=(E.NodeFault(kind, "3 errors"),)),))
    first, *lines = report_lines(case, judge(case))
    assert f". Next: {step}" in first
    assert any("3 errors" in line for line in lines[lines.index("  Facts of the nodes:") :])


# -- the sections ----------------------------------------------------------------------------------------------


def test_report_threads_of_libraries_are_not_shown() -> None:
    case, judgement = hang()
    title = "  Other threads in the program's own code:"
    assert title not in report_lines(case, judgement)
    saving = E.Thread("saver", (E.Frame("fsync", "/home/ada/train/save.py", 12),))
    ranks = list(case.ranks)
    ranks[5] = replace(ranks[5], stacks=(*ranks[5].stacks, saving))
    lines = report_lines(E.Case((replace(case.nodes[0], ranks=tuple(ranks)),)), judgement)
    assert lines[lines.index(title) + 1] == "    saver: train/save.py:12 fsync()"


def test_report_foot_names_the_incident() -> None:
    case, judgement = judged("dead_storage")
    *_, captured, _, _ = report_lines(case, judgement, number=3, folder=FOLDER)
    facts = "incident 0003, 2027-01-15 08:00:00 UTC, job pretrain, cycle 2"
    assert captured.endswith(f"before any process was terminated; {facts}")
    asked = E.Case(tuple(replace(node, trigger=E.DIAGNOSE) for node in case.nodes))
    *_, captured = report_lines(asked, judgement)
    assert "before any process" not in captured and captured.endswith("job pretrain, cycle 2")


def test_report_of_64_different_ranks_fits() -> None:
    case, _ = hang(64)
    node = case.nodes[0]
    ranks = tuple(
        replace(
            rank,
            stacks=(E.Thread("MainThread", (E.Frame("f", "/home/a.py", rank.rank),), main=True),),
            collectives=(E.Collective(rank.rank, "send", f"group {rank.rank}", state="started"),),
            no_collectives=list(E.Missing)[rank.rank % 13],
            notes=tuple(f"note {n}" for n in range(20)),
            exit=None if rank.rank < 32 else E.Exit(rank.rank),
        )
        for rank in node.ranks
    )
    case = E.Case((replace(node, ranks=ranks, notes=("fact",) * 50),))
    verdict = Verdict(Kind.DATA_LOADING, "x", LOW, 5, "gpu-12")
    lines = report_lines(case, replace(judge(case), verdict=verdict), folder=FOLDER)
    assert len(lines) == MOST
    assert any("more in incident.json" in line for line in lines)


@settings(suppress_health_check=list(HealthCheck))
@given(ANY_CASES, ANY_JUDGEMENTS, st.booleans())
@example(E.Case(), Judgement(Verdict(Kind.UNKNOWN, ""), (Activity(0, Kind.UNKNOWN),)), False)
def test_report_and_page_of_any_evidence_are_safe(case: E.Case, judgement: Judgement, by_rules: bool) -> None:
    judgement = judge(case) if by_rules else judgement
    lines = report_lines(case, judgement, number=1, folder=FOLDER)
    assert 0 < len(lines) <= MOST
    assert max(map(len, lines)) <= 200
    assert lines == [escaped(line) for line in lines]
    assert read(page(case, judgement)).loads == []


# -- judged again ----------------------------------------------------------------------------------------------


def test_rejudged_lines_name_what_changed() -> None:
    _, now = judged("dead_storage")
    same, *_ = rejudged_lines(now, now, number=3)
    assert same == "Incident 0003: same verdict"
    then = replace(now, verdict=replace(now.verdict, rank=0, confidence=LOW))
    changed, *rest = rejudged_lines(then, now)
    assert "culprit rank 0 (node gpu-12) -> rank 5 (node gpu-12)" in changed and "low -> high" in changed
    assert rest[0].startswith("  Then (uninterruptible, confidence low)")
    first, *others = now.activities
    moved = replace(now, activities=(replace(first, kind=Kind.LOCK), *others))
    assert rejudged_lines(moved, now)[-1] == "    rank 0: lock -> in_collective"


@given(ANY_JUDGEMENTS, ANY_JUDGEMENTS)
def test_rejudged_lines_are_safe(then: Judgement, now: Judgement) -> None:
    lines = rejudged_lines(then, now)
    assert max(map(len, lines)) <= 200
    assert lines == [escaped(line) for line in lines]


# -- facts in words: ranges of ranks, groups, codes, and which calls of a stack are shown ----------------------


SOME_RANKS = st.lists(st.integers(0, 300), min_size=1, max_size=120)


def test_grouped_63_ranks_with_the_same_calls_are_one_group() -> None:
    case, _ = hang(64)
    (_, alike), (_, alone) = grouped(case.ranks, same_stack)
    assert (len(alike), [rank.rank for rank in alone]) == (63, [5])
    assert counted([rank.rank for rank in alike]) == "63 ranks (0-4, 6-63)"


def test_counted_one_rank_has_no_range() -> None:
    assert (counted([5]), counted([7, 5, 6]), counted([])) == ("rank 5", "3 ranks (5-7)", "")
    assert rank_ranges(range(0, 40, 2), 3) == "0, 2, 4 and 17 more"


@given(SOME_RANKS, st.integers(1, 8))
def test_rank_ranges_count_every_rank_once(numbers: list[int], most: int) -> None:
    shown, _, rest = rank_ranges(numbers, most).partition(" and ")
    count = sum(int(part.split("-")[-1]) - int(part.split("-")[0]) + 1 for part in shown.split(", "))
    assert count + int(rest.split()[0] if rest else 0) == len(set(numbers))


@pytest.mark.parametrize("at", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_clock_of_an_impossible_moment_is_empty(at: float) -> None:
    assert clock(at) == ""
    assert clock(1_800_000_000.0) == "08:00:00 UTC"


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 20))
def test_stack_lines_account_for_every_call(own: list[bool], most: int) -> None:
    frames = [E.Frame(f"f{n}", "/home/a.py" if mine else f"{SITE}/x.py", n) for n, mine in enumerate(own)]
    lines = stack_lines(frames, most)
    assert len(lines) <= max(most, 3)
    assert sum(int(line.split()[1]) if line.startswith("  …") else 1 for line in lines) == len(frames)


def test_report_of_ranks_that_do_the_same_has_their_place() -> None:
    place = "a/train.py:8 step()"
    sleeps = Activity(0, Kind.USER_CODE, f"sleeps in {place}", Strength.STRONG, place)
    case, judgement = hang(2, 1)
    verdict = Verdict(Kind.USER_CODE, "All 2 ranks: each sleeps", LOW)
    same = Judgement(verdict, (sleeps, replace(sleeps, rank=1)), ())
    first, step, *_ = report_lines(case, same)
    assert first.startswith("HANG: 2 ranks (0-1), ") and "each sleeps in a/train.py:8 step()" in first
    assert "Check a/train.py:8 step(): all ranks are there, and none is in a collective." in step
    assert any(line.startswith("  Evidence for rank 0") for line in report_lines(case, same))
    assert report_lines(case, judgement)[0].startswith("HANG: rank 1")


# -- the reference has every part of the evidence, and the page on reports today's examples


def test_every_part_of_the_evidence_has_a_table() -> None:
    kinds = [kind for kind in vars(E).values() if isinstance(kind, type)]
    parts = {kind for kind in kinds if is_dataclass(kind) or (issubclass(kind, Enum) and len(kind) > 0)}
    assert parts - {E.Case} <= TITLES.keys()


@pytest.mark.parametrize("name", PAGES)
def test_documentation_examples_are_current(name: str) -> None:
    """`python -m tests.incidents.cases_for_reports` writes them."""
    text = (DOCS / name).read_text()
    assert text == with_examples(text)


def test_documentation_shows_every_example_once() -> None:
    text = "".join((DOCS / name).read_text() for name in PAGES)
    assert sorted(re.findall(r"<!-- example: (\w+) -->", text)) == sorted(EXAMPLES)


# -- the example in the documentation of verdicts runs on the evidence of an incident --------------------------


def test_example_of_the_page_prints_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("incidents/0001")
    folder.mkdir(parents=True)
    (folder / "incident.json").write_text((FIXTURES / "dead_storage.json").read_text())
    (example,) = re.findall(r"```python\n(.*?)```", (DOCS / "verdicts.md").read_text(), re.DOTALL)
    exec(example, {})
    first, *rest = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\d+ \w+ (high|medium|low)", first) and len(rest) > 2


# -- the page of an incident, in itself and in a real browser


INCIDENTS: dict[str, Callable[[], tuple[Case, Judgement]]] = {
    **{name: functools.partial(judged, name) for name in NAMES},
    "1": lambda: hang(1, 0),
    "8": hang,
    "64": lambda: hang(64),
    "16384": large,
}


@pytest.mark.parametrize("name", INCIDENTS)
def test_page_loads_nothing_from_elsewhere(name: str) -> None:
    html = page(*INCIDENTS[name](), number=3)
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
    lane = r'<text class="lane( culprit)?"[^>]*>(?:▸ )?rank (\d+)</text>'
    lanes = re.findall(lane, page(*large(1024, 500)))
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
    found = bars(board)
    (still,) = [bar for bar in found if bar.is_open]
    assert (still.name, still.begun, still.ended) == ("data_loading", 31.2, 0.0)
    assert all(0 <= bar.ended <= bar.begun <= WINDOW for bar in found)


@pytest.mark.slow
@pytest.mark.variant
@pytest.mark.parametrize("name", ["1", "16384"])
def test_a_browser_lays_it_out_and_runs_no_script(tmp_path: Path, name: str) -> None:
    html = page(*INCIDENTS[name]())

    def with_script(page: str, title: str) -> str:
        return page.replace("</main>", f"<script>document.title = {title}</script></main>")

    assert "<title>HANG: rank" in browse(tmp_path, with_script(html, "'ran'"), "--dump-dom")
    html, count = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    assert count
    measured = with_script(html, "document.documentElement.scrollWidth + ' of ' + innerWidth")
    for width in (520, 1300):
        told = browse(tmp_path, measured, f"--window-size={width},900", "--dump-dom")
        found = re.search(r"<title>(\d+) of (\d+)</title>", told)
        assert found and int(found[1]) <= int(found[2]), found
