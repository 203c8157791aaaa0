"""What the straggler callback measures: the model's `training_step`, as the trainer's strategy calls it.

A strategy that is Lightning's own calls it through the wrapped model, and DistributedDataParallel first gives all ranks
rank 0's buffers (those of batch norm, say). There the ranks wait for the one that comes last, and in a section around
all of it that one would look fast, and the others slow. So the section begins where the model's own method does.
Where the model is not wrapped, and of a strategy with a way of its own (NeMo's), the section is the whole of the
strategy's method.

What always holds: outside of a call the model has no attribute of ours, so that it can be pickled and copied.
Does not cover: waiting within the method: weights that are gathered (FSDP), the backward of manual optimization.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.straggler.detector import Detector

from .each_step import EachStep
from .framework import frameworks
from .straggler_findings import SECTION

_MISSING = object()


def measure(strategy: Any, each: EachStep) -> None:
    """From now on measure each call as a section, while the detector is initialised."""
    known = [module.strategies.Strategy.training_step for module in frameworks()]
    own_way = type(strategy).training_step not in known
    call = each.call

    def remeasure() -> None:
        # In a call: before the first one, Lightning has not wrapped the model yet.
        call.session = session = Detector._session
        call.measured = call.inner = None
        call.arm()
        if session is None:
            return
        if not own_way and strategy.model is not strategy.lightning_module:
            call.inner = _Within(strategy)
            return
        call.measured = session.sections.direct(SECTION)
        if call.measured is None:
            call.inner = _section

    each.measures(remeasure, Detector)


def _section(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not Detector.initialized:
        return original(*args, **kwargs)
    with Detector.detection_section(SECTION):
        return original(*args, **kwargs)


class _Within:
    """Measures the model's method only, while the strategy's runs."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def __call__(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        model = self._strategy.lightning_module
        own = vars(model)
        before = own.get(SECTION, _MISSING)  # a compiled model has one
        method = model.training_step

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
