"""The little of torch.cuda that measuring needs, taken from a torch that the training has loaded; never loaded here.

What always holds: no CUDA call is made before the training itself initialised CUDA in this process. An earlier one
would read `CUDA_VISIBLE_DEVICES` too early, and break every process that is forked later.
Does not cover: CUDA that is used without torch.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol, cast


class Stream(Protocol):
    """A queue of GPU work."""

    @property
    def device_index(self) -> int:
        """The GPU."""


class Event(Protocol):
    """A moment in a stream, as `torch.cuda.Event(enable_timing=True)`."""

    def record(self, stream: Any) -> None:
        """Take the moment when the stream gets here."""

    def query(self) -> bool:
        """Whether it got there. Does not wait."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this moment to that one, both of which have passed."""


class Cuda(Protocol):
    """What a source asks of CUDA."""

    def usable(self) -> bool:
        """Whether this process has initialised CUDA, and its current stream is not being captured into a graph."""

    def stream(self) -> Stream:
        """The current stream of this thread."""

    def event(self) -> Event:
        """A new event, of no device until it is recorded."""


class TorchCuda:
    """`Cuda` by torch."""

    def usable(self) -> bool:
        """See `Cuda`. May raise what torch raises."""
        cuda = _loaded()
        return cuda is not None and cuda.is_initialized() and not cuda.is_current_stream_capturing()

    def stream(self) -> Stream:
        """See `Cuda`. Only where `usable`."""
        return cast(Stream, _loaded().current_stream())

    def event(self) -> Event:
        """See `Cuda`. Only where `usable`."""
        return cast(Event, _loaded().Event(enable_timing=True))


def _loaded() -> Any:
    """torch.cuda; None if torch is not loaded, or is just being loaded."""
    return getattr(sys.modules.get("torch"), "cuda", None)
