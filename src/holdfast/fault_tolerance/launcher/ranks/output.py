"""What runs beside the ranks of one cycle because torchrun has it too: log tailers, timer watchdog, health check.

Source: torch.distributed.elastic; TORCHELASTIC_ENABLE_FILE_TIMER and TORCHELASTIC_HEALTH_CHECK_PORT turn the last two
on. What always holds: the end of a cycle waits at most `ENDS` seconds for them, since a tailer may wait for a
disk that does not answer, or for a reader of the launcher's output.
Does not cover: the events that torch's watchdog would log with `--event-log-handler`.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TextIO

from torch.distributed.elastic import timer
from torch.distributed.elastic.agent.server.health_check_server import create_healthcheck_server
from torch.distributed.elastic.multiprocessing import LogsDest
from torch.distributed.elastic.multiprocessing.tail_log import TailLog
from torch.distributed.launcher.api import LaunchConfig

from holdfast import in_time

logger = logging.getLogger("holdfast.launcher")
ENDS = 2.0
"""Seconds."""
WATCHDOG, WATCHDOG_FILE = "TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE"
HEALTH_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"


class Companions:
    """Torch's threads beside the ranks of one cycle."""

    def __init__(self) -> None:
        self._ends: list[Callable[[], object]] = []
        self._progress: Callable[[], int] | None = (
            None  # unix seconds of the last progress, for the health check
        )

    def prepare(self, environments: Mapping[int, dict[str, str]]) -> None:
        """Before the ranks start: the watchdog, whose file they are given, and the health check."""
        path = os.environ.get(WATCHDOG_FILE)
        if os.environ.get(WATCHDOG) == "1":
            path = path or os.path.join(tempfile.gettempdir(), f"watchdog_timer_{uuid.uuid4()}")
            run_id = environments[0]["TORCHELASTIC_RUN_ID"]
            watchdog = timer.FileTimerServer(file_path=path, run_id=run_id, max_interval=0.1, daemon=True)
            watchdog.start()
            self._progress = watchdog.get_last_progress_time
            self._ends.append(watchdog.stop)
        if path is not None:
            for environment in environments.values():
                environment[WATCHDOG_FILE] = path
        self._check_health()

    def _check_health(self) -> None:
        port = os.environ.get(HEALTH_PORT)
        if port is None:
            return
        if not port.isdecimal():
            logger.warning("%s=%s is no port: there is no health check", HEALTH_PORT, port)
            return
        alive = self._progress or (lambda: int(time.time()))
        server = create_healthcheck_server(alive_callback=alive, port=int(port), timeout=60)
        server.start()
        self._ends.append(server.stop)

    def tail(self, config: LaunchConfig, files: LogsDest, prefixes: dict[int, str] | None) -> None:
        """The ranks run: copy their output as `--tee` and the filters ask for."""
        outputs = ((files.tee_stdouts, sys.stdout), (files.tee_stderrs, sys.stderr))
        tailers = [TailLog(config.role, paths, stream, prefixes) for paths, stream in outputs if paths]
        filtered: list[TextIO] = []
        for name, paths, target in (
            ("duplicate_stdout_filters", files.tee_stdouts, getattr(files, "filtered_stdout", "")),
            ("duplicate_stderr_filters", files.tee_stderrs, getattr(files, "filtered_stderr", "")),
        ):
            needles: list[str] = getattr(config, name, None) or []  # since torch 2.10
            if needles and target:
                file = open(target, mode="w", errors="replace", buffering=1)  # noqa: SIM115
                filtered.append(file)
                has_any = _with_any(needles)
                tailers.append(TailLog(config.role, paths, file, prefixes, log_line_filter=has_any))
        for tailer in tailers:
            tailer.start()
            self._ends.append(tailer.stop)
        self._ends += [file.close for file in filtered]

    def end(self) -> None:
        """The ranks are gone: end the threads."""
        ends, self._ends, self._progress = self._ends, [], None
        if not ends:
            return
        try:
            in_time.within(ENDS, lambda: _call_all(ends))
        except in_time.TooLate:
            logger.warning("torch's log output is held up: what the ranks wrote last may be missing from it")


def _call_all(ends: list[Callable[[], object]]) -> None:
    for end in ends:
        try:
            end()
        except Exception as error:  # a full disk, for example
            logger.warning("the ranks' log output could not be completed: %s", error)


def _with_any(needles: list[str]) -> Callable[[str], bool]:
    return lambda line: any(needle in line for needle in needles)
