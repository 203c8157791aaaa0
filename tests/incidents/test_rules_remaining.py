"""What keeps the process of a rank that is at its exit, from its stacks and children."""

from __future__ import annotations

import pytest

from holdfast.incidents.evidence import Child, Frame, Process, RankEvidence, Thread
from holdfast.incidents.rules.signatures import activity

LIB = "/usr/lib/python3.11"
SHUTDOWN = (Frame("_shutdown", f"{LIB}/threading.py", 1590),)
JOIN = (
    Frame("wait", f"{LIB}/multiprocessing/popen_fork.py", 43),
    Frame("_exit_function", f"{LIB}/multiprocessing/util.py", 360),
)
UPLOAD = (Frame("upload", "/job/train.py", 12), Frame("run", f"{LIB}/threading.py", 982))


def main(*frames: Frame) -> Thread:
    return Thread("MainThread", frames, main=True)


@pytest.mark.parametrize(
    ("threads", "children", "expected"),
    [
        (
            [main(*SHUTDOWN), Thread("up", UPLOAD, daemon=False), Thread("log", UPLOAD, daemon=True)],
            (),
            "is at its exit: it waits for thread 'up', which is in job/train.py:12 upload()",
        ),
        (
            [main(*JOIN)],
            (Child(71, "python worker.py"),),
            "is at its exit: it waits for its child process 71 (python worker.py)",
        ),
        (
            [main(*SHUTDOWN), *(Thread(str(n), UPLOAD, daemon=False) for n in range(5))],
            (),
            "is at its exit: it waits for thread '0', which is in job/train.py:12 upload(), "
            "thread '1', which is in job/train.py:12 upload(), thread '2', which is in job/train.py:12 upload() "
            "and 2 more",
        ),
        (
            [main(*SHUTDOWN)],
            (),
            "is at its exit, in python3.11/threading.py:1590 _shutdown()",
        ),
        ([main(*UPLOAD)], (), "is in job/train.py:12 upload()"),
        ([main()], (), "is at its exit: no Python frame is left"),
        ([], (), "is at an unknown place"),
    ],
)
def test_kept_by_is_named(threads: list[Thread], children: tuple[Child, ...], expected: str) -> None:
    rank = RankEvidence(0, 0, 7, "a", process=Process(children=children), stacks=tuple(threads))
    assert activity(rank).text == expected
