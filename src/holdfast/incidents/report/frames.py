"""Which calls of a stack a person wants to see: those in the program's own code, and the innermost ones. Pure.

Own code is a file that is not Python's, not of an installed package, not Holdfast's, and not made up (`<string>`).

Does not cover: a program that is itself an installed package: nothing of it is marked then, and the stack is all there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..evidence import Frame

_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3[\d.t]*/|^<")
_SOURCE_TREE = re.compile(
    r"(^|/)torch/(distributed|nn|autograd|optim|utils|cuda|multiprocessing|_\w+)(/|\.py$)"
    r"|/holdfast/(callbacks|fault_tolerance|incidents|integrations|ptl_resiliency|straggler|testing)/"
)
"""Of torch and of Holdfast where they are not installed, but built or run in place."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One line of a stack: a call, or how many calls were left out here."""

    frame: Frame | None
    own: bool = False
    left_out: int = 0


def is_own(frame: Frame) -> bool:
    """Whether this call is in the program's own code, as far as its file tells."""
    file = frame.file
    if not file or frame.native:
        return False
    return not (_LIBRARY.search(file) or _SOURCE_TREE.search(file))


def own_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost call in the program's own code."""
    return next((frame for frame in frames if is_own(frame)), None)


def place(frames: Sequence[Frame]) -> Frame | None:
    """The call that says best where it is: the innermost of the program's own, else the innermost Python call."""
    return (
        own_frame(frames)
        or next((frame for frame in frames if not frame.native), None)
        or next(iter(frames), None)
    )


def waits_in(frames: Sequence[Frame]) -> Frame | None:
    """The outermost call that the program's own code makes into a library: what it waits in, by a name one knows."""
    for index, frame in enumerate(frames):
        if is_own(frame):
            inside = [each for each in frames[:index] if not each.native]
            return inside[-1] if inside else None
    return next((frame for frame in frames if not frame.native), None)


def shortened(frames: Sequence[Frame], most: int) -> list[Shown]:
    """At most `most` lines: the innermost calls and the program's own, the innermost first, gaps counted."""
    most = max(most, 3)
    chosen: set[int] = set()
    order = [0, *(index for index, frame in enumerate(frames) if is_own(frame)), *range(len(frames))]
    for index in order:
        if index < len(frames) and len(_lines(frames, chosen | {index})) <= most:
            chosen.add(index)
    return _lines(frames, chosen)


def _lines(frames: Sequence[Frame], chosen: set[int]) -> list[Shown]:
    found: list[Shown] = []
    for index, frame in enumerate(frames):
        if index in chosen:
            found.append(Shown(frame, own=is_own(frame)))
        elif found and found[-1].frame is None:
            found[-1] = Shown(None, left_out=found[-1].left_out + 1)
        else:
            found.append(Shown(None, left_out=1))
    return found
