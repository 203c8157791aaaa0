"""The recorded decisions of a launcher: a replay decides the same, and finds where a controller decides differently."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.main import main
from holdfast.fault_tolerance.launcher.control import messages as m
from holdfast.fault_tolerance.launcher.control import running
from holdfast.fault_tolerance.launcher.control.records import Member, Membership, Settings
from holdfast.fault_tolerance.launcher.recorder import Recorder, Unreadable, decode, encode
from holdfast.fault_tolerance.launcher.replayer import Line
from holdfast.journal.event import encode as encode_line
from tests.control import test_one_node
from tests.control.test_one_node import RUN, Job, exited
from tests.processes import Spawner
from tests.simulation.mutations import MUTATIONS
from tests.simulation.search import RecordedWorld, recorded, replayed

SEEDS = 50
"""Simulated jobs of 1 to 16 nodes with up to five faults."""
HOUR = 3600

# -- the codec ------------------------------------------------------------------------------------------------

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.tuples(inner, inner)
        | st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
        | st.frozensets(st.integers(), max_size=3)
    ),
    max_leaves=12,
)


@given(PLAIN)
def test_codec_value_comes_back_as_it_was(value: Any) -> None:
    found = decode(json.loads(json.dumps(encode(value))))
    assert found == value
    assert json.dumps(encode(found)) == json.dumps(encode(value))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"$": "Popen", "args": "true"}, "the type Popen does not exist"),
        ({"$": "Verdict", "since_9_9": 1}, "missing 2 required positional arguments"),
        ({"$": "Kind", "value": "paused"}, "'paused' is not a valid Kind"),
        ({"$": "zlib", "value": ["AAAA"]}, "error: Error -3"),
    ],
)
def test_codec_value_of_another_version_is_an_error(found: Any, message: str) -> None:
    with pytest.raises(Unreadable, match=message):
        decode(found)


def test_codec_unknown_field_is_ignored() -> None:
    assert decode({"$": "Verdict", "local": 1, "text": "hung", "since_9_9": {"$": "Popen"}}) == m.Verdict(
        1, "hung"
    )


# -- what was left out changes nothing ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worlds() -> list[RecordedWorld]:
    return [recorded(seed) for seed in range(SEEDS)]


def _journals(worlds: list[RecordedWorld]) -> list[list[bytes]]:
    return [lines for world in worlds for lines in world.journals.values()]


def _differs(lines: list[bytes]) -> bool:
    return any(line.differences for line in replayed(lines))


def test_replay_of_simulated_jobs_decides_the_same(worlds: list[RecordedWorld]) -> None:
    journals = _journals(worlds)
    assert not any(map(_differs, journals))
    inputs = sum(world.inputs for world in worlds)
    assert inputs > 50_000
    assert sum(map(len, journals)) < inputs / 5


def test_replay_without_observations_differs(worlds: list[RecordedWorld]) -> None:
    """Left-out inputs do change what later decisions depend on."""
    journals = [[line.replace(b'"observed"', b'"other"') for line in lines] for lines in _journals(worlds)]
    assert any(map(_differs, journals))


@pytest.mark.parametrize(
    "name",
    [
        "nodes leave with exit codes of their own",
        "there is no grace period",
        "a suspended launcher counts as lost",
        "ranks start before all nodes are ready",
    ],
)
def test_replay_with_a_defect_differs(
    name: str, worlds: list[RecordedWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    next(each for each in MUTATIONS if each.name == name).patch(monkeypatch)
    assert any(map(_differs, _journals(worlds)))


# -- size and cost --------------------------------------------------------------------------------------------


class Recorded:
    """A job of one node, and its journal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.lines: list[bytes] = []
        recorder = Recorder(self._record)
        monkeypatch.setattr(test_one_node, "begin", recorder.begin)
        monkeypatch.setattr(test_one_node, "step", recorder.step)
        self.job = Job(**settings)

    def _record(self, kind: str, **values: Any) -> None:
        now = values["now"]
        self.lines.append(encode_line(kind, values, t=1.8e9 + now, mono=now, node="a"))

    @property
    def size(self) -> int:
        return sum(map(len, self.lines))

    def replay(self) -> list[Line]:
        return replayed(self.lines)


def _hour(job: Job, ranks: int) -> None:
    for second in range(HOUR):
        job.boards = {rank: m.Board(second, second // 600, 0.1 * rank) for rank in range(ranks)}
        job.send(after=1.0)


def test_recorder_records_nothing_in_a_quiet_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Recorded(monkeypatch, ranks=8, max_restarts=1)
    found.job.started()
    began, size = len(found.lines), found.size
    _hour(found.job, 8)
    assert (began, len(found.lines)) == (11, 11)
    assert size < 4_000
    for local in range(8):
        found.job.send(exited(local, 1 if local == 0 else -15), after=0.1)
    found.job.started()
    assert found.size - size < 12_000, "of a restart"
    assert not any(line.differences for line in found.replay())


def test_recorder_leaves_out_the_heartbeats_of_other_nodes() -> None:
    lines: list[str] = []
    recorder = Recorder(lambda kind, **values: lines.append(kind))
    node, _ = recorder.begin(Settings(Member("a"), least=2, most=2), 0.0)
    members = Membership((Member("a"), Member("b"))).encode()
    for key, value in ("cycle/1", ""), ("members/0", members), ("ack/0", '{"node":"a"}\n{"node":"b"}\n'):
        recorder.step(node, m.StoreView(key, value), 0.0)
    go = '{"address":"a","port":1}'
    for event in m.RankStoreOpen(0, "a", 1), m.StoreView("go/0", go), m.Started():
        recorder.step(node, event, 0.0)
    assert type(node.phase).__name__ == "Run"
    count = len(lines)
    for second in range(1, HOUR):
        recorder.step(node, m.Tick(boards={0: m.Board(second, 0, 0.1)}), float(second))
        recorder.step(node, m.StoreView("alive/b", str(second)), second + 0.5)
    assert len(lines) == count


def test_recorder_log_that_grew_records_what_is_new() -> None:
    events: list[dict[str, Any]] = []
    recorder = Recorder(lambda kind, **values: events.append(values))
    node, _ = recorder.begin(Settings(Member("a"), least=3, most=3), 0.0)
    line = json.dumps({"node": "b", "address": "x" * 500}) + "\n"
    for count in 1, 2, 3:
        recorder.step(node, m.StoreView("join/0", count * line), 0.0)
    assert [event["event"]["value"] for event in events[1:]] == [line, line, line]
    assert [event.get("prefix", 0) for event in events[1:]] == [0, len(line), 2 * len(line)]


# -- journals that are not whole, or of another version ---------------------------------------------------------


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """A job of one node: a rank fails, all restart, and succeed."""
    found = Recorded(monkeypatch, max_restarts=1)
    found.job.play(RUN, exited(0, 3), 0.5, exited(1, -15), RUN, 1.0, exited(0, 0), exited(1, 0))
    assert found.job.codes == [0]
    return found.lines


def test_replay_that_begins_in_the_middle_starts_at_a_snapshot(journal: list[bytes]) -> None:
    lines = replayed(journal[3:])
    first = next(index for index, line in enumerate(lines) if line.text.startswith("state"))
    assert {line.text for line in lines[:first]} == {"not replayed: records before this one are missing"}
    assert not any(line.differences for line in lines)
    assert sum(line.is_decision for line in lines) > 5


def test_replay_with_a_lost_record_continues_at_a_snapshot(journal: list[bytes]) -> None:
    lines = replayed([*journal[:4], *journal[5:]])
    assert not any(line.differences for line in lines)
    assert any(line.text.startswith("not replayed") for line in lines)
    assert lines[-1].is_decision


def test_replay_of_two_attempts_in_one_journal_is_the_same(journal: list[bytes]) -> None:
    assert not any(line.differences for line in replayed([*journal, *journal]))


def test_replay_of_an_unknown_event_is_a_readable_line(journal: list[bytes]) -> None:
    changed = [line.replace(b'"$":"Started"', b'"$":"Warmed"') for line in journal]
    found = [line.differences for line in replayed(changed) if line.differences]
    assert found[0] == ("a value of another version: the type Warmed does not exist in this one",)


def test_replay_compares_the_state_at_each_cycle(journal: list[bytes]) -> None:
    others = [
        line.replace(b'"max_restarts":1', b'"max_restarts":2') if b'"controller"' in line else line
        for line in journal
    ]
    assert not any("state differs" in each for line in replayed(others) for each in line.differences)
    changed = list(journal)
    index = max(index for index, line in enumerate(journal) if b'"controller"' in line)
    changed[index] = changed[index].replace(b'"restarts":1', b'"restarts":7')
    differences = [each for line in replayed(changed) for each in line.differences]
    assert differences[0].startswith("state differs in record: recorded CycleRecord(")


def test_recorder_error_of_the_controller_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Recorded(monkeypatch, max_restarts=1)
    with pytest.raises(KeyError):
        found.job.started().send(exited(99, 3))
    found.job.send(m.LauncherFailed("KeyError(99)"))
    assert found.job.codes == [1]
    assert not any(line.differences for line in found.replay())
    monkeypatch.setattr(running, "record_exit", lambda node, event, now: node.ranks[0])
    assert ("recorded: KeyError: 99", "today:    no error") in [line.differences for line in found.replay()]


def test_recorder_value_it_cannot_encode_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher continues; a replay reports that the record cannot be used."""
    found = Recorded(monkeypatch, max_restarts=1)
    found.job.started()
    monkeypatch.setattr("holdfast.fault_tolerance.launcher.recorder.pack", lambda value: 1 / 0)
    found.job.send(exited(0, 0)).send(exited(1, 0))
    assert found.job.codes == [0]
    assert b'"unrecordable":"ZeroDivisionError: division by zero"' in found.lines[-1]
    assert any(line.differences for line in found.replay())


# -- the command ------------------------------------------------------------------------------------------------


@pytest.fixture
def run_dir(journal: list[bytes], tmp_path: Path) -> Path:
    folder = tmp_path / "run"  # other tests' runs are next to `tmp_path`
    folder.mkdir()
    (folder / "journal-a.jsonl").write_bytes(b"".join(journal))
    return folder


def test_replay_command_same_decisions_exits_with_0(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(run_dir)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "node a"
    assert lines[-1].endswith(" decisions: all the same")
    failed = next(line for line in lines if "status=3" in line)
    assert "cycle 0  RUN RankExited(local=0, status=3, text='ended with 3') -> TakeEvidence(" in failed
    assert any("cycle 1  state at the start of cycle 1" in line for line in lines)
    assert main(["replay", str(run_dir), "--node", "a", "--cycle", "0"]) == 0
    out = capsys.readouterr().out
    assert "cycle 0" in out and "cycle 1 " not in out


def test_replay_command_prints_to_an_ascii_stream(spawn: Spawner, run_dir: Path) -> None:
    ended = {}
    for encoding in ("utf-8", "ascii"):
        command = [sys.executable, "-m", "holdfast", "replay", run_dir]
        ended[encoding] = spawn(command, env={"PYTHONIOENCODING": encoding})
        assert ended[encoding].wait() == 0, ended[encoding].err()
    assert "…" in ended["utf-8"].out()
    assert ended["ascii"].out() == ended["utf-8"].out().replace("…", "...")


def test_replay_command_other_decision_exits_with_1(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "EVIDENCE", 9.0)
    assert main(["replay", str(run_dir)]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("  DIFFERS")
    assert lines[at + 1].startswith("    recorded: TakeEvidence(trigger='crash', seconds=")
    assert lines[at + 2].startswith("    today:    TakeEvidence(trigger='crash', seconds=9.0, rank=0)")
    assert lines[-1].endswith(" differ")


@pytest.mark.parametrize(
    ("place", "options", "message"),
    [
        ("missing", (), "No such file or directory"),
        ("empty", (), "no journal-<node>.jsonl in it"),
        ("none", (), "no decisions are recorded in its journal"),
        ("", (), "2 runs in it. Name one"),
        ("run", ("--node", "b"), "no decisions of node 'b'; there are: a."),
        ("run", ("--cycle", "7"), "no decision of cycle 7 is recorded."),
    ],
)
def test_replay_command_with_nothing_to_replay_exits_with_2(
    place: str, options: tuple[str, ...], message: str, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_dir.parent
    (folder / "empty").mkdir()
    (folder / "none").mkdir()
    (folder / "none" / "journal-a.jsonl").write_bytes(encode_line("run_start", {}, t=0.0, mono=0.0, node="a"))
    assert main(["replay", str(folder / place), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("holdfast: error: ") and error.count("\n") == 1 and message in error
