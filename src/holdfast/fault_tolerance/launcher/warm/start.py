"""Standbys in the place of the processes that torch's agent would start.

torch makes one handler for each rank, which opens its output files and starts the process; only that last step is
replaced, while the block of :meth:`WarmStart.instead_of_cold` runs. A rank that cannot be had warm, for whatever
reason, is started by torch as ever.
Does not cover: a torch whose agent has no such handlers; then every rank starts cold, and it is said once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from subprocess import Popen
from typing import Any

from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from .pool import GOES, Pool, went
from .zygote_process import Standby

logger = logging.getLogger("holdfast.launcher")
HOOK = "get_subprocess_handler"


class WarmStart:
    """The ranks of one cycle after the other; `pool` is None where ranks always start cold."""

    def __init__(self, pool: Pool | None) -> None:
        self.pool = pool
        self._taken: dict[int, Standby] = {}
        self._commands: dict[int, tuple[Any, Any]] = {}
        self.warm: set[int] = set()
        """Local ranks of this cycle that were standbys."""

    @property
    def pids(self) -> set[int]:
        """Processes that belong to no rank (yet)."""
        return self.pool.pids if self.pool else set()

    @contextmanager
    def instead_of_cold(self) -> Iterator[None]:
        """Inside, what torch's agent starts are standbys, if there are any."""
        self._taken, self._commands, self.warm = {}, {}, set()
        original = getattr(api, HOOK, None)
        if self.pool is None:
            yield
            return
        self.pool.hold()
        why = self.pool.why_not() if original else "this torch starts ranks in another way than was expected"
        if why:
            self.pool.zygotes.say(why)
            yield
            return
        setattr(api, HOOK, self._handler(self.pool))
        try:
            yield
        finally:
            setattr(api, HOOK, original)

    def _handler(self, pool: Pool) -> type[SubprocessHandler]:
        warm = self

        class Handler(SubprocessHandler):
            """torch's handler of one rank, whose process may be a standby."""

            def _popen(self, args: Any, env: Any) -> Any:
                files = {1: self._stdout, 2: self._stderr}
                streams = {number: file.fileno() for number, file in files.items() if file}
                standby = pool.take(args, env, streams)
                if standby is None:
                    return super()._popen(args, env)
                warm._taken[self.local_rank_id] = standby
                warm._commands[self.local_rank_id] = args, env
                return standby.process

        return Handler

    def confirm(self, handlers: Mapping[int, SubprocessHandler]) -> dict[int, Popen[bytes]]:
        """The ranks' processes: standbys that go, and in the place of one that does not, a cold start."""
        until = time.monotonic() + GOES
        for local_rank, standby in self._taken.items():
            if went(standby, until):
                self.warm.add(local_rank)
                continue
            logger.warning("warm start: the standby for local rank %d did not go: it starts cold", local_rank)
            handler = handlers[local_rank]
            handler.proc = SubprocessHandler._popen(handler, *self._commands[local_rank])
        return {local_rank: handler.proc for local_rank, handler in handlers.items()}
