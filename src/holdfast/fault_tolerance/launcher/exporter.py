"""Shows the metrics of this launcher: in a file that node_exporter reads, and at a port, by prometheus-client.

A thread reads the journal's events and the newest boards every `INTERVAL` seconds, and writes the file; the port serves
what it has read. What always holds: the launcher only puts events into a queue, so a disk that is full or does not
answer, and scrapers that are slow, cost metrics and never supervision. The file is replaced as a whole, has mode 0644,
and stays after the end.

Does not cover: two launchers with one file, each of which replaces what the other has written; SIGKILL, after which the
file has the state before it, and a file whose name begins with a dot may be left.
"""

from __future__ import annotations

import glob
import logging
import os
import queue
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from socket import SHUT_RDWR
from typing import TYPE_CHECKING, Any

from holdfast.in_time import TooLate, within
from holdfast.journal.event import Event, decode
from holdfast.journal.reader import JournalUnreadable, newest_events
from holdfast.journal.writer import PREFIX, SUFFIX, Journal
from holdfast.private_file import write_file

from ..errors import ConfigError
from .console import best_effort
from .metrics import EVENT_KINDS, JobMetrics

if TYPE_CHECKING:
    from .command_line.ft_options import LauncherOptions
    from .driver import Driver
    from .ranks.boards import CycleBoards

logger = logging.getLogger("holdfast.launcher")
INTERVAL, REPORTS = 2.0, 30.0
"""Seconds between two readings, and between two searches for a straggler report."""
CAPACITY = 10_000
"""Events that wait for the thread. Later ones are lost."""
ANSWER, AT_THE_END, SLOWEST = 10.0, 5.0, 10.0
"""Seconds: of a filesystem before ranks start, and at the end; in which a scraper has to send and to read."""
THREADS = 40
"""Threads of this launcher from which on new connections are closed."""
TAIL = 600_000
"""Bytes at the end of rank 0's journal in which its newest straggler report is: one has less than half of them."""


class Exporter:
    """The metrics of one launcher, until `close`.

    Raises:
        ConfigError: The file or the port cannot be used, or prometheus-client is missing.
    """

    def __init__(
        self, options: LauncherOptions, run_id: str, boards: CycleBoards, driver: Driver, journal: Journal
    ) -> None:
        self._metrics = JobMetrics(run_id, journal.node)
        self._boards, self._driver, self._journal = boards, driver, journal
        self._events: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._began, self._searched = time.time(), 0.0
        self._report: Event | None = None  # rank 0's newest on stragglers
        self._ending = threading.Event()
        self._path = "" if options.metrics_file is None else os.path.abspath(options.metrics_file)
        self._read()
        try:
            within(ANSWER, self._replace_file)
        except (OSError, TooLate) as error:
            problem = f"{self._path} cannot be written: {_reason(error)}"
            raise ConfigError(f"--ft-metrics-file: {problem}") from None
        port = options.metrics_port
        self._server = None if port is None else _serve(self, options.metrics_address, port)
        journal.on_record = self._take
        self._thread = threading.Thread(target=self._run, name="holdfast-metrics", daemon=True)
        with best_effort("the metrics", journal.record):
            self._thread.start()

    def close(self) -> None:
        """Write the last state, and close the port."""
        self._ending.set()
        if self._server is not None:
            with suppress(OSError):
                self._server.socket.shutdown(
                    SHUT_RDWR
                )  # wakes its thread, which checks for it twice a second
            self._server.shutdown()
            self._server.server_close()
        if self._thread.is_alive():
            self._thread.join(AT_THE_END)

    def _take(self, kind: str, line: bytes) -> None:
        if kind in EVENT_KINDS and self._events.qsize() < CAPACITY:
            self._events.put(line)

    def _run(self) -> None:
        is_over = has_warned = False
        while not is_over:
            is_over = self._ending.wait(INTERVAL)
            with best_effort("the metrics", self._journal.record):
                self._read()
                try:
                    self._replace_file()
                except OSError as error:
                    if not has_warned:
                        why = f"{self._path}: {_reason(error)}. The job continues; this is logged once"
                        logger.warning("the metrics cannot be written to %s", why)
                    has_warned = True

    def _read(self) -> None:
        with suppress(queue.Empty):
            while event := decode(self._events.get_nowait(), self._journal.node):
                self._metrics.take(event)
        if self._ending.is_set():
            self._metrics.end()
        is_due = self._ending.is_set() or time.monotonic() - self._searched >= REPORTS
        if self._metrics.has_rank_0 and is_due:
            self._searched = time.monotonic()
            with suppress(OSError, JournalUnreadable):
                self._report = self._newest_report() or self._report
        boards, places = self._boards.latest, self._driver.places
        self._text = self._metrics.text(time.time(), time.monotonic(), boards, places, self._report)

    def _replace_file(self) -> None:
        if self._path:
            if os.path.exists(self._path) and not os.path.isfile(self._path):
                raise OSError(0, "it is no regular file")
            folder, name = os.path.split(self._path)
            write_file(os.path.realpath(folder), name, self._text, mode=0o644)

    def _newest_report(self) -> Event | None:
        paths = glob.glob(f"{glob.escape(os.path.dirname(self._journal.path))}/{PREFIX}*.rank-0{SUFFIX}")
        if not paths:
            return None
        found = newest_events(max(paths, key=os.path.getmtime), {"straggler_report"}, TAIL)
        return next((each for each in reversed(found) if each.t >= self._began), None)

    def collect(self) -> Iterable[Any]:
        """For prometheus-client."""
        from prometheus_client.parser import text_string_to_metric_families

        return text_string_to_metric_families(self._text)


def _serve(exporter: Exporter, address: str, port: int) -> Any:
    """The server at this address, which runs. Raises `ConfigError`."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        advice = "prometheus-client is not installed in this environment (pip install prometheus-client)"
        raise ConfigError(f"--ft-metrics-port: {advice}") from None
    registry = CollectorRegistry()
    registry.register(exporter)
    try:
        server: Any = start_http_server(port, address, registry)[0]
    except (OSError, RuntimeError) as error:
        problem = f"{address} port {port} cannot be used: {_reason(error)}"
        raise ConfigError(f"--ft-metrics-port: {problem}") from None
    server.RequestHandlerClass.timeout = SLOWEST
    server.verify_request = lambda *_: threading.active_count() < THREADS
    server.handle_error = lambda *_: None  # a scraper that is gone, or too slow
    return server


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error) or "its filesystem does not answer"
