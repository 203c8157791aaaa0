"""Written last, unseen by whoever wrote the rules: more ways not to agree about a collective."""

from __future__ import annotations

from functools import partial

from benchmarks.faults import kind

_MORE = ("3", "4", "2+2", "3")
_later = partial(kind.Kind, later=True, layouts=_MORE, hangs=None)

LATER_COLLECTIVES = (
    _later(
        "other_order",
        "One rank makes two collectives in the other order.",
        "all-reduce and broadcast, changed over",
        "mismatched_collective",
        ("collective", "validation", "checkpoint"),
    ),
    _later(
        "other_type",
        "One rank reduces another type of number.",
        "float32 where the others have float64",
        "mismatched_collective",
        ("collective", "validation", "checkpoint"),
    ),
    _later(
        "never_received",
        "One rank does not receive what another sends to it.",
        "each sends to the next one; the receiver leaves its recv out",
        "mismatched_collective",
        ("collective", "validation", "checkpoint"),
        also="missing_collective",
        why="it is in another collective, and never came to the receive for which its neighbour waits",
    ),
    _later(
        "never_sent",
        "One rank does not send what another waits for.",
        "each sends to the next one; the sender leaves its send out",
        "mismatched_collective",
        ("collective", "validation", "checkpoint"),
        also="missing_collective",
        why="it is in another collective, and never came to the send for which its neighbour waits",
    ),
    _later(
        "uneven_data",
        "One rank has less data, leaves the loop early and waits at the end.",
        "its last step is left out; the others are in their last all-reduce",
        "mismatched_collective",
        ("collective",),
        also="missing_collective",
        why="it waits in the barrier at the end, and never came to the last all-reduce",
    ),
)
