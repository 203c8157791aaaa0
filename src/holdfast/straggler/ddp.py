"""How long each backward of a DistributedDataParallel waits for the other ranks: told by a communication hook.

Most of a gradient's all-reduce is hidden behind the rest of the backward. What is not, from the moment the last bucket
of gradients is ready until its all-reduce is done, is waiting: for the network, and for the rank that comes last.

What always holds: gradients are those of a model without the hook: averaged by multiplication with 1 / ranks, then
summed. After `Detector.shutdown` the hook measures nothing.
Does not cover: GPUs, where an all-reduce is done long after the host has launched it; kernels tell there. With
`gradient_as_bucket_view=True` and gradients that are kept from step to step, DistributedDataParallel divides instead:
where the number of ranks is no power of two, a gradient's last bit may differ.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from .sections import Sections

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

SECTION = "ddp all-reduce"


class Hook:
    """The communication hook of one model."""

    def __init__(self, model: DistributedDataParallel | None) -> None:
        self._model = weakref.ref(model) if model is not None else lambda: None
        self._sections: Sections | None = None
        self._add: Callable[[int], None] | None = None

    def __reduce__(self) -> tuple[type[Hook], tuple[None]]:
        """A model can be copied and saved with its hook; the copy's is registered nowhere."""
        return Hook, (None,)

    def tell(self, sections: Sections) -> None:
        """Measure for these sections from now on. ValueError if they have one of the name that computes."""
        self._add = sections.waits(SECTION)
        self._sections = sections

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """What DistributedDataParallel does with a bucket; the last one's wait is noted."""
        import torch.distributed as dist

        model, gradients = self._model(), bucket.buffer()
        group = model.process_group if model is not None else dist.group.WORLD  # it can change
        ranks = dist.get_world_size(group)
        if gradients.is_sparse:
            gradients.div_(ranks)
        else:
            gradients.mul_(1 / ranks)
        ready = perf_counter_ns()
        work = dist.all_reduce(gradients, group=group, async_op=True)
        add = self._measures() if bucket.is_last() and not gradients.is_cuda else None

        def done(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            reduced = future.value()[0]  # raises if the all-reduce failed, which is no wait
            if add is not None:
                add(perf_counter_ns() - ready)
            return reduced

        return work.get_future().then(done)  # type: ignore[no-any-return]

    def _measures(self) -> Callable[[int], None] | None:
        if self._sections is not None and self._sections.closed:
            self._sections = self._add = None
        return self._add


_hooks: weakref.WeakKeyDictionary[Any, Hook] = weakref.WeakKeyDictionary()


def watch(model: DistributedDataParallel, sections: Sections) -> None:
    """Measure the waits of `model` for these sections. ValueError if it cannot be."""
    loaded = sys.modules.get("torch.nn.parallel")
    if loaded is None or not isinstance(model, loaded.DistributedDataParallel):
        raise ValueError(
            f"watch_ddp: model must be a torch DistributedDataParallel, not {type(model).__name__}; where something is "
            "wrapped around it, give what is inside"
        )
    if model in _hooks:
        _hooks[model].tell(sections)
        return
    hook = Hook(model)
    hook.tell(sections)
    _register(model, hook)
    _hooks[model] = hook


def _run(hook: Hook, bucket: Any) -> Any:
    """What torch calls; it looks at the annotations of what it is given, and wants its own types or none."""
    return hook(bucket)


_run.__annotations__ = {}


def _register(model: DistributedDataParallel, hook: Hook) -> None:
    # torch notes a hook in a list before it refuses it, and keeps the list of a model that was copied.
    noted = getattr(model, "_comm_hooks", None)
    before = [one for one in noted or () if not isinstance(one[1], Hook)]
    try:
        if before:
            raise RuntimeError(f"it has {getattr(before[0][0], '__qualname__', 'one')}")
        if getattr(model, "_use_python_reducer", False):
            raise RuntimeError("torch.compile reduces its gradients one by one")
        model.register_comm_hook(hook, _run)
    except RuntimeError as error:
        if noted is not None:
            noted[:] = before
        raise ValueError(
            f"watch_ddp: the model has a communication hook already, or torch allows none ({error}); call it once for "
            "each model, before the first backward, and without another hook"
        ) from error
