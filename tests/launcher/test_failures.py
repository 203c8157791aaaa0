"""What is known of a rank's end: its exception, its meaning, and the block of lines about a failed cycle."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.fault_tolerance.launcher.control.messages import Cause
from holdfast.fault_tolerance.launcher.exit_codes import RankExit
from holdfast.fault_tolerance.launcher.incident_report import OTHERS, culprit_of, poll_pauses
from holdfast.fault_tolerance.launcher.ranks import failures
from holdfast.fault_tolerance.launcher.ranks.failures import Failure
from holdfast.fault_tolerance.launcher.ranks.processes import RankGroup
from holdfast.incidents.evidence import CRASH, NodeEvidence


def failed(rank: int, at: float, status: int = 1, message: str = "", raised: float | None = None) -> Failure:
    error: dict[str, Any] | None = None
    if message:
        error = {"type": "RuntimeError", "message": message, "at": at if raised is None else raised}
    return Failure(RankExit(rank, rank, 100 + rank, status, at), error)


GLOO = (
    "[.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:7841. This is typically ..."
)

GLOO_TIMEOUT = (
    "[…/gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 20000ms for send operation to complete"
)


def hung(rank: int, at: float, status: int = -9, message: str = "", ended: float | None = None) -> Failure:
    found = failed(rank, at if ended is None else ended, status, message)
    return replace(found, hung={"at": at, "text": "Section 'step' did not end. Waited 3.00 seconds."})


def test_hung_rank_has_the_verdict_as_its_meaning() -> None:
    assert hung(1, 5.0, message=GLOO).meaning == (
        "hung: Section 'step' did not end. Waited 3.00 seconds. Ended by Holdfast (SIGKILL)"
    )
    assert hung(1, 5.0, message=GLOO).cause is Cause.OWN
    assert failed(1, 5.0, message=GLOO).cause is Cause.LOST_PEER
    assert failed(1, 5.0, message=GLOO_TIMEOUT).cause is Cause.TIMED_OUT


@pytest.mark.parametrize(
    ("type_", "message", "expected"),
    [
        (
            "IndexError",
            "index 12 is out of 0x7f range",
            "IndexError: index # is out of # range after step 23",
        ),
        ("my.package.Bad", "two\nlines", "my.package.Bad: two lines after step 23"),
        ("RuntimeError", "", "RuntimeError after step 23"),
        ("ValueError", "x" * 100_000, f"ValueError: {'x' * 188} after step 23"),
        ("OSError", "[Errno 5] Input/output error", ""),
        ("ConnectionResetError", "by peer", ""),
        ("requests.exceptions.ReadTimeout", "no answer", ""),
        ("torch.AcceleratorError", "an illegal memory access", ""),
        ("RuntimeError", "CUDA error: uncorrectable ECC error encountered", ""),
        ("torch.OutOfMemoryError", "tried to allocate 2 GiB", ""),
        ("torch.distributed.DistBackendError", "Connection closed by peer", ""),
        ("KeyboardInterrupt", "", ""),
    ],
)
def test_what_two_failures_of_one_bug_have_in_common(type_: str, message: str, expected: str) -> None:
    """Nothing where a disk, a network, a GPU or too little memory may be the cause."""
    error = {"type": type_, "message": message, "pid": 7, "unhandled": True}
    found = Failure(RankExit(0, 0, 7, 1, 1.0), error)
    assert found.signature(23) == expected
    assert found.signature(None) == ""
    assert replace(found, hung={"at": 1.0, "text": "hung"}).signature(23) == ""
    assert replace(found, error={**error, "pid": 8}).signature(23) == "", "another process's"


def at_hand(found: RankExit, path: str) -> Failure:
    return Failure(found, failures.kept(path, found))


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    end = RankExit(0, 0, 7, 1, 10.0)
    files = str(tmp_path / "error"), [str(tmp_path / "none")]
    for text in ("", "{", "[]", "7", json.dumps({"pid": 7, "at": 9.5})):
        (tmp_path / "error").write_text(text)
        known = at_hand(end, str(tmp_path / "error"))
        (found,) = failures.in_full([known], lambda local: files, "logs")
        assert found.error is None and found.meaning == "exit code 1" and found.last_lines == ()


def test_an_exception_explains_its_own_process_or_the_script_that_ends_soon(tmp_path: Path) -> None:
    path = str(tmp_path / "error")
    error = {"pid": 7, "at": 4.0, "type": "E", "message": "m", "traceback": "", "unhandled": True}
    Path(path).write_text(json.dumps(error))
    assert at_hand(RankExit(0, 0, 7, 1, 100.0), path).leaving
    soon = at_hand(RankExit(0, 0, 8, 1, 5.0), path)
    assert soon.error and not soon.leaving
    for status in (1, -9):
        assert at_hand(RankExit(0, 0, 8, status, 8.9), path).error
        assert at_hand(RankExit(0, 0, 8, status, 9.1), path).error is None


def test_an_exception_that_the_program_only_showed_explains_an_end_that_comes_soon(tmp_path: Path) -> None:
    """By `sys.excepthook(*sys.exc_info())`, as some do to log it; then it continued."""
    path = str(tmp_path / "error")
    Path(path).write_text(json.dumps({"pid": 7, "at": 4.0, "type": "E", "message": "m", "unhandled": False}))
    soon = at_hand(RankExit(0, 0, 7, 1, 5.0), path)
    assert soon.error and not soon.leaving
    assert at_hand(RankExit(0, 0, 7, -11, 5.0), path).error is None
    assert at_hand(RankExit(0, 0, 7, -9, 100.0), path).error is None


LOADER = 'File ".../torch/utils/data/dataloader.py", line 1291, in _try_get_data'


@pytest.mark.parametrize(
    ("kind", "message", "traceback", "lost"),
    [
        ("RuntimeError", "DataLoader worker (pid(s) 7, 9) exited unexpectedly", "", True),
        ("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Terminated. ", "", True),
        ("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed. ", "", False),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer", LOADER, True),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer", "", False),
        ("ValueError", "bad batch", LOADER, False),
    ],
)
def test_a_rank_that_lost_its_data_loader(kind: str, message: str, traceback: str, lost: bool) -> None:
    error = {"type": kind, "message": message, "traceback": traceback}
    found = Failure(RankExit(0, 0, 7, 1, 1.0), error)
    assert (found.cause is Cause.LOST_WORKER) is lost


@pytest.mark.parametrize(("accused", "culprit"), [(None, 0), (1, 1)])
def test_culprit_of_two_ends_is_that_of_the_evidence(accused: int | None, culprit: int) -> None:
    """Two ranks ended within a moment: the one that the launcher saw first is in the captured evidence."""
    ends = [failed(0, 9.95), failed(1, 9.99)]
    pids = {each.exit.local_rank: each.exit.pid for each in ends}
    found = {each.exit.local_rank: each.exit for each in ends}
    group = SimpleNamespace(local_ranks=[0, 1], rank_of=int, pid_of=pids.__getitem__, exits=found)
    evidence = NodeEvidence("a", CRASH, mono=10.0, accused=accused)
    assert culprit_of(evidence, cast(RankGroup, group), ends) == culprit


# -- reading the store while another node reports ------------------------------------------------------------


def test_two_thousand_nodes_read_rarely_and_apart() -> None:
    moments: list[float] = []
    for number in range(2000):
        pauses = list(poll_pauses(number))
        assert abs(sum(pauses) - OTHERS) < 1e-6 and len(pauses) <= 16
        moments += [sum(pauses[:count]) for count in range(1, len(pauses))]
    busiest = max(sum(1 for at in moments if second <= at < second + 1) for second in range(1, 10))
    assert busiest <= 2500, "reads of all nodes within one second"
