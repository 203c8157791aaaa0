"""A line of the journal comes back, whatever can be read is read, and what reading costs."""

from __future__ import annotations

import json
import math
import signal
import sys
import tempfile
import tracemalloc
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.journal.event import LONGEST_TEXT, Event, decode, encode
from holdfast.journal.incidents import incidents
from holdfast.journal.reader import clock_difference, read_run
from tests.journal.story import START, Story, write, write_journal
from tests.processes import Spawner

WHEN = {"t": 1000.5, "mono": 20.25, "node": "gpu-12"}
RESERVED = {"t", "mono", "node", "kind"}

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12
)  # fmt: skip
fields = st.dictionaries(st.text().filter(lambda name: name not in RESERVED), plain, max_size=6)


def strictly(line: bytes) -> Any:
    """What a strict reader of JSON makes of a line."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(line, parse_constant=refuse)


@given(st.text(min_size=1), fields)
def test_what_is_recorded_comes_back(kind: str, given_fields: dict[str, Any]) -> None:
    line = encode(kind, given_fields, **WHEN)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert strictly(line)["kind"] == kind
    assert decode(line) == Event(kind, 1000.5, 20.25, "gpu-12", given_fields, "gpu-12")


@given(st.binary())
def test_any_bytes_are_an_event_or_nothing(line: bytes) -> None:
    assert decode(line) is None or isinstance(decode(line), Event)


@given(fields, st.data())
def test_a_torn_line_is_nothing(given_fields: dict[str, Any], data: st.DataObject) -> None:
    line = encode("cycle_start", given_fields, **WHEN)
    kept = data.draw(st.integers(0, len(line) - 2))
    assert decode(line[:kept]) is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"kind": "a"}',
        '{"t": "now", "mono": 1, "node": "n", "kind": "a"}',
        '{"t": true, "mono": 1, "node": "n", "kind": "a"}',
        '{"t": NaN, "mono": 1, "node": "n", "kind": "a"}',
        '{"t": 1, "mono": 1, "node": "n", "kind": null}',
    ],
)
def test_what_is_no_event_is_nothing(line: str) -> None:
    assert decode(line) is None


def test_a_newer_version_s_line_is_kept_as_it_is() -> None:
    line = '{"t": 1, "mono": 2, "node": "n", "kind": "from_the_future", "v": 7, "more": {"a": [1]}}'
    fields = {"v": 7, "more": {"a": [1]}}
    assert decode(line, source="m") == Event("from_the_future", 1.0, 2.0, "n", fields, "m")


def test_an_event_about_another_node_and_time() -> None:
    event = decode(encode("node_lost", {"node": "gpu-9", "t": 7.0, "waited": 15.0}, **WHEN), source="gpu-12")
    assert event is not None
    assert (event.node, event.t, event.source) == ("gpu-9", 7.0, "gpu-12")


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_what_json_cannot_say_is_written_in_words() -> None:
    itself: list[Any] = []
    itself.append(itself)
    given_fields = {"nan": math.nan, "inf": math.inf, "huge": 2**70, "signal": signal.SIGTERM, "set": {1}}
    given_fields |= {"bytes": b"x", "rude": Rude(), "itself": itself, "surrogate": "\udc80", "key": {3: 1}}
    event = decode(encode("odd", given_fields, **WHEN))
    assert event is not None
    expected = {"nan": "nan", "inf": "inf", "huge": hex(2**70), "signal": 15, "set": [1], "bytes": "b'x'"}
    assert {name: event.get(name) for name in expected} == expected
    assert "RuntimeError" in event.get("rude")
    assert (event.get("surrogate"), event.get("key")) == ("\udc80", {"3": 1})


def test_a_long_text_keeps_its_two_ends() -> None:
    event = decode(encode("rank_exit", {"traceback": "first" + "x" * 100_000 + "last"}, **WHEN))
    assert event is not None
    text = event.get("traceback")
    assert len(text) < LONGEST_TEXT + 100
    assert text.startswith("first")
    assert text.endswith("last")
    assert "characters left out" in text


# -- what can be read is read


def line(kind: str, t: float, node: str = "a") -> bytes:
    return encode(kind, {}, t=t, mono=t, node=node)


def test_torn_and_strange_lines_spoil_nothing(tmp_path: Path) -> None:
    told = [line("run_start", 1), b'{"t": 1.5, "mo\n', line("from_the_future", 2), b"\xff\xfe\n", b"\n"]
    told += [b"[1]\n", line("run_end", 3), line("torn", 4)[:-20]]
    (tmp_path / "journal-a.jsonl").write_bytes(b"".join(told))
    assert [event.kind for event in read_run(str(tmp_path))] == ["run_start", "from_the_future", "run_end"]


def test_several_nodes_are_merged_and_other_files_ignored(tmp_path: Path) -> None:
    (tmp_path / "journal-a.jsonl").write_bytes(line("one", 1) + line("three", 3))
    (tmp_path / "journal-b.jsonl").write_bytes(line("two", 2, "b") + line("four", 4, "b"))
    (tmp_path / "notes.txt").write_text("{}")
    found = read_run(str(tmp_path))
    assert " ".join(f"{event.kind} {event.source}" for event in found) == "one a two b three a four b"


def test_a_clock_an_hour_ahead_is_moved_back() -> None:
    story = Story(b=3600.0)
    for number, at in enumerate((1.0, 50.0, 90.0)):
        story.tell(at, "cycle_start", cycle=number).tell(at + 0.3, "cycle_start", "b", cycle=number)
        story.tell(at + 10, "after", "b").tell(at + 20, "after", "a")
    merged = story.events
    assert [event.source for event in merged if event.kind == "after"] == ["b", "a"] * 3
    assert all(abs(event.t - START) < 200 for event in merged)


@pytest.mark.parametrize("ids", [("7.0", "7.1"), ("7", "7")])
def test_a_requeued_job_is_later_and_not_another_clock(ids: tuple[str, str]) -> None:
    """Launchers of several nodes have a name and a journal of their own each time; each run begins with cycle 0."""
    story = Story(n2=3600.0)
    for life, (run, at) in enumerate(zip(ids, (1.0, 500.0), strict=True)):
        for node in ("n1", "n2"):
            launcher = f"{node}:{life}"
            story.ahead[launcher] = story.ahead.get(node, 0.0)
            story.tell(at, "run_start", launcher, run_id=run).tell(at + 0.2, "cycle_start", launcher, cycle=0)
            story.tell(at + 9.0, "after", launcher)
    assert [round(event.t - START) for event in story.events if event.kind == "after"] == [10, 10, 509, 509]


@pytest.mark.parametrize("second", [("n0", "n2"), ("n1", "n4"), ("n3", "n4")])
def test_a_requeued_job_on_other_machines_is_no_other_clock(second: tuple[str, str]) -> None:
    """Node 0 of a life names it: its name has the launcher's pid."""
    story = Story()
    for life, (nodes, at) in enumerate(zip((("n1", "n2"), second), (1.0, 25_000.0), strict=True)):
        for name in nodes:
            node, starts = f"{name}:{life}", {"cycle": 0, "leader": f"{nodes[0]}:{life}"}
            story.tell(at, "run_start", node, run_id="7").tell(at + 0.2, "cycle_start", node, **starts)
            story.tell(at + 9.0, "after", node)
    times = [round(event.t - START) for event in story.events if event.kind == "after"]
    assert times == [10, 10, 25_009, 25_009]


def test_a_small_difference_is_the_nodes_own() -> None:
    def ahead(reference: dict[int, float], other: dict[int, float]) -> float:
        """Of cycles the times of their starts."""
        return clock_difference(*({("", "", n): t for n, t in of.items()} for of in (reference, other)))

    assert ahead({0: 10.0, 1: 20.0}, {0: 11.5, 1: 21.5}) == 0.0
    assert ahead({0: 10.0}, {1: 99.0}) == 0.0
    assert ahead({0: 10.0, 1: 20.0, 2: 30.0}, {0: 70.0, 1: 80.0, 2: 95.0}) == 60.0


times = st.lists(st.floats(0, 1e6), max_size=8)


@given(st.lists(times, min_size=1, max_size=4))
def test_merging_keeps_everything_and_each_node_s_order(clocks: list[list[float]]) -> None:
    journals = [
        [Event("step", round(t, 6), 0.0, str(node), {"n": n}, str(node)) for n, t in enumerate(node_times)]
        for node, node_times in enumerate(clocks)
    ]
    with tempfile.TemporaryDirectory() as folder:
        for node, journal in enumerate(journals):
            write_journal(Path(folder, f"journal-{node}.jsonl"), journal)
        merged = read_run(folder)
    for node, journal in enumerate(journals):
        assert [event for event in merged if event.source == str(node)] == journal
    if all(node_times == sorted(node_times) for node_times in clocks):
        assert [event.t for event in merged] == sorted(event.t for event in merged)


def test_a_journal_without_cycles_goes_by_its_node_s_clock(tmp_path: Path) -> None:
    """As a rank's, which tells of no cycles; it is no measure for others either, even when its name comes first."""
    story = Story(b=3600.0)
    for number in range(3):
        story.cycle(10.0 * number, number, "a").cycle(10.0 * number, number, "b")
    rank = [event_at(15.0 + 3600.0, "b")]
    for name, events in {"0": [event_at(5.0, "x")], **story.told, "b.rank-0": rank}.items():
        write_journal(tmp_path / f"journal-{name}.jsonl", events)
    merged = read_run(str(tmp_path))
    assert [round(event.t - START) for event in merged if event.kind == "straggler_report"] == [5, 15]
    starts = [round(event.t - START) for event in merged if event.kind == "cycle_start"]
    assert starts == [0, 0, 10, 10, 20, 20]


def event_at(at: float, node: str) -> Event:
    return Event("straggler_report", START + at, 100.0 + at, node, {"cycle": 1}, f"{node}.rank-0")


# -- what it costs ---------------------------------------------------------------------------------------------


OPENED = """
import sys
opened = []
sys.addaudithook(lambda event, found: opened.append(str(found[0])) if event == "open" else None)
from holdfast.cli.main import main
code = main(sys.argv[2:])
print("\\n".join(path for path in opened if path.startswith(sys.argv[1])), file=sys.stderr)
sys.exit(code)
"""


def failing(cycles: int) -> Story:
    """One failure per cycle."""
    story = Story().tell(0, "run_start")
    for number in range(cycles):
        story.cycle(10.0 * number + 1, number).exit(10.0 * number + 5, number, rank=1, code=3)
        story.restart(10.0 * number + 6, to=number + 1)
    return story


def test_incident_list_opens_no_file_of_a_rank(spawn: Spawner, tmp_path: Path) -> None:
    write(failing(2), tmp_path)
    (tmp_path / "journal-a.rank-0.jsonl").write_bytes(
        encode("straggler_report", {"rows": ["x" * 90] * 1000}, t=START, mono=1.0, node="a")
    )
    process = spawn.python(OPENED, str(tmp_path), "incidents", str(tmp_path))
    assert process.wait() == 0, process.output()
    found = {Path(path).name for path in process.err().splitlines()}
    assert "journal-a.jsonl" in found and "journal-a.rank-0.jsonl" not in found


def steps(story: Story) -> int:
    """The lines of Python that reading these events takes."""
    events, count = story.events, 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        incidents(events)
    finally:
        sys.settrace(before)
    return count


def test_incident_list_of_four_times_the_cycles_takes_four_times_the_steps() -> None:
    assert steps(failing(240)) < 4.5 * steps(failing(60))


def test_incident_list_holds_no_event_that_it_does_not_use(tmp_path: Path) -> None:
    write(failing(3), tmp_path)
    line = encode("decision", {"actions": "y" * 4000}, t=START + 7, mono=107.0, node="a")
    with open(tmp_path / "journal-a.jsonl", "ab") as file:
        file.write(2000 * line)
    from holdfast.cli.main import main

    tracemalloc.start()
    try:
        assert main(["incidents", str(tmp_path), "--json"]) == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20, f"{peak >> 20} MiB for {2000 * len(line) >> 20} MiB of records"
