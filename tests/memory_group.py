"""A memory control group for tests; they are skipped where this user may make none."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import wait_until

ROOTS = ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max"))
"""Of both versions, with the file of the limit."""


@pytest.fixture
def group() -> Iterator[Path]:
    """The folder of a group without a limit; see `set_limit`."""
    for root, limit in ROOTS:
        folder = root / f"holdfast-test-{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / limit).exists():
            yield folder
            inside = folder / "cgroup.procs"
            wait_until(lambda inside=inside: not inside.read_text(), what="the cgroup's processes left it")
            folder.rmdir()
            return
        folder.rmdir()
    pytest.skip("no memory control group that this user may make")


def set_limit(group: Path, size: int) -> None:
    """Let the processes in it have so many bytes."""
    next(group / name for _, name in ROOTS if (group / name).exists()).write_text(str(size))


def anonymous(group: Path) -> int:
    """Bytes of the processes in it that the kernel cannot give up: without the file cache."""
    found = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(found.get("anon") or found["total_rss"])
