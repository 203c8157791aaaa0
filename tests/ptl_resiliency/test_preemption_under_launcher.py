"""A preempted training of one rank, in this process, with a page on which a launcher agrees with it where it stops."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from holdfast.fault_tolerance import FaultToleranceConfig, environment
from holdfast.fault_tolerance.board import Board
from holdfast.fault_tolerance.stop import END, page, rules
from holdfast.fault_tolerance.stop.rules import WITHDRAW, Word
from holdfast.fault_tolerance.timeouts.effective_timeouts import configured_timeouts
from tests.ptl_resiliency.preempted import ALL, DETECTED, RECEIVED, fit, said, term


@pytest.fixture
def stop_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[page.PageFile]:
    """This process is a rank of a launcher that takes part in agreed stops."""
    board = Board.create(
        str(tmp_path / "0.board"), configured_timeouts(FaultToleranceConfig(), initial_set_by_user=False)
    )
    monkeypatch.setenv(environment.BOARD, board.path)
    file = page.PageFile.create(page.page_path(board.path))
    yield file
    file.close()
    board.close()


def test_under_a_launcher_the_rank_tells_it_and_does_not_stop_by_itself(
    tmp_path: Path, stop_page: page.PageFile
) -> None:
    told: list[int] = []
    deeds = {"train 1": term, "train 3": lambda: told.append(stop_page.words[page.NOTICE])}
    model, code = fit(tmp_path, deeds)
    assert (code, len(model.trained), told) == (None, ALL, [signal.SIGTERM])
    assert stop_page.words[page.STATE] == rules.ENDED


@pytest.mark.parametrize(("place", "batches"), [((5, 0), 5), ((6, 2), 6), ((6, 1), 6), ((3, END), 4)])
def test_under_a_launcher_it_stops_at_the_place_that_was_agreed_on(
    place: tuple[int, int],
    batches: int,
    tmp_path: Path,
    stop_page: page.PageFile,
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = stop_page.words

    def agree() -> None:
        words[page.PLACES + 1] = place[0] << 24 | place[1]
        words[page.DEADLINE] = time.monotonic_ns()
        words[page.ASKED] = words[page.NUMBER] = words[page.COMMITTED] = 1

    model, code = fit(tmp_path, {"train 2": agree})
    assert (code, len(model.trained)) == (0, batches)
    assert (
        said(caplog, RECEIVED) == 0 and said(caplog, DETECTED) == 1
    )  # another rank's launcher got the signal
    assert said(caplog, "0.0 s are left (ft_launcher's --term-timeout)") == 1
    assert torch.load(tmp_path / "last.ckpt", weights_only=False)["global_step"] == batches


def test_without_an_agreement_among_launchers_a_process_alone_stops_by_itself(
    tmp_path: Path, stop_page: page.PageFile
) -> None:
    def withdraw() -> None:
        stop_page.words[page.ASKED] = stop_page.words[page.NUMBER] = stop_page.words[page.WITHDRAWN] = 1

    model, code = fit(tmp_path, {"train 2": withdraw})
    assert (code, len(model.trained)) == (0, 3)


def test_one_that_resumes_after_all_was_given_up_does_not_begin(
    tmp_path: Path, stop_page: page.PageFile, caplog: pytest.LogCaptureFixture
) -> None:
    stop_page.words[page.ASKED] = 1
    withdraw = {"fit start": lambda: page.write(stop_page.words, Word(WITHDRAW, 1))}
    model, code = fit(tmp_path, withdraw)
    assert (code, model.trained) == (0, [])
    assert said(caplog, "nothing was trained in this start") == 1
