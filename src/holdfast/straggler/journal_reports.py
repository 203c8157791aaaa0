"""Straggler reports into the journal: what the rank that has a report writes to the run directory.

What always holds: writing neither waits for the disk nor raises; a run directory that is missing, full or hangs costs
the records of reports and one line on standard error. Each rank has a file of its own beside those of the launchers,
`journal-<node>.rank-<rank>.jsonl`, and appends to it in each restart cycle.

Does not cover: reports of the last second before a rank is killed, which may be on their way to the disk.
"""

from __future__ import annotations

import atexit
import errno
import os
from typing import Any

from holdfast.journal.run_dir import RunDirError, make_private
from holdfast.journal.writer import Journal

from .record import KIND, record_of
from .report import Report

WAITING = 8
"""Reports that wait while the disk does not take them: each may have the scores of thousands of ranks."""


class ReportLog:
    """Where one rank's reports go. Nothing is made, and no thread runs, before the first report."""

    def __init__(self, run_dir: str, node: str, rank: int, cycle: int = 0) -> None:
        """`run_dir` is made, private, with the first report if it is not there. `cycle` counts the job's restarts."""
        self._run_dir, self._node, self._cycle = run_dir, node, cycle
        self._journal = Journal(run_dir, f"{node}.rank-{rank}", WAITING)
        self._reports = 0
        self._ready = False

    def write(self, report: Report, step: int | None = None) -> None:
        """Keep this report. Never waits, never raises. `step` is the training's, where it is known."""
        if not self._reports:
            atexit.register(self.close)  # of a program that ends without Detector.shutdown()
        self._reports += 1
        head: dict[str, Any] = {"node": self._node, "cycle": self._cycle, "report": self._reports}
        if step is not None:
            head["step"] = step
        self._journal.defer(KIND, lambda: {**head, **self._fields(report)})

    def close(self, timeout: float = 1.0) -> None:
        """Write what still waits, for at most `timeout` seconds."""
        atexit.unregister(self.close)
        self._journal.close(timeout)

    def _fields(self, report: Report) -> dict[str, Any]:
        """On the journal's thread."""
        if not self._ready:
            try:
                make_private(self._run_dir)
            except RunDirError as error:
                raise OSError(error.problem) from None
            self._ready = True
        elif not os.path.exists(self._journal.path):
            raise FileNotFoundError(errno.ENOENT, "it is gone, with the reports that were in it")
        return record_of(report)
