"""A preempted training of one rank, in this process: where it stops, that it resumes, and what is put back."""

from __future__ import annotations

import copy
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from fsspec.core import url_to_fs
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO
from lightning.pytorch.strategies import SingleDeviceStrategy

from holdfast.fault_tolerance import FaultToleranceConfig
from holdfast.fault_tolerance.board import Board
from holdfast.fault_tolerance.board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from holdfast.fault_tolerance.stop import END, page, rules
from holdfast.fault_tolerance.stop.rules import WITHDRAW, Word
from holdfast.fault_tolerance.timeouts.effective_timeouts import configured_timeouts
from holdfast.ptl_resiliency import PreemptionCallback
from tests.ptl_resiliency.preempted import ALL, DETECTED, RECEIVED, Learner, fit, said, term, weights
from tests.ptl_resiliency.small import IS_2_4


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    return fit(tmp_path_factory.mktemp("undisturbed"))[0]


@pytest.mark.parametrize(
    ("moment", "batches"),
    [
        ("train 0", 1),  # in the first step
        ("train 2", 3),  # a validation is due after it
        ("train 5", 6),  # the last step of an epoch, with a validation due
        ("train 6", 7),
        ("train 11", 12),  # the last of all
        ("validation at 3", 3),
        ("validation at 3 batch 1", 3),
        ("validation at 6 batch 2", 6),  # the last batch of it, at the end of an epoch
        ("validation at 12 batch 0", 12),
        ("epoch 0", 7),  # between two epochs
    ],
)
def test_it_goes_on_as_if_nothing_had_been(
    moment: str, batches: int, tmp_path: Path, undisturbed: Learner, caplog: pytest.LogCaptureFixture
) -> None:
    first, code = fit(tmp_path, {moment: term})
    assert (code, len(first.trained)) == (0, batches)
    assert said(caplog, RECEIVED) == said(caplog, DETECTED) == 1
    assert said(caplog, f"the checkpoint of step {batches} is complete after") == 1
    assert torch.load(tmp_path / "last.ckpt", weights_only=False)["global_step"] == batches
    second, code = fit(tmp_path)
    assert code is None
    assert first.trained + second.trained == undisturbed.trained  # no batch twice, none skipped
    missed = int(IS_2_4 and batches == 7)  # by Lightning 2.4, without us as well
    assert first.validations + second.validations == undisturbed.validations - missed
    assert torch.equal(weights(second), weights(undisturbed))


class Hooks(pl.Callback):
    """`seen` has the hooks between epochs, with the steps that were done."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seen.append(("start", trainer.global_step))

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seen.append(("end", trainer.global_step))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seen.append(("all", trainer.global_step))


@pytest.mark.parametrize(
    ("moment", "settings", "again"),
    [
        ("train 5", {"val_check_interval": 4}, [("start", 6)]),  # the last step of an epoch
        ("train 5", {"limit_val_batches": 0}, [("start", 6)]),
        ("train 11", {"val_check_interval": 4}, []),  # the last of all
        ("train 8", {"max_steps": 9}, []),  # with a validation due, which no further start would begin
        ("train 9", {"max_steps": 10}, []),
        ("validation at 9 batch 1", {"max_steps": 9}, []),
    ],
    ids=str,
)
def test_after_the_last_step_of_an_epoch_the_hooks_of_its_end_run_first(
    moment: str, settings: dict[str, Any], again: list[tuple[str, int]], tmp_path: Path
) -> None:
    """Lightning would run them in no further start. Where an epoch begins, it begins once more."""
    seen, models, codes = [], [], []
    for folder, deeds in ((tmp_path / "all", {}), (tmp_path, {moment: term}), (tmp_path, {})):
        hooks = Hooks()
        model, code = fit(folder, deeds, callbacks=[hooks], **settings)
        seen.append(hooks.seen)
        models.append(model)
        codes.append(code)
    undisturbed, first, second = models
    assert codes == [None, 0, None]
    assert seen[1] + seen[2][len(again) :] == seen[0] and seen[2][: len(again)] == again
    assert first.trained + second.trained == undisturbed.trained
    assert first.validations + second.validations == undisturbed.validations
    assert torch.equal(weights(second), weights(undisturbed))


def test_a_callback_that_saves_at_the_exit_has_the_validation_still_to_come(tmp_path: Path) -> None:
    fit(tmp_path, {"train 2": term}, callbacks=[OnExceptionCheckpoint(tmp_path, "exit")])
    (tmp_path / "last.ckpt").unlink()
    (tmp_path / "exit.ckpt").rename(tmp_path / "last.ckpt")
    second, _ = fit(tmp_path)
    assert (len(second.trained), second.validations) == (ALL - 3, 4)


@pytest.mark.parametrize("moment", ["fit start", "validation at 0", "validation at 0 batch 1"])
def test_before_the_first_batch_there_is_nothing_to_save(
    moment: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, code = fit(tmp_path, {moment: term})
    assert (code, model.trained, list(tmp_path.glob("*.ckpt"))) == (0, [], [])
    assert said(caplog, "nothing was trained in this start") == 1 and said(caplog, DETECTED) == 0


def test_one_that_resumes_and_is_preempted_at_once_keeps_its_checkpoint(tmp_path: Path) -> None:
    fit(tmp_path, {"train 4": term})
    before = (tmp_path / "last.ckpt").read_bytes()
    model, code = fit(tmp_path, {"fit start": term})
    assert (code, model.trained) == (0, [])
    assert (tmp_path / "last.ckpt").read_bytes() == before


def test_signals_after_the_first_change_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def three_times() -> None:
        term()
        term(signal.SIGUSR1)
        term()

    class Slow(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint: Any, *args: Any, **kwargs: Any) -> None:
            if checkpoint["global_step"] == 5:
                term()
            super().save_checkpoint(checkpoint, *args, **kwargs)

    callback = PreemptionCallback(sig=signal.SIGUSR1)
    model, code = fit(tmp_path, {"train 4": three_times}, callback=callback, plugins=[Slow()])
    term()  # and the process, on its way out
    assert (code, len(model.trained)) == (0, 5)
    assert said(caplog, "initiating graceful stop") == said(caplog, DETECTED) == 1


def test_during_a_save_of_the_trainer(tmp_path: Path, undisturbed: Learner) -> None:
    class Interrupted(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint: Any, *args: Any, **kwargs: Any) -> None:
            if checkpoint["global_step"] == 4:
                term()
            super().save_checkpoint(checkpoint, *args, **kwargs)

    model, code = fit(tmp_path, plugins=[Interrupted()])
    assert (code, len(model.trained)) == (0, 5)  # that save, then the step that runs, then ours
    assert not [each.name for each in tmp_path.iterdir() if "partial" in each.name]
    assert torch.equal(weights(fit(tmp_path)[0]), weights(undisturbed))


def test_an_asynchronous_save_is_finished_first(tmp_path: Path, undisturbed: Learner) -> None:
    class Sluggish(TorchCheckpointIO):
        def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            time.sleep(0.05)  # so that it is under way when the training stops
            super().save_checkpoint(*args, **kwargs)

    model, code = fit(tmp_path, {"train 4": term}, plugins=[AsyncCheckpointIO(Sluggish())])
    assert (code, len(model.trained)) == (0, 5)
    assert torch.load(tmp_path / "last.ckpt", weights_only=False)["global_step"] == 5
    assert torch.equal(weights(fit(tmp_path)[0]), weights(undisturbed))


def test_a_lost_checkpoint_is_no_success(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Full(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint: Any, *args: Any, **kwargs: Any) -> None:
            if checkpoint["global_step"] == 5:
                raise OSError(28, "No space left on device")
            super().save_checkpoint(checkpoint, *args, **kwargs)

    with pytest.raises(OSError, match="No space left"):
        fit(tmp_path, {"train 4": term}, plugins=[Full()])
    assert (
        said(caplog, "the checkpoint of step 5 could not be saved: [Errno 28] No space left on device") == 1
    )
    assert len(fit(tmp_path)[0].trained) == ALL - 4  # from the one before


def test_without_a_checkpoint_callback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, code = fit(tmp_path, {"train 2": term}, checkpoint=None)
    assert code == 0
    assert said(caplog, "this trainer has no ModelCheckpoint") == 1
    assert said(caplog, "no checkpoint of step 3 is saved: the trainer has no ModelCheckpoint") == 1


@pytest.mark.parametrize(
    ("has_folder", "keeps_last", "problem"),
    [(False, False, "no dirpath and no save_last"), (True, False, "no save_last"), (True, True, "")],
)
def test_a_checkpoint_that_last_does_not_find_is_warned_of(
    has_folder: bool, keeps_last: bool, problem: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Lightning's default, a start later, is a new folder of the logger: the training begins anew."""

    def start(deeds: dict[str, Any] | None = None) -> int:
        folder = tmp_path / "checkpoints" if has_folder else None
        keeper = ModelCheckpoint(folder, save_last=keeps_last or None, every_n_train_steps=2)
        return len(fit(tmp_path, deeds, checkpoint=keeper, logger=CSVLogger(tmp_path))[0].trained)

    assert start({"train 2": term}) == 3
    assert said(caplog, "may not find the newest checkpoint") == bool(problem)
    assert not problem or said(caplog, f"the ModelCheckpoint has {problem}. ") == 1
    assert start() == (ALL - 3 if has_folder else ALL)


def test_a_checkpoint_in_a_remote_folder_is_not_replaced_by_a_start_that_did_not_find_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remote, _ = url_to_fs("memory://")
    for step in (4, 2):
        checkpoint = ModelCheckpoint(f"memory://{tmp_path.name}", save_last=True)
        fit(tmp_path, {f"train {step - 1}": term}, checkpoint=checkpoint)
    saved = [
        torch.load(remote.open(path), weights_only=False)
        for path in remote.ls(f"/{tmp_path.name}", detail=False)
    ]
    assert {2, 4} <= {each["global_step"] for each in saved}
    assert said(caplog, 'fit(ckpt_path="last") finds no checkpoint in memory://') == 2


# -- a preempted training of one rank, in this process, with a page on which a launcher agrees with it where it stops


@pytest.fixture
def stop_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[page.PageFile]:
    """This process is a rank of a launcher that takes part in agreed stops."""
    board = Board.create(
        str(tmp_path / "0.board"), configured_timeouts(FaultToleranceConfig(), initial_set_by_user=False)
    )
    monkeypatch.setenv(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, board.path)
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


# -- what a preemption callback takes over while one rank trains, in this process, and that it is put back


def _users_own(_number: int, _frame: object) -> None:
    pytest.fail("not while we listen")


@pytest.mark.parametrize("how", ["end", "error", "interrupt"])
def test_everything_is_put_back(how: str, tmp_path: Path) -> None:
    def fail() -> None:
        raise {"error": RuntimeError, "interrupt": KeyboardInterrupt}[how]()

    signal.signal(signal.SIGTERM, _users_own)
    interrupt = signal.getsignal(signal.SIGINT)
    strategies: list[Any] = []

    class Look(pl.Callback):
        def on_train_start(self, trainer: pl.Trainer, *rest: Any) -> None:
            strategies.append(trainer.strategy)

    callback = PreemptionCallback()
    deeds: dict[str, Callable[[], object]] = {} if how == "end" else {"train 4": fail}
    try:
        fit(tmp_path, deeds, callback=callback, callbacks=[Look()])
    except RuntimeError:
        assert how == "error"
    finally:
        signal.signal(signal.SIGINT, interrupt)
    assert signal.getsignal(signal.SIGTERM) is _users_own
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    assert not {"save_checkpoint", "process_dataloader"} & set(vars(strategies[0]))
    assert "save_checkpoint" not in vars(strategies[0].checkpoint_io)
    assert not [name for name in vars(callback) if name.startswith("on_")]


def test_what_cannot_be_taken_over_leaves_nothing_in_force(tmp_path: Path) -> None:
    class Stubborn(TorchCheckpointIO):
        def __setattr__(self, name: str, value: object) -> None:
            raise RuntimeError(f"{name} cannot be set here")

    signal.signal(signal.SIGTERM, _users_own)
    strategy = SingleDeviceStrategy(checkpoint_io=Stubborn())
    callback = PreemptionCallback()
    with pytest.raises(RuntimeError, match="cannot be set here"):
        fit(tmp_path, callback=callback, strategy=strategy)
    assert signal.getsignal(signal.SIGTERM) is _users_own
    assert not {"save_checkpoint", "process_dataloader"} & set(vars(strategy))
    assert callback._fit is None


def test_a_training_after_one_that_was_preempted_puts_back_what_was_before_both(tmp_path: Path) -> None:
    signal.signal(signal.SIGTERM, _users_own)
    fit(tmp_path, {"train 1": term})
    assert signal.getsignal(signal.SIGTERM) is not _users_own  # the process is about to exit
    fit(tmp_path)
    assert signal.getsignal(signal.SIGTERM) is _users_own


def test_lightnings_own_handlers_stay_out_of_force(tmp_path: Path) -> None:
    found: list[Any] = []
    moments = ("fit start", "validation at 0", "train 0", "validation at 3 batch 0")
    fit(tmp_path, dict.fromkeys(moments, lambda: found.append(signal.getsignal(signal.SIGTERM))))
    assert len(found) == 4 and len(set(found)) == 1
    assert "holdfast" in type(found[0].__self__).__module__


def test_another_signal_and_sigterm_as_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fit(tmp_path, {"train 1": partial(term, signal.SIGUSR1)}, callback=PreemptionCallback("usr1"))
    assert said(caplog, f"Received signal {int(signal.SIGUSR1)}, initiating graceful stop") == 1
    model, code = fit(tmp_path, {"train 4": term}, callback=PreemptionCallback(signal.SIGUSR1))
    assert (code, len(model.trained)) == (0, 3)


def test_in_another_thread_it_says_that_it_cannot_listen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    models: list[Learner] = []
    thread = threading.Thread(target=lambda: models.append(fit(tmp_path)[0]))
    thread.start()
    thread.join()
    assert len(models[0].trained) == ALL
    assert said(caplog, "does not run in the main thread") == 1
    assert signal.getsignal(signal.SIGTERM) == before


def test_in_other_stages_only_lightnings_handler_is_kept_off(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    found: list[Any] = []
    model = Learner({"validation at 0": lambda: found.append(signal.getsignal(signal.SIGTERM))})
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        default_root_dir=tmp_path,
        callbacks=[PreemptionCallback()],
        enable_model_summary=False,
    )
    trainer.validate(model, verbose=False)
    assert found == [before]


def test_it_can_be_copied_and_pickled(tmp_path: Path) -> None:
    copies: list[PreemptionCallback] = []
    callback = PreemptionCallback("SIGUSR2")
    fit(tmp_path, {"train 0": lambda: copies.append(copy.deepcopy(callback))}, callback=callback)
    copies.append(pickle.loads(pickle.dumps(callback)))
    for each in copies:
        assert (each.sig, each._fit) == (signal.SIGUSR2, None) and each is not callback
        assert not [name for name in vars(each) if name.startswith("on_")]
    model, code = fit(tmp_path / "copy", {"train 1": partial(term, signal.SIGUSR2)}, callback=copies[0])
    assert (code, len(model.trained)) == (0, 2)
