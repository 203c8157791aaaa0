"""report.txt."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.incidents.evidence import (
    CRASH,
    DIAGNOSE,
    EARLY,
    HANG,
    BoardFacts,
    Case,
    Collective,
    Exit,
    Frame,
    NodeEvidence,
    OpenSection,
    PassedLimit,
    Process,
    Raised,
    RankEvidence,
    Thread,
)
from holdfast.incidents.report.text import MOST, report_lines
from holdfast.incidents.verdict import KINDS, LOW, Verdict
from holdfast.visible import escaped
from tests.incidents.cases_for_reports import ALL, REDUCING, hang, large, two_nodes

FOLDER = "/runs/a/incidents/0003"

TEXT = st.text(max_size=20) | st.sampled_from(["\x1b[2J", "a\nb\nc", "\u202e", "x" * 3000, ""])
SMALL = st.integers(-5, 2**40)
NUMBER = st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 1e5)
THREADS = st.builds(
    Thread,
    TEXT,
    st.lists(st.builds(Frame, TEXT, TEXT, SMALL, st.booleans()), max_size=30).map(tuple),
    st.booleans(),
)
RANKS = st.builds(
    RankEvidence,
    rank=st.integers(0, 12),
    local_rank=st.integers(0, 7),
    pid=SMALL,
    node=TEXT,
    board=st.none()
    | st.builds(
        BoardFacts,
        connected=st.booleans(),
        finished=st.booleans(),
        step=st.none() | SMALL,
        silent=NUMBER,
        sections=st.lists(st.builds(OpenSection, TEXT, NUMBER), max_size=3).map(tuple),
    ),
    process=st.none()
    | st.builds(
        Process, state=st.sampled_from("RSDTZ") | TEXT, wait_channel=TEXT, system_call=TEXT, cpu=NUMBER
    ),
    stacks=st.lists(THREADS, max_size=3).map(tuple),
    collectives=st.lists(st.builds(Collective, SMALL, TEXT, TEXT, TEXT, TEXT, TEXT, NUMBER), max_size=4).map(
        tuple
    ),
    exit=st.none() | st.builds(Exit, st.integers(-64, 255), TEXT, NUMBER, st.booleans(), TEXT, TEXT),
    raised=st.none() | st.builds(Raised, TEXT, TEXT, TEXT, NUMBER),
    last_lines=st.lists(TEXT, max_size=10).map(tuple),
    passed=st.none() | st.builds(PassedLimit, TEXT, NUMBER, NUMBER, TEXT, TEXT),
    no_stacks=TEXT,
    notes=st.lists(TEXT, max_size=5).map(tuple),
)
CASES = st.lists(
    st.builds(
        NodeEvidence,
        node=TEXT,
        trigger=st.sampled_from([HANG, CRASH, EARLY, DIAGNOSE, "elsewhere"]),
        run_id=TEXT,
        nodes=st.integers(1, 5),
        world_size=st.integers(0, 20),
        at=NUMBER.filter(lambda at: at == at and abs(at) < 1e9),
        took=NUMBER,
        accused=st.none() | st.integers(0, 12),
        reason=TEXT,
        ranks=st.lists(RANKS, max_size=3).map(tuple),
        notes=st.lists(TEXT, max_size=8).map(tuple),
    ),
    max_size=3,
).map(lambda nodes: Case(tuple(nodes)))
VERDICTS = st.builds(
    Verdict, st.sampled_from(sorted(KINDS)), TEXT, st.just(LOW), st.none() | st.integers(0, 14), TEXT
)


def test_the_first_lines_are_the_block_of_the_design() -> None:
    case, verdict = hang(64)
    first, where, others, *said = report_lines(case, verdict, number=3, folder=FOLDER)[:5]
    assert first == "HANG: rank 5 (node gpu-12, pid 4182) — no heartbeat for 31.2 s (limit 30.0 s)"
    assert (
        where
        == "  rank 5 is in  data_loading > dataset.py:88 read()   state D (disk wait) for 31 s, step 4181"
    )
    assert others == "  63 ranks (0-4, 6-63) wait in  backward > all_reduce, step 4182"
    assert said[0].startswith(
        "  verdict: rank 5 never reached all_reduce number 8362, in which 63 ranks wait"
    )
    assert said[1].endswith("(confidence high)")


def test_a_hang_in_full() -> None:
    text = "\n".join(report_lines(*hang(), number=3, folder=FOLDER))
    for line in (
        "    in the kernel: folio_wait_bit_common < filemap_read < nfs_file_read < vfs_read",
        "    open on network filesystems: /mnt/data/shard-0017.tar (nfs4)",
        "    > dataset.py:88 read()",
        "    7 ranks (0-4, 6-7): distributed_c10d.py:2938 all_reduce() < train.py:152 backward() "
        "< train.py:144 train()",
        "    rank 5: all_reduce number 8361 of [[1024, 8]] float32 in group default, begun 31 s ago, completed",
        f"  everything: {FOLDER}/incident.json",
        f"  as a page:  holdfast incidents {FOLDER} --html incident.html",
    ):
        assert f"{line}\n" in f"{text}\n", line
    assert "\x1b" not in text


def test_the_foot_says_of_which_incident_the_report_is() -> None:
    case, verdict = hang()
    *_, taken, _, _ = report_lines(case, verdict, number=3, folder=FOLDER)
    assert taken.endswith(
        "before any process was ended; incident 0003, 2027-01-15 08:00:00 UTC, job run-1, cycle 2"
    )
    asked = Case(tuple(replace(node, trigger=DIAGNOSE) for node in case.nodes))
    *_, taken = report_lines(asked, verdict)
    assert "before any process" not in taken and taken.endswith("job run-1, cycle 2")


def test_threads_in_the_programs_own_code_are_shown_and_those_of_libraries_are_not() -> None:
    case, verdict = hang()
    saving = Thread("saver", (Frame("fsync", "/home/ada/train/save.py", 12), *REDUCING[-1:]))
    ranks = tuple(
        replace(rank, stacks=(*rank.stacks, saving)) if rank.rank == verdict.rank else rank
        for rank in case.nodes[0].ranks
    )
    lines = report_lines(Case((replace(case.nodes[0], ranks=ranks),)), verdict)
    title = lines.index("  its other threads that are in your own code:")
    assert lines[title + 1] == "    saver: save.py:12 fsync() < train.py:220 <module>()"
    assert not any("pin_memory" in line for line in lines)
    assert "  its other threads that are in your own code:" not in report_lines(case, verdict)


def test_a_crash_has_its_traceback_once_and_who_followed() -> None:
    case, verdict = ALL["crash"]()
    lines = report_lines(case, verdict)
    assert lines[0] == "EXCEPTION: rank 1 (node gpu-12, pid 4178) — ValueError: bad batch 17 (exit code 1)"
    assert sum("raise ValueError" in line for line in lines) == 1
    assert any(
        line.startswith("    rank 0 ended because of it 0.05 s before we looked: RuntimeError: [gloo]")
        for line in lines
    )


def test_what_is_not_known_is_said() -> None:
    case, verdict = two_nodes()
    assert "    anything from another node of the job: what happened there is not known here" in report_lines(
        case, verdict
    )
    unknown = Verdict("unknown", "the evidence does not tell", LOW)
    lines = report_lines(Case((NodeEvidence("a", HANG, nodes=1),)), unknown)
    assert lines[0] == "HANG: no single rank — the evidence does not tell"


@pytest.mark.parametrize(
    ("trigger", "kind", "word"),
    [
        (HANG, "lock", "HANG:"),
        (EARLY, "stopped", "HANG BEFORE ITS LIMIT:"),
        (DIAGNOSE, "data_loading", "DIAGNOSIS:"),
        (CRASH, "signal", "CRASH:"),
        (CRASH, "unknown", "FAILED:"),
        (CRASH, "exit", "EXIT:"),
        (CRASH, "missing_collective", "HANG:"),
        (HANG, "node_lost", "NODE LOST:"),
    ],
)
def test_the_first_word(trigger: str, kind: str, word: str) -> None:
    case, _ = hang(2, 1)
    case = Case((replace(case.nodes[0], trigger=trigger),))
    assert report_lines(case, Verdict(kind, "so", LOW, 1))[0].startswith(word)


def test_16384_ranks_fit() -> None:
    case, verdict = large()
    lines = report_lines(case, verdict, number=1, folder=FOLDER)
    assert len(lines) <= MOST
    assert "  16383 ranks (0-9000, 9002-16383) wait in  backward > all_reduce, step 4182" in lines


def test_all_ranks_in_different_places_fit() -> None:
    case, verdict = hang(64)
    node = case.nodes[0]
    ranks = tuple(
        replace(
            rank,
            stacks=(Thread("MainThread", (Frame("f", "/home/a.py", rank.rank),), main=True),),
            collectives=(Collective(rank.rank, "send", f"group {rank.rank}", state="started"),),
            no_collectives=f"reason {rank.rank}",
            notes=tuple(f"note {n}" for n in range(20)),
            exit=None if rank.rank < 32 else Exit(rank.rank),
        )
        for rank in node.ranks
    )
    lines = report_lines(Case((replace(node, ranks=ranks, notes=("fact",) * 50),)), verdict, folder=FOLDER)
    assert len(lines) == MOST
    titles = [line for line in lines if line.startswith("  ") and line.endswith(":") and line[2] != " "]
    assert len(titles) == 7
    assert any("more in incident.json" in title for title in titles)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(CASES, VERDICTS)
def test_whatever_is_told_the_report_is_short_and_safe(case: Case, verdict: Verdict) -> None:
    lines = report_lines(case, verdict, number=1, folder=FOLDER)
    assert 0 < len(lines) <= MOST
    assert max(map(len, lines)) <= 200
    assert lines == [escaped(line) for line in lines]
