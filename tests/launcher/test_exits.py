"""Exit statuses in words and as the launcher's own code."""

from __future__ import annotations

import signal

import pytest

from holdfast.fault_tolerance.launcher import exit_codes
from holdfast.fault_tolerance.launcher.exit_codes import RankExit


def end(status: int, rank: int = 0) -> RankExit:
    return RankExit(rank, rank, 100 + rank, status, 1.0)


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        (3, "exit code 3"),
        (-signal.SIGSEGV, "killed by SIGSEGV (crashed in native code (invalid memory access))"),
        (-signal.SIGUSR2, "killed by SIGUSR2"),
        (-40, "killed by signal 40"),
    ],
)
def test_meaning(status: int, meaning: str) -> None:
    assert end(status).meaning == meaning


@pytest.mark.parametrize(("status", "obeyed"), [(0, True), (-15, True), (143, True), (-9, False), (1, False)])
def test_ending_by_the_signal_that_was_passed_on_is_no_failure(status: int, obeyed: bool) -> None:
    assert exit_codes.obeyed(end(status), signal.SIGTERM) is obeyed


def test_told_to_stop() -> None:
    assert exit_codes.of_stop(signal.SIGINT, 75) == 130
    assert exit_codes.of_stop(signal.SIGTERM, 75) == 75
