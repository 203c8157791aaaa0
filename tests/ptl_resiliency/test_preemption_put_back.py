"""What a preemption callback takes over while one rank trains, in this process, and that it is put back."""

from __future__ import annotations

import copy
import pickle
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.strategies import SingleDeviceStrategy

from holdfast.ptl_resiliency import PreemptionCallback
from tests.ptl_resiliency.preempted import ALL, Learner, fit, said, term


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
    fit(
        tmp_path,
        dict.fromkeys(moments, lambda: found.append(signal.getsignal(signal.SIGTERM))),
    )
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
