"""Who failed first? Decided from moments and what is known of each rank's end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.fault_tolerance.launcher.ranks import consequences, failures
from holdfast.fault_tolerance.launcher.ranks.exits import RankExit
from holdfast.fault_tolerance.launcher.ranks.failures import Failure


def failed(rank: int, at: float, status: int = 1, message: str = "", raised: float | None = None) -> Failure:
    error: dict[str, Any] | None = None
    if message:
        error = {"type": "RuntimeError", "message": message, "at": at if raised is None else raised}
    return Failure(RankExit(rank, rank, 100 + rank, status, at), error)


def order(*found: Failure) -> list[int]:
    return [failure.exit.rank for failure in failures.in_order(found)]


GLOO = (
    "[.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:7841. This is typically ..."
)
NCCL = "NCCL error in: ... remote process exited or there was a network error"


def test_the_exceptions_moment_counts_not_the_exits() -> None:
    assert order(failed(0, 5.0, status=5), failed(1, 7.0, message="bad batch", raised=4.9)) == [1, 0]


def test_a_lost_connection_follows_the_one_that_was_lost() -> None:
    for message in (GLOO, NCCL):
        assert order(failed(0, 5.0, message=message), failed(1, 5.1, status=-9)) == [1, 0]
        assert order(failed(0, 5.0, message=message), failed(1, 5.1, status=42)) == [1, 0]


def test_a_killed_process_may_need_seconds_to_be_gone() -> None:
    assert order(failed(0, 5.0, message=NCCL), failed(1, 9.0, status=-9)) == [1, 0]


def test_a_connection_that_was_really_lost_first() -> None:
    """What a rank does seconds later, on its own way out, is no cause."""
    assert order(failed(0, 5.0, message=GLOO), failed(1, 9.0, message="'model'")) == [0, 1]


def test_all_lost_a_rank_of_another_node() -> None:
    assert order(failed(1, 5.2, message=GLOO), failed(0, 5.1, message=GLOO)) == [0, 1]


def hung(rank: int, at: float, status: int = -9, message: str = "", ended: float | None = None) -> Failure:
    found = failed(rank, at if ended is None else ended, status, message)
    return replace(found, hung={"at": at, "text": "Section 'step' did not end. Waited 3.00 seconds."})


def test_a_hung_rank_is_the_cause_of_what_its_peers_lost() -> None:
    for message in ("", GLOO):  # whatever it says when it is ended
        found = [failed(0, 5.01, message=GLOO), hung(1, 5.0, message=message, ended=5.2)]
        assert order(*found) == [1, 0]
        assert [failure.exit.rank for failure in failures.causes(found)] == [1]
    assert hung(1, 5.0).meaning == (
        "hung: Section 'step' did not end. Waited 3.00 seconds. Ended by Holdfast (SIGKILL)"
    )


def test_who_failed_before_the_hang_comes_before_it() -> None:
    assert order(hung(1, 9.0), failed(0, 5.0, message="bad batch")) == [0, 1]


def test_only_the_causes_decide_about_the_exit_code() -> None:
    victim, cause = failed(0, 5.0, message=GLOO), failed(1, 5.1, status=3)
    assert failures.causes([victim, cause]) == [cause]
    assert failures.causes([victim]) == [victim], "where nobody else is known"


def test_nobody_followed_before_the_first() -> None:
    lines = failures.block(
        failures.in_order([failed(0, 5.0, message=GLOO), failed(1, 5.1, status=-9)]), "gpu-1", 3, whole=False
    )
    assert lines[0].startswith("FAILED: rank 1 (node gpu-1, pid 101, cycle 3): killed by SIGKILL")
    assert lines[1].startswith("  rank 0 followed 0.00 s later: RuntimeError: [.../gloo")


def test_at_most_eight_followers() -> None:
    lines = failures.block([failed(rank, 5.0 + rank) for rank in range(12)], "gpu-1", 0, whole=False)
    assert len(lines) == 10 and lines[-1] == "  and 3 more ranks followed"


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    end = RankExit(0, 0, 7, 1, 10.0)
    for text in ("", "{", "[]", "7", json.dumps({"pid": 7, "at": 9.5})):
        (tmp_path / "error").write_text(text)
        known = failures.at_hand(end, str(tmp_path / "error"))
        found = failures.in_full(known, str(tmp_path / "error"), str(tmp_path / "none"))
        assert found.error is None and found.meaning == "exit code 1" and found.last_lines == ()


def test_an_exception_explains_its_own_process_or_the_script_that_ends_soon(tmp_path: Path) -> None:
    path = str(tmp_path / "error")
    error = {"pid": 7, "at": 4.0, "type": "E", "message": "m", "traceback": "", "unhandled": True}
    Path(path).write_text(json.dumps(error))
    assert failures.at_hand(RankExit(0, 0, 7, 1, 100.0), path).leaving
    soon = failures.at_hand(RankExit(0, 0, 8, 1, 5.0), path)
    assert soon.error and not soon.raised
    for status in (1, -9):
        assert failures.at_hand(RankExit(0, 0, 8, status, 8.9), path).error
        assert failures.at_hand(RankExit(0, 0, 8, status, 9.1), path).error is None


def test_an_exception_that_the_program_only_showed_explains_an_end_that_comes_soon(tmp_path: Path) -> None:
    """By `sys.excepthook(*sys.exc_info())`, as some do to log it; then it went on."""
    path = str(tmp_path / "error")
    Path(path).write_text(json.dumps({"pid": 7, "at": 4.0, "type": "E", "message": "m", "unhandled": False}))
    soon = failures.at_hand(RankExit(0, 0, 7, 1, 5.0), path)
    assert soon.raised and not soon.leaving
    assert failures.at_hand(RankExit(0, 0, 7, -11, 5.0), path).error is None
    assert failures.at_hand(RankExit(0, 0, 7, -9, 100.0), path).error is None


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
    assert consequences.lost_worker(Failure(RankExit(0, 0, 7, 1, 1.0), error)) is lost
