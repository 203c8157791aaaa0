"""What the machine itself says at an incident: memory, hardware, GPUs; sentences for `NodeEvidence.notes`.

Always holds: :meth:`MachineLook.notes` returns at the moment that was named, with what there is; nothing raises.
Does not cover: what the sentences mean for a rank.
"""

from __future__ import annotations

import time

from ... import nvidia
from ...in_time import TooLate, UnderWay
from . import gpu
from .kernel_log import hardware
from .memory import OomWatch

WORTH_ASKING = 0.3
"""Seconds that must be left for asking a GPU's driver, which takes its time: not after a crash."""


class MachineLook:
    """Begins when it is made, so that the driver answers while the ranks are looked at."""

    def __init__(self, watch: OomWatch | None, until: float) -> None:
        """`until` is in monotonic seconds."""
        self._watch = watch
        self._until = until
        self._gpus: UnderWay[tuple[str, ...]] | None = None
        self._said: tuple[str, ...] = ()
        if nvidia.find_driver() and until - time.monotonic() >= WORTH_ASKING:
            try:
                self._gpus = UnderWay(lambda: gpu.facts(until))
            except RuntimeError as error:
                self._said = (f"the GPUs were not asked: no thread can be started here ({error})",)

    def notes(self) -> tuple[str, ...]:
        """All facts; what the kernel's log cannot tell because it cannot be read is one too."""
        said = self._said
        if self._watch is not None:
            log = self._watch.log
            said += self._watch.notes() + tuple(
                f"the kernel's log says: {line}" for line in hardware(log.news())
            )
            said += (log.refused,) if log.refused else ()
        if self._gpus is not None:
            try:
                said += self._gpus.answer(max(self._until - time.monotonic(), 0.0))
            except TooLate:
                said += ("the NVIDIA driver did not answer in time",)
            except Exception as error:
                said += (f"the GPUs could not be asked: {error!r} (please report this)",)
        return tuple(f"{each[:1].upper()}{each[1:].rstrip('.')}." for each in said)
