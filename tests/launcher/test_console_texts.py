"""The launcher's blocks on hangs and failures, against a golden file: a change of wording is a diff to read.

`python -m tests.launcher.test_console_texts` writes the golden file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.fault_tolerance.launcher import console
from holdfast.fault_tolerance.launcher.exit_codes import RankExit
from holdfast.fault_tolerance.launcher.ranks.failures import Failure, block

GOLDEN = Path(__file__).with_name("console_texts.txt")


def rank(number: int, **fields: Any) -> dict[str, Any]:
    """A rank in a verdict of the monitor."""
    return {
        "rank": number, "pid": 4000 + number, "cycle": 2, "where": "step", "finished": False, "connected": True,
        "heartbeats": True, "state": "S", "for": 31.0, "step": 4181, **fields,
    }  # fmt: skip


def verdict(**fields: Any) -> dict[str, Any]:
    """A verdict of the monitor on rank 1."""
    text = "Section 'data_loading' did not end. Waited 31.00 seconds."
    found = {"text": text, "limit": 30.0, "reason": "section", "where": "data_loading > read", "state": "D"}
    return rank(1, **{**found, **fields})


def ended(number: int, status: int, at: float, message: str = "", *lines: str) -> Failure:
    """A rank that failed, with the message of its ValueError if there is one."""
    found = RankExit(number, number, 4000 + number, status, at)
    kept = {
        "type": "ValueError",
        "message": message,
        "traceback": "Traceback:\n  in step",
        "pid": found.pid,
        "at": at,
    }
    return Failure(found, kept if message else None, lines)


def texts() -> str:
    """All blocks, each with its title."""
    others = [
        *(rank(each) for each in (0, 2, 3, 4, 5)),
        rank(6, where="", step=None, connected=False, heartbeats=0),
    ]
    crashed = [ended(3, 1, 5.0, "bad batch"), ended(0, -6, 5.25), ended(1, -9, 5.5)]
    blocks = {
        "hang": console.hang("gpu-7", verdict(others=others, wait_channel="nfs_wait", signal="SIGKILL")),
        "hang with a verdict": console.hang("gpu-7", verdict(sentence="Rank 1 is blocked.", confidence="high")),
        "hang before its deadline": console.hang("gpu-7", verdict(reason="early")),
        "past its timeout as well": [console.overdue("gpu-7", verdict())],
        "recovered": [console.recovered("gpu-7", verdict())],
        "failure before a restart": block(crashed, "gpu-7", 2, whole=False),
        "failure at the end": block(crashed, "gpu-7", 2, whole=True),
        "failure with stderr": block([ended(3, 3, 5.0, "", "loading", "no such file")], "gpu-7", 2, whole=True),
        "failure of many": block([ended(each, 1, 5.0 + each / 10) for each in range(12)], "gpu-7", 0, whole=False),
    }  # fmt: skip
    return "\n".join(
        f"== {title}\n" + "".join(f"{line}\n" for line in lines) for title, lines in blocks.items()
    )


def test_console_blocks_are_the_golden_ones() -> None:
    assert texts() == GOLDEN.read_text()


if __name__ == "__main__":
    GOLDEN.write_text(texts())
