"""The page of `holdfast goodput --html`, also in a real browser, and the frames of `holdfast top`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.fault_tolerance.board.values import BoardEvent, Identity, Limits, OpenSection, Snapshot
from holdfast.journal.event import Event
from holdfast.journal.goodput import JobNow, goodput
from holdfast.journal.incidents import incidents
from holdfast.views.heat_map import MOST, heat_map
from holdfast.views.live_frame import RankState, View, frame, rank_state
from tests.journal.story import START, Story, write
from tests.pages import browse, read
from tests.views.simulated_job import write_journals

HOSTILE = "<script>alert(1)</script>\"'\x1b[31m"


def page(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["goodput", str(run_dir), "--html", "-"]) == 0
    return capsys.readouterr().out


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two nodes, two hours, three failures, twelve straggler reports; names of nodes are hostile."""
    write_journals(tmp_path / "job", 2, 7200, 3, ranks=4, reports=12, name=HOSTILE)
    return tmp_path / "job"


def test_page_has_the_buckets_of_the_table(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["goodput", str(job)]) == 0
    table = capsys.readouterr().out.splitlines()
    text = read(page(job, capsys)).text
    rows = [re.fullmatch(r"(\S+)\s+(\S.*\S)\s+(\S+%).*", line) for line in table[2 : table.index("", 2)]]
    assert rows and all(row and f"{row[1]} {row[2]}, {row[3]} " in text for row in rows)
    assert "3 failures" in text and "4 cycles" in text


def test_page_runs_nothing_and_loads_nothing(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html = page(job, capsys)
    reader = read(html)
    assert not reader.seen & {"script", "link", "img", "iframe", "object", "form"}
    assert set(reader.loads) == {"href=#i1", "href=#i2", "href=#i3"}
    assert "default-src 'none'" in html and "url(" not in html and "://" not in html
    assert "<script" not in html and "\x1b" not in html
    assert "<script>alert(1)</script>\"'\\x1b[31m0" in reader.text


def test_page_incidents_lead_to_their_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from holdfast.incidents.report.store import allocate_incident_dir

    run_dir = tmp_path / "a job: x"
    run_dir.mkdir()
    folder = Path(allocate_incident_dir(str(run_dir), "r", 0))
    story = Story().tell(0, "run_start", run_id="r").cycle(1, 0).exit(50, 0, rank=1, signal="SIGKILL")
    story.tell(55, "incident", cycle=0, rank=1, report=str(folder)).tell(60, "run_end", exit_code=1)
    write(story, run_dir)
    (folder / "report.txt").write_text("who")
    file = tmp_path / "page.html"
    assert main(["goodput", str(run_dir), "--html", str(file)]) == 0
    assert capsys.readouterr().out == f"page of {run_dir} in {file}\n"
    assert set(read(file.read_text()).loads) == {"href=a%20job%3A%20x/incidents/0001/report.txt"}
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "told",
    [
        Story().tell(0, "run_start"),
        Story().tell(0, "run_start").cycle(5, 0).tell(65, "run_end"),
        Story().tell(0, "progress", cycle=0, seconds="x", step_rate=-1, sections=[]),
        Story().tell(0, "run_start").tell(1e12, "run_end"),
        Story().cycle(0, 0).tell(9, "progress", cycle=0, seconds=1e299, step_rate=1e299, ranks=1),
    ],
    ids=["one event", "no step", "nonsense", "far future", "huge"],
)
def test_page_of_little_or_nonsense_is_whole(
    tmp_path: Path, told: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Goodput" in read(page(write(told, tmp_path / "a"), capsys)).text


def test_page_of_many_cycles_stays_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_journals(tmp_path / "many", 1, 3 * 86400, 3000, ranks=1, reports=2)
    html = page(tmp_path / "many", capsys)
    assert len(html) < 500_000
    assert "The last 200; the 2800 before are listed by holdfast incidents." in read(html).text


def test_page_options_exclude_each_other(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["goodput", str(job), "--json", "--html", "x"])
    assert ended.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1
    assert main(["goodput", str(job), "--html", str(job / "none" / "x")]) == 2
    assert "there is no folder" in capsys.readouterr().err


# -- the heat map ----------------------------------------------------------------------------------------------


def report(number: int, scores: list[int | None], first: int = 0, **more: object) -> Event:
    fields = {"cycle": 0, "report": number, "ranks": [[first, len(scores)]], "overall": scores, **more}
    return Event("straggler_report", START + number, 0.0, "a", fields, "a")


def test_heat_map_has_a_cell_for_each_rank_and_report() -> None:
    found = heat_map([report(1, [990, 600]), report(2, [980, None])])
    assert found is not None
    assert (found.rows, found.columns, found.reports) == ([(0, 0), (1, 1)], 2, 2)
    assert found.shapes == {"h0": "M0 0h1v1h-1zM1 0h1v1h-1z", "h4": "M0 1h1v1h-1z"}


def test_heat_map_joins_the_reports_of_single_ranks() -> None:
    parts = [(1, [990], 0), (1, [700], 1), (2, [980], 0), (2, [850], 1)]
    joined = heat_map([report(number, scores, first) for number, scores, first in parts])
    assert joined == heat_map([report(1, [990, 700]), report(2, [980, 850])])
    assert joined is not None and joined.shapes["h2"] == "M1 1h1v1h-1z"


@pytest.mark.parametrize("count", [1, MOST, MOST + 1, 2 * MOST + 1])
def test_heat_map_shows_the_lowest_score_of_many(count: int) -> None:
    """Of 1,000 ranks one is slow, in the last report."""
    slow = [999 if rank != 777 else 500 for rank in range(1000)]
    found = heat_map([*(report(number, [999] * 1000) for number in range(1, count)), report(count, slow)])
    assert found is not None and found.reports == count
    assert len(found.rows) <= MOST and found.columns <= MOST
    assert (found.rows[0], found.rows[48], found.rows[-1][1]) == ((0, 15), (768, 783), 999)
    assert (found.times[0], found.times[-1]) == (START + 1, START + count)
    assert found.shapes["h4"] == f"M{found.columns - 1} 48h1v1h-1z"


def test_heat_map_leaves_out_what_is_no_report() -> None:
    bad = [report(1, []), report(2, [1], first=-1), report(3, [1], first=1 << 30), report(4, [5], ranks=7)]
    assert heat_map([*bad, Event("straggler_report", START, 0.0, "a")]) is None


# -- in a browser ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.variant
@pytest.mark.parametrize("ranks", [1, 8192])
def test_browser_lays_the_page_out_without_overlap(
    tmp_path: Path, ranks: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is wider than the window, no text lies on another, and the page's policy lets no script run."""
    write_journals(tmp_path / "job", 2, 7200, 3, ranks=ranks, reports=4, name=HOSTILE)
    html = page(tmp_path / "job", capsys)
    scripted = html.replace("</main>", "<script>document.title='ran'</script></main>")
    told = browse(tmp_path, scripted, "--dump-dom")
    assert "<title>goodput of " in told
    policy = re.findall(r'<meta http-equiv="Content-Security-Policy"[^>]*>', html)[0]
    measured = html.replace(policy, "").replace("</main>", f"<script>{OVERLAPS}</script></main>")
    for width in (500, 1400):  # the browser makes no narrower window
        told = browse(tmp_path, measured, f"--window-size={width},900", "--dump-dom")
        assert re.findall(r"<title>(.*?)</title>", told)[0] == f"{width} of {width}, 0 overlaps", width


OVERLAPS = """
const boxes = [...document.querySelectorAll('.axis, .rows, .scale')].map(
  group => [...group.querySelectorAll('span')].map(each => each.getBoundingClientRect()).filter(box => box.width));
let overlaps = 0;
for (const group of boxes) for (const one of group) for (const other of group)
  if (one !== other && one.left < other.right && other.left < one.right && one.top < other.bottom - 1
      && other.top < one.bottom - 1) overlaps++;
document.title = Math.max(document.documentElement.scrollWidth, innerWidth) + ' of ' + innerWidth + ', ' + overlaps
  + ' overlaps';
"""


# -- `holdfast top`: a frame from values


S = 1_000_000_000
NOW = 1000 * S
LIMITS = Limits(initial=100.0, subsequent=50.0, sections={"step": 10.0, "save": None}, out_of_section=20.0)
BOARD = Snapshot(
    identity=Identity(7, 1, 0, 0, 0, 900 * S),
    connected=True,
    finished=False,
    connected_ns=900 * S,
    heartbeat_count=5,
    last_heartbeat_ns=990 * S,
    step=41,
    section_count=3,
    open_sections=(OpenSection("save", 995 * S), OpenSection("step", 996 * S)),
    out_of_section_since_ns=0,
    last_activity_ns=996 * S,
    checkpoints=0,
    limits=LIMITS,
    request=None,
    consistent=True,
)


def steps(*told: tuple[int, int]) -> list[BoardEvent]:
    return [BoardEvent("step", at * S, "", value) for at, value in told]


def test_rank_state_has_sections_rate_and_the_nearest_timeout() -> None:
    told = [*steps((900, 1), (980, 20), (990, 40)), BoardEvent("mark", 991 * S, "x", 3)]
    assert rank_state(3, BOARD, told, NOW, True) == RankState(
        3, "training", 41, 2.0, 0.0, (("save", 5.0), ("step", 4.0)), 0.4, "step 4.0 of 10 s"
    )


@pytest.mark.parametrize(
    ("change", "is_running", "state"),
    [
        ({}, True, "training"),
        ({}, False, "ended"),
        ({"finished": True}, False, "finished"),
        ({"main_ended_ns": 999 * S}, True, "finished"),
        ({"main_ended_ns": 999 * S, "main_raised": True}, False, "failed"),
        ({"open_sections": (OpenSection("step", 992 * S),)}, True, "late"),
        ({"last_heartbeat_ns": 940 * S}, True, "late"),
        ({"step": None, "section_count": 0, "heartbeat_count": 0, "open_sections": ()}, True, "starting"),
        ({"identity": None}, True, "training"),
    ],
)
def test_rank_state_follows_the_board(change: dict[str, object], is_running: bool, state: str) -> None:
    assert rank_state(0, replace(BOARD, **change), [], NOW, is_running).state == state


@pytest.mark.parametrize(
    ("told", "rate", "idle"),
    [
        (steps(), None, 0.0),
        (steps((999, 5)), None, 0.0),
        (steps((900, 1), (999, 5)), None, 0.0),
        (steps((995, 9), (999, 5)), None, 0.0),
        (steps((999, 5), (999, 6)), None, 0.0),
        (steps((990, 0), (995, 5), (1000, 5)), 0.5, 0.0),
        (steps((900, 1)), None, 0.0),
        (steps((978, 1), (979, 2), (980, 3)), 1.0, 20.0),
        (steps((970, 1), (975, 2), (980, 3)), 0.2, 0.0),
        (steps((989, 1), (990, 2), (991, 3)), 1.0, 0.0),
    ],
)
def test_rank_state_has_the_rate_of_a_minute_and_is_idle_after_five_steps(
    told: list[BoardEvent], rate: float | None, idle: float
) -> None:
    state = rank_state(0, BOARD, told, NOW, True)
    assert (state.rate, state.idle) == (rate, idle)


def texts(view: View, width: int = 100, height: int = 1000) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in frame(view, width, height)]


RANK = RankState(5, "late", 60, 19.3, 0.0, (("step", 17.0), ("data", 16.5)), 0.825, "data 16.5 of 20 s")
STORY = Story().tell(0, "run_start").cycle(1, 0).tell(2, "first_step", cycle=0, rank=0, step=1)
STORY.exit(102, 0, rank=1, signal="SIGKILL").restart(102, to=1)
FOUND = incidents(STORY.events)
LEDGER = goodput(STORY.events, FOUND, START + 200)


def progress(node: str, ago: float = 130.0, ranks: object = 8) -> Event:
    fields = {"ranks": ranks, "steps_most": 55, "step_rate": None}
    return Event("progress", START + 200 - ago, 0.0, node, fields, node)


NOW_OF_JOB = JobNow(LEDGER, FOUND, (progress("b"),))
VIEW = View("job", START + 200, "a", (RankState(0, "unknown"), RANK), NOW_OF_JOB, ("a note",))


def test_frame_has_ranks_nodes_incidents_and_goodput() -> None:
    assert texts(VIEW) == [
        "job  08:03:20 UTC",
        "goodput 50.0% of 3 min 20 s, cycles: 1, failures: 1",
        " rank      step  steps/s  state    timeout and open sections",
        "    0         -        -  unknown",
        "    5        60     19.3  late     [########  ] data 16.5 of 20 s  step 17.0 s > data 16.5 s",
        "ranks      step  steps/s  node",
        "    8        55        -  b, reported 2 min 10 s ago",
        "incident 1  01-15 08:01:42  crash, rank 1 (a): killed by SIGKILL; restarting",
        "a note",
    ]


@pytest.mark.parametrize(
    ("ranks", "shown"),
    [
        ([("training", 30.0), ("training", 20.0)], True),
        ([("training", 30.0), ("training", 0.0)], False),
        ([("training", 30.0), ("starting", 0.0)], False),
        ([("training", 20.0), ("finished", 0.0), ("ended", 0.0)], True),
        ([("finished", 30.0)], False),
        ([], False),
    ],
)
def test_frame_has_since_when_no_rank_has_a_step(ranks: list[tuple[str, float]], shown: bool) -> None:
    states = [RankState(number, state, idle=idle) for number, (state, idle) in enumerate(ranks)]
    found = [line for line in texts(View("job", START + 200, "a", states)) if line.startswith("no rank")]
    assert found == ["no rank has finished a step since 08:03:00 UTC (20.0 s)"] * shown


def test_frame_of_a_narrow_terminal_goes_without_the_rate() -> None:
    assert texts(VIEW, width=40)[4].startswith("    5        60  late     [########  ]")


def test_frame_of_this_nodes_own_report_is_left_out() -> None:
    view = replace(VIEW, journal=JobNow(progress=(progress("a"),)))
    assert not any("reported" in line for line in texts(view))
    assert any("reported" in line for line in texts(replace(view, ranks=())))


@pytest.mark.parametrize("height", [1, 8, 12, 24])
@pytest.mark.parametrize("ranks", [0, 1, 16384])
@pytest.mark.parametrize("nodes", [0, 2048])
def test_frame_fits_the_height_and_shows_who_is_late(height: int, ranks: int, nodes: int) -> None:
    states = tuple(replace(RANK, rank=rank, passed=0.1, state="training") for rank in range(ranks))
    if ranks:
        states = (*states[:-1], replace(RANK, rank=ranks - 1))
    others = [progress(f"n{node}", float(node == 77)) for node in range(nodes)]
    shown = texts(replace(VIEW, ranks=states, journal=JobNow(LEDGER, FOUND, others)), height=height)
    assert len(shown) <= height
    if height >= 12:
        assert ranks == 0 or any(line.startswith(f"{ranks - 1:>5}") and " late " in line for line in shown)
        assert nodes == 0 or any("reported" in line for line in shown)
    if height == 24 and ranks == 16384:
        assert any("more ranks: " in line and "training" in line for line in shown)


def test_frame_texts_are_escaped() -> None:
    evil = "\x1b[2J\n[bold]"
    rank = replace(RANK, sections=((evil, 1.0),), timeout=evil)
    job = JobNow(LEDGER, FOUND, (progress(evil, ranks=evil),), evil)
    shown = texts(View(evil, START, "a", (rank,), job, (evil,)))
    assert all(line.isprintable() for line in shown)
    assert sum("\\x1b[2J" in line for line in shown) == 5


def test_frame_without_a_journal_has_the_ranks() -> None:
    assert texts(View("job", START, "a", (RANK,)))[1:] == texts(VIEW)[2:3] + texts(VIEW)[4:5]
