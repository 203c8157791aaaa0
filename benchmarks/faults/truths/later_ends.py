"""Written last, unseen by whoever wrote the rules: more ways in which a rank, a loader's worker or a launcher ends."""

from __future__ import annotations

from functools import partial

from benchmarks.faults import kind
from benchmarks.faults.kind import NODE, TRAINING

_later = partial(kind.Kind, later=True, hangs=False)

LATER_ENDS = (
    _later(
        "bus_error",
        "A mapped file is shorter than it was.",
        "a page beyond the end of a file is read by way of mmap: SIGBUS",
        "signal",
        TRAINING,
    ),
    _later(
        "told_to_end",
        "Somebody sends SIGTERM to one rank.",
        "SIGTERM to itself",
        "signal",
        ("init", "step", "collective", "checkpoint"),
    ),
    _later(
        "interrupted",
        "Somebody sends SIGINT to one rank, which Python turns into KeyboardInterrupt.",
        "SIGINT to itself, with Python's own handler",
        "exception",
        TRAINING,
        also="signal",
        why="Python says KeyboardInterrupt and then ends itself by the signal",
    ),
    _later(
        "recursion",
        "A function calls itself without an end.",
        "RecursionError",
        "exception",
        ("init", "step", "validation", "checkpoint"),
    ),
    _later(
        "no_space",
        "The checkpoint's filesystem is full.",
        "/dev/full in the place of the checkpoint's file: OSError 28",
        "exception",
        ("checkpoint",),
    ),
    _later(
        "no_descriptors",
        "A rank has no file descriptor left.",
        "RLIMIT_NOFILE is lowered to what is open, then a file is opened: OSError 24",
        "exception",
        ("step", "validation", "checkpoint"),
    ),
    _later(
        "cpp_exception",
        "A C++ library throws what nobody catches.",
        "std::terminate, called by way of ctypes",
        "signal",
        ("init", *TRAINING),
    ),
    _later(
        "launcher_lost",
        "The launcher of one node is killed with -9.",
        "from outside; its ranks end with it",
        "node_lost",
        TRAINING,
        also="elsewhere",
        why="its ranks end with it and break the connections at once; that nobody is there any more shows only later",
        blames=NODE,
        layouts=("1+1", "2+2", "1+1", "2+1"),
    ),
    _later(
        "peers_time_out",
        "A rank sleeps, and torch's own limit of the collective ends its peers first.",
        "time.sleep, and a process group with a timeout of 1.5 s",
        "user_code",
        ("collective", "validation", "checkpoint"),
        hangs=True,
        layouts=("2", "3", "2+2"),
    ),
)
