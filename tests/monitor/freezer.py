"""Freezing processes by a cgroup, as container runtimes and schedulers do it; where this user may make one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import wait_until

V1 = Path("/sys/fs/cgroup/freezer")
V2 = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


class Freezer:
    """A cgroup of its own; `seize` puts processes into it, `freeze` and `thaw` mean all of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.is_v1 = folder.parent == V1  # there a frozen process does not even die of SIGKILL

    def seize(self, *pids: int) -> None:
        for pid in pids:
            Path(self._folder, "cgroup.procs").write_text(str(pid))

    def freeze(self) -> None:
        if self.is_v1:
            Path(self._folder, "freezer.state").write_text("FROZEN")
            state = Path(self._folder, "freezer.state")
            wait_until(lambda: state.read_text().strip() == "FROZEN", what="the cgroup froze")
        else:
            Path(self._folder, "cgroup.freeze").write_text("1")
            events = Path(self._folder, "cgroup.events")
            wait_until(lambda: "frozen 1" in events.read_text(), what="the cgroup froze")

    def thaw(self) -> None:
        if self.is_v1:
            Path(self._folder, "freezer.state").write_text("THAWED")
        else:
            Path(self._folder, "cgroup.freeze").write_text("0")

    def close(self) -> None:
        self.thaw()
        parent = self._folder.parent / "cgroup.procs"
        for pid in Path(self._folder, "cgroup.procs").read_text().split():
            parent.write_text(pid)
        self._folder.rmdir()


def _make() -> Freezer | None:
    for root, switch in ((V1, "freezer.state"), *((root, "cgroup.freeze") for root in V2)):
        folder = root / f"holdfast-test-{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if os.access(folder / switch, os.W_OK):
            return Freezer(folder)
        folder.rmdir()
    return None


@pytest.fixture
def freezer() -> Iterator[Freezer]:
    """A cgroup that can be frozen; the test is skipped where there can be none."""
    found = _make()
    if found is None:
        pytest.skip("no cgroup freezer that this user may write")
    yield found
    wait_until(lambda: _closed(found), what="the cgroup's processes left it")


def _closed(freezer: Freezer) -> bool:
    try:
        freezer.close()
    except OSError:  # a process that ends just now
        return False
    return True
