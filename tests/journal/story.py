"""A journal for tests, told in a few words: who says what, and when."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from holdfast.journal.event import Event, encode

START = 1_800_000_000.0


class Story:
    """Events of one or more nodes; `at` is seconds since the beginning, on every clock unless a node's is `ahead`."""

    def __init__(self, **ahead: float) -> None:
        self.ahead = ahead
        self.told: dict[str, list[Event]] = {}

    def tell(self, at: float, kind: str, /, node: str = "a", **fields: Any) -> Story:
        event = Event(kind, START + at + self.ahead.get(node, 0.0), 100.0 + at, node, fields, node)
        self.told.setdefault(node, []).append(event)
        return self

    def cycle(self, at: float, number: int, node: str = "a", ranks: int = 2, first: int = 0) -> Story:
        """A cycle begins with this node's ranks."""
        self.tell(at, "cycle_start", node, cycle=number, world_size=ranks)
        for rank in range(first, first + ranks):
            fields = {"rank": rank, "local_rank": rank, "pid": pid(number, rank)}
            self.tell(at + 0.1, "rank_start", node, cycle=number, **fields)
        return self

    def exit(
        self, at: float, cycle: int, rank: int, node: str = "a", code: int | None = None, signal: str = ""
    ) -> Story:
        meaning = f"killed by {signal}" if signal else f"exit code {code}"
        fields = {"exitcode": code, "signal": signal or None, "meaning": meaning}
        return self.tell(at, "rank_exit", node, cycle=cycle, rank=rank, pid=pid(cycle, rank), **fields)

    def restart(
        self, at: float, to: int, node: str = "a", used: int = 1, reason: str = "a rank failed"
    ) -> Story:
        self.tell(at, "stop", node, cycle=to - 1, reason=reason)
        return self.tell(at, "restart", node, cycle=to, restarts_used=used, max_restarts=3, reason=reason)

    @property
    def events(self) -> list[Event]:
        """All of them, as the reader merges them."""
        from holdfast.journal.reader import read_run

        with tempfile.TemporaryDirectory() as folder:
            return read_run(str(write(self, Path(folder))))


def write(story: Story, run_dir: Path) -> Path:
    """The run directory with the journals of this story."""
    run_dir.mkdir(parents=True, exist_ok=True)
    for node, events in story.told.items():
        write_journal(run_dir / f"journal-{node}.jsonl", events)
    return run_dir


def write_journal(path: Path, events: Iterable[Event]) -> None:
    """A node's journal with these events."""
    lines = (encode(each.kind, each.fields, t=each.t, mono=each.mono, node=each.node) for each in events)
    path.write_bytes(b"".join(lines))


def pid(cycle: int, rank: int) -> int:
    return 1000 * (cycle + 1) + rank
