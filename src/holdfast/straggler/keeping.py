"""What becomes of reports on the rank that has them: the journal, the log, the state of verdicts for the next start.

What always holds: nothing here waits for a disk beyond a second at the first report, or raises.
Does not cover: what each keeps, and how; that is `journal_reports`, `log_texts` and `state_file`.
"""

from __future__ import annotations

import logging

from holdfast.fault_tolerance import environment

from .journal_reports import ReportLog
from .log_texts import VerdictNews
from .report import Report
from .state_file import StateFile, in_run_dir

log = logging.getLogger("holdfast.straggler")


class Keeping:
    """The places of one use of the detector. Nothing is opened before the first report."""

    def __init__(self, run_dir: str | None, state_file: str | None, node: str) -> None:
        """`run_dir` None: reports are not kept; `state_file` None: it is in `run_dir`, if there is one."""
        self._run_dir, self._state_path, self._node = run_dir, state_file, node
        self._reports: ReportLog | None = None
        self._state: StateFile | None = None
        self._news = VerdictNews()

    def keep(self, report: Report) -> None:
        """Note a report of this rank's, and say which verdicts are new or over."""
        for line in self._news.of(report.verdicts(), report.withheld):
            log.warning("%s", line)
        if self._run_dir is None:
            return
        if self._reports is None:
            self._reports = ReportLog(self._run_dir, self._node, report.rank, environment.cycle())
        self._reports.write(report)

    def state(self, rank: int) -> StateFile | None:
        """Where the rank that judges keeps what it knows."""
        if self._state is None:
            path = self._state_path or (self._run_dir and in_run_dir(self._run_dir, rank))
            self._state = StateFile(path) if path else None
        return self._state

    def close(self) -> None:
        """Write what still waits, for a second at most each."""
        for one in (self._reports, self._state):
            if one is not None:
                one.close()
