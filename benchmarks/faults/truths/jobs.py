"""The start, the end, the checkpoint's storage, everybody at once, and whole nodes."""

from __future__ import annotations

from types import MappingProxyType

from benchmarks.faults.kind import COUNTED, NOBODY, NODE, TRAINING, Kind

_CULPRIT_ELSEWHERE = ("1+1", "2+2", "1+1", "2+1")

JOBS = (
    Kind(
        "wrong_port",
        "One rank looks for the others at a port where nobody is.",
        "MASTER_PORT is changed in its environment before init_process_group",
        "startup",
        ("init",),
        also="network",
        why="it has not met the others, as it waits for an answer that never comes",
    ),
    Kind(
        "wrong_world_size",
        "One rank believes in one rank more than there is.",
        "WORLD_SIZE is changed in its environment before init_process_group",
        "startup",
        ("init",),
        also="missing_collective",
        why="it waits to meet the rank that is not there, and so never comes to the first collective",
    ),
    Kind(
        "thread_at_exit",
        "A rank is done, and a thread of its own is not.",
        "a thread that is no daemon sleeps",
        "shutdown",
        ("shutdown",),
    ),
    Kind(
        "exit_handler",
        "A rank is done, and what it does at its exit never ends.",
        "atexit, time.sleep",
        "shutdown",
        ("shutdown",),
        also="user_code",
        why="the handler that sleeps is the program's own code",
    ),
    Kind(
        "storage",
        "A checkpoint's file does not let itself be written or read.",
        "a FIFO in its place: without a reader while saving, without a writer while loading",
        "checkpoint_io",
        ("init", "checkpoint"),
        at=MappingProxyType({"init": ("checkpoint_io", "startup")}),
        variants=(("checkpoint", COUNTED),),
    ),
    Kind(
        "slow_storage",
        "The storage takes the checkpoint's bytes one by one.",
        "a pipe whose reader takes a byte five times a second",
        "checkpoint_io",
        ("checkpoint",),
    ),
    Kind(
        "all_slow",
        "Every rank still moves, but slower than the limit allows.",
        "400 small turns of computing, sleeping and an all-reduce in one step",
        "slow",
        ("step", "validation", "checkpoint"),
        blames=NOBODY,
    ),
    Kind(
        "node_lost",
        "A node stands still for good, as one without power.",
        "its launcher, monitor and ranks are stopped at once, and stay so: nobody is told, no connection closed",
        "node_lost",
        TRAINING,
        blames=NODE,
        hangs=False,
        layouts=_CULPRIT_ELSEWHERE,
    ),
    Kind(
        "other_node",
        "A rank of one node sleeps, and the limit of the other node is passed first.",
        "the limits of the node that sleeps are three times as long",
        "user_code",
        TRAINING,
        layouts=_CULPRIT_ELSEWHERE,
    ),
)
