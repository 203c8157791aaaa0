"""What the straggler callback measures: the model's `training_step`, as the trainer's strategy calls it.

A strategy that is Lightning's own calls it through the wrapped model, and DistributedDataParallel first gives all ranks
rank 0's buffers (those of batch norm, say). There the ranks wait for the one that comes last, and in a section around
all of it that one would look fast, and the others slow. So the section begins where the model's own method does.
Of a strategy with a way of its own (NeMo's), the section is the whole of the strategy's method.

What always holds: outside of a call the model has no attribute of ours, so that it can be pickled and copied.
Does not cover: waiting within the method: weights that are gathered (FSDP), the backward of manual optimization.
"""

from __future__ import annotations

from typing import Any

from holdfast.straggler.detector import Detector

from .framework import frameworks
from .patches import Patches
from .straggler_findings import SECTION

_MISSING = object()


def measure(strategy: Any, patches: Patches) -> None:
    """Until `patches` are undone, measure each call as a section, while the detector is initialised."""
    known = [module.strategies.Strategy.training_step for module in frameworks()]
    patches.wrap(strategy, SECTION, _Within(strategy) if type(strategy).training_step in known else _section)


def _section(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not Detector.initialized:
        return original(*args, **kwargs)
    with Detector.detection_section(SECTION):
        return original(*args, **kwargs)


class _Within:
    """Measures the model's method only, while the strategy's runs."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def __call__(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        model = self._strategy.lightning_module
        method, own = model.training_step, vars(model)
        before = own.get(SECTION, _MISSING)  # a compiled model has one

        def measured(*inner: Any, **named: Any) -> Any:
            return _section(method, inner, named)

        own[SECTION] = measured
        try:
            return original(*args, **kwargs)
        finally:
            if before is _MISSING:
                own.pop(SECTION, None)
            else:
                own[SECTION] = before
