"""Processes that have armed themselves as the launcher's prologue arms a rank, for tests that ask them."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.fault_tolerance.launcher.ranks.rank_environment import PROLOGUE
from holdfast.fault_tolerance.processes import proc
from holdfast.incidents.capture import stack_request
from holdfast.incidents.capture.stack_request import StackReply, request
from tests.processes import Spawned, Spawner, wait_until

START = f"""
import sys
sys.path.insert(0, {PROLOGUE!r})
import optimizer_hook, introspection, os
sys.path.pop(0)
for name in ("optimizer_hook", "introspection", "rank_answer"):
    del sys.modules[name]
introspection.arm(os.environ, optimizer_hook._after_import)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def begin_thread():
    introspection.connect(os.environ)
"""


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper thread is waited for however long it waits for a core: the signal would come after 60 ms."""
    for name in ("FIRST_WORD", "LAST_WORD", "WITHOUT_SIGNAL", "RECORDER"):
        monkeypatch.setattr(stack_request, name, 30.0)


def fill(path: Path) -> None:
    """This file takes all that is left of its disk."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(512)):
            pass


class Rank:
    """An armed process; `folder` holds what it leaves."""

    def __init__(self, spawn: Spawner, folder: Path, text: str, **env: str | None) -> None:
        self.folder = folder
        self.prefix = str(folder / "0")
        folder.mkdir(exist_ok=True)
        environment: dict[str, str | None] = {"FT_RANK_MONITOR_IPC_SOCKET": f"{self.prefix}.board", **env}
        script = folder / "rank.py"
        script.write_text(START + text)
        self.process: Spawned = spawn.python(script, env=environment)

    def ready(self) -> Rank:
        """After it has said so."""
        self.process.wait_for(r"ready")
        return self

    def armed(self) -> dict[str, Any] | None:
        """What it says that it has armed."""
        path = Path(f"{self.prefix}.armed")
        return json.loads(path.read_text()) if path.exists() else None

    def with_thread(self) -> Rank:
        """After its helper thread has begun."""
        wait_until(lambda: (self.armed() or {}).get("thread"), what="the helper thread")
        return self

    def ask(self, seconds: float = 60.0) -> StackReply:
        """Its answer now; checks that it does not wait much longer than it may."""
        started = proc.start_time(self.process.pid) or 0
        begun = time.monotonic()
        found = request(self.prefix, self.process.pid, started, begun + seconds)
        assert time.monotonic() - begun < seconds + 60
        return found

    def within(self, *functions: str) -> StackReply:
        """Its answer once its main thread is in these, the innermost first: it may be on its way there."""

        def found() -> StackReply | None:
            reply = self.ask()
            is_there = reply.stacks and self.functions(reply)[: len(functions)] == list(functions)
            return reply if is_there else None

        return wait_until(found, what=f"it is in {functions}")

    def functions(self, found: StackReply) -> list[str]:
        """Of the main thread, the innermost first."""
        assert found.stacks and found.stacks[0].main, found
        return [frame.function for frame in found.stacks[0].frames]
