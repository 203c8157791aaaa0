"""The callback that ends a preempted training in good order: one complete checkpoint, of the same step on all ranks.

A signal to any process of the training, or to ft_launcher, is a notice. At the next boundary on which all ranks agree
(after a training batch; under ft_launcher, and with one process, also in validations) the ranks save a checkpoint where
`fit(ckpt_path="last")` finds it and exit with code 0. What always holds: a save that fails does not end with code 0;
after the training, normal or not, handlers, loaders and strategy are as they were. In validate, test and predict,
where there is nothing to save, it only keeps Lightning's handler, which can deadlock, out of force. A signal before all
ranks have come to this callback's `setup` does what it would do without the callback.

Does not cover: a rank that never comes to another boundary (it hangs: `ft_launcher` ends it);
places between boundaries, so the running step is waited for; and, under ft_launcher, one more where steps take less
than 50 ms: there a step says when it begins that it will be passed (`step_call`).
"""

from __future__ import annotations

from signal import SIGTERM
from typing import Any, ClassVar

from holdfast.patches import Patches
from holdfast.preemption.notices import parse_signal

from .after_batch import AfterBatchCallback
from .lightnings_handlers import keep_lightning_off
from .preemptible_fit import PreemptibleFit


class PreemptionCallback(AfterBatchCallback):
    """Saves a checkpoint and exits with code 0 when the job is to be preempted.

    Args:
        sig: the signal that says so: a number, a `signal.Signals` or a name. SIGTERM always does as well.

    Raises:
        ValueError: `sig` is no signal, or none that a program can listen for.
    """

    order: ClassVar[int] = 30

    def __init__(self, sig: Any = SIGTERM) -> None:
        self.sig = parse_signal(sig)
        self._fit: PreemptibleFit | None = None
        self._elsewhere = Patches()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_fit": None, "_elsewhere": Patches()}

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._close(None)
        if stage == "fit":
            self._fit = PreemptibleFit(trainer, {self.sig, int(SIGTERM)}, self.arm)
            self.enlist(trainer)
            self._listen(self._fit, trainer)
        else:  # nothing to save: what the program has set is in force, by default the end
            self._keep_lightning_off(trainer)

    def _keep_lightning_off(self, trainer: Any) -> None:
        keep_lightning_off(getattr(trainer, "_signal_connector", None), {int(SIGTERM)}, self._elsewhere)

    def _listen(self, fit: PreemptibleFit, trainer: Any) -> None:
        try:
            listens = fit.listen()
        except BaseException:  # Lightning calls `on_exception`; another loop may not
            self._close(trainer)
            raise
        if not listens:
            self._close(trainer)
            self._keep_lightning_off(trainer)
            fit.notices.raise_again()

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.notices.install()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.notices.install()
            self._fit.each.begin()
            if self._fit.way.begin():
                self._fit.stop()

    def after_batch(self, trainer: Any, pl_module: Any) -> None:
        fit = self._fit
        if fit is None:
            return
        if fit.way.after_batch(fit.batches):
            fit.stop()
        if fit.notices.number:
            fit.say_received()
        if fit.looks_on():
            self.arm()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.in_validation(self._fit.places.start())

    def on_validation_batch_end(self, trainer: Any, *_batch: Any) -> None:
        if self._fit:
            self._fit.in_validation(self._fit.places.after_batch())

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._close(trainer)

    def _close(self, trainer: Any) -> None:
        fit, self._fit = self._fit, None
        self._elsewhere.undo()
        if fit is not None:
            fit.close()
        if trainer is not None:
            self.dismiss(trainer)
