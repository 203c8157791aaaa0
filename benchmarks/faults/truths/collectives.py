"""Ranks that do not agree about their collectives. Three ranks or more: of two, nobody can say which is the odd one.

On gloo most of these end with an error, often of a rank that did nothing wrong, where the odd rank's message is longer
than expected, and otherwise hang.
"""

from __future__ import annotations

from benchmarks.faults.kind import Kind

_MORE = ("3", "4", "2+2", "3")
_ODD = "the odd rank is in another collective, and so not in the one in which the others wait"

COLLECTIVES = (
    Kind(
        "skipped",
        "One rank leaves out an all-reduce, and comes to the next collective.",
        "the call is left out once",
        "mismatched_collective",
        ("collective", "validation", "checkpoint"),
        also="missing_collective",
        why=_ODD,
        layouts=_MORE,
        hangs=None,
    ),
    Kind(
        "one_more",
        "One rank takes part in an all-reduce that no other rank makes.",
        "one more call, of another size",
        "mismatched_collective",
        ("init", "collective", "validation", "checkpoint"),
        layouts=_MORE,
        hangs=None,
    ),
    Kind(
        "other_operation",
        "One rank broadcasts where the others reduce.",
        "dist.broadcast from itself instead of dist.all_reduce",
        "mismatched_collective",
        ("init", "collective", "validation", "checkpoint"),
        layouts=_MORE,
        hangs=None,
    ),
    Kind(
        "other_size",
        "One rank reduces a tensor of another size.",
        "four times as many elements",
        "mismatched_collective",
        ("init", "collective", "validation"),
        layouts=_MORE,
        hangs=None,
    ),
    Kind(
        "left_out_of_group",
        "A member of a group does not come to the group's collective, and waits in one of all ranks.",
        "a group of its own; the member goes on to the next barrier",
        "missing_collective",
        ("collective", "validation", "checkpoint", "shutdown"),
        also="mismatched_collective",
        why=_ODD,
        layouts=_MORE,
    ),
)
