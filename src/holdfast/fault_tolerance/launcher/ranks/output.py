"""Where the output of the ranks of each cycle goes: log files, copies of their lines, one file with all of it; and what
torch runs with the ranks.

Folders, files and prefixes are torchrun's: ``LOG_DIR/<run id>_<random>/attempt_<cycle>/<local rank>/`` has stdout.log,
stderr.log and error.json; `--tee` copies whole lines to the launcher's own streams, and lines with a word of
`--duplicate-stdout-filters` to a file. A user's LogsSpecs (`--logs-specs`) decides on the files in our place.

What always holds: copying never blocks the launcher, and what the ranks wrote last is copied before the cycle is over,
unless that takes longer than `ENDS` seconds: a disk does not answer, or the reader of the launcher's output has
stopped. A character that the launcher's stream cannot encode is escaped (`\\u2713`).
Source: torch.distributed.elastic. TORCHELASTIC_ENABLE_FILE_TIMER and TORCHELASTIC_HEALTH_CHECK_PORT turn on its
watchdog and its health check.
Does not cover: the events that torch's watchdog would log with `--event-log-handler`.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from string import Template
from types import SimpleNamespace
from typing import Any, TextIO

from holdfast import in_time

from ..writer import AT_THE_END, CAPACITY, AppendedFile, Stream, Writer
from .copying import Copying, Lines, Pipe, Take

logger = logging.getLogger("holdfast.launcher")
ENDS = 2.0
"""Seconds."""
LONGEST = 1 << 16
"""Bytes of a line in the files of `CycleLog`."""
OUT, ERR = 1, 2
"""The bits of --redirects and --tee."""
WATCHDOG, WATCHDOG_FILE = "TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE"
HEALTH_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"
TEMPLATE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"


@dataclass
class LogFiles:
    """The files of one cycle by local rank, named as in torch's `LogsDest`; an empty path is the launcher's stream."""

    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = ""
    filtered_stderr: str = ""


class CycleLog:
    """The output of all ranks in one file per cycle (`--ft-per-cycle-applog-prefix`), written by one thread.

    `/logs/job.log` and `/logs/job` both give `/logs/job_cycle0.log`, `/logs/job_cycle1.log`, …
    A file of an earlier attempt is appended to. Each line is `rank N: ` and the bytes that the rank wrote; a line of
    more than `LONGEST` bytes is cut into several.

    What always holds: the disk of the log never delays a rank. Lines are dropped and counted instead
    (:mod:`..writer`).
    Does not cover: the order between stdout and stderr of one rank where they go to different places; a process that
    outlives its rank and the sweep, which can write no more once its cycle is over.

    Args:
        prefix: An absolute path.
        node: The name of this node, for the line on lost lines.
    """

    def __init__(self, prefix: str, node: str, record: Callable[..., object]) -> None:
        self._prefix, self._node, self._record = prefix, node, record
        self.writer = Writer("holdfast-applog", self._report)

    def open(self, cycle: int) -> AppendedFile:
        """The file of a cycle."""
        file = AppendedFile(file_of(self._prefix, cycle), self._node)
        self.writer.put(file, b"")
        return file

    def lines(self, file: AppendedFile, rank: int, *, is_patient: bool = False) -> Lines:
        """Appends the lines of one source of a rank to the file."""
        prefix = b"rank %d: " % rank

        def put(lines: list[bytes], _: bytes) -> None:
            block = b"".join(b"%s%s\n" % (prefix, line) for line in lines)
            self.writer.put(file, block, is_patient=is_patient)

        return Lines(put, LONGEST)

    def close(self) -> None:
        """Write what is left, for a second at most."""
        self.writer.close(AT_THE_END)

    def _report(self, path: str, reason: str) -> None:
        limit = f"lines that do not fit into {CAPACITY >> 20} MiB of memory are lost"
        logger.warning("the ranks' output cannot be appended to %s: %s; %s", path, reason, limit)
        self._record("output_lost", path=path, reason=reason)


def file_of(prefix: str, cycle: int) -> str:
    """The file of a cycle; its extension is the prefix's, or `.log`."""
    root, extension = os.path.splitext(prefix)
    return f"{root}_cycle{cycle}{extension or '.log'}"


class RankOutput:
    """The output of the ranks of one cycle after the other.

    With a `CycleLog`, a stream that would be the launcher's, or shown nowhere, is a pipe that the launcher reads and
    copies to where it was going. A stream that goes to a file of `--log-dir` stays there, and the file is followed.

    Args:
        log: Has all output too, one file per cycle; None: no such files.
    """

    def __init__(self, given: SimpleNamespace, log: CycleLog | None = None) -> None:
        self._given, self._log = given, log
        self._logged: AppendedFile | None = None  # of this cycle
        # By rank and the launcher's descriptor; 0: shown nowhere.
        self._pipes: dict[tuple[int, int], Pipe] = {}
        self._followed: dict[str, Take] = {}
        self._shown = {int(each) for each in given.local_ranks_filter.split(",") if each}  # none: all
        self._folder = ""  # of this launcher below --log-dir
        self._specs = _users_specs(given, self._shown) if given.logs_specs is not None else None
        self.files = LogFiles()
        """Of this cycle."""
        self.paths: dict[int, tuple[str, str]] = {}
        """Where the ranks of this cycle write to; empty: to the launcher's own stream."""
        self._ends: list[Callable[[], object]] = []

    @property
    def log_dir(self) -> str:
        """The folder of the ranks' logs."""
        return str(self._given.log_dir if self._specs is None else self._specs.root_log_dir)

    def prepare(self, environments: dict[int, dict[str, str]]) -> None:
        """Before the ranks start: make the files, and name them in the ranks' environments. Raises OSError."""
        self._ends += _start_companions(environments)
        make = self._make_files if self._specs is None else self._specs.reify
        self.files = make(environments)
        self.paths = {local: (self.files.stdouts[local], self.files.stderrs[local]) for local in environments}
        if self._log is not None:
            self._logged = self._log.open(int(environments[0]["TORCHELASTIC_RESTART_COUNT"]))
            out, err = _own_stream(sys.stdout), _own_stream(sys.stderr)
            if out and err and os.path.samestat(os.fstat(out), os.fstat(err)):
                err = out  # one pipe, so that what a rank writes to both keeps its order
            for local, (to_out, to_err) in self.paths.items():
                rank = int(environments[local]["RANK"])
                self.paths[local] = self._logged_path(rank, to_out, out), self._logged_path(rank, to_err, err)

    def _logged_path(self, rank: int, path: str, own: int) -> str:
        """For a stream of a rank that would go to `path`, or to the descriptor `own` of the launcher."""
        assert self._log is not None and self._logged is not None
        if path and path != os.devnull:
            self._followed[path] = self._log.lines(self._logged, rank, is_patient=True).take
            return path
        shown = 0 if path else own
        if (rank, shown) not in self._pipes:
            self._pipes[rank, shown] = Pipe(self._log.lines(self._logged, rank).take)
        return self._pipes[rank, shown].path

    def copy(self, environments: Mapping[int, Mapping[str, str]]) -> None:
        """The ranks run: copy their lines as the options ask for."""
        given, prefixes = self._given, self._prefixes(environments)
        outputs = (
            (self.files.tee_stdouts, sys.stdout, "filtered_stdout", "duplicate_stdout_filters"),
            (self.files.tee_stderrs, sys.stderr, "filtered_stderr", "duplicate_stderr_filters"),
        )
        for paths, stream, filtered, filters in outputs:
            targets: list[tuple[TextIO | None, list[str] | None]] = [(stream, None)]
            if (words := getattr(given, filters)) and (path := getattr(self.files, filtered, "")):
                targets.append((open(path, "w", errors="replace"), words))  # noqa: SIM115
            for target, words in targets:
                if paths and target is not None and given.log_dir != os.devnull:
                    copy = Copying(
                        (path, _teed(prefixes[each], target, words)) for each, path in paths.items()
                    )
                    self._ends.append(copy.finish)
            self._ends += [target.close for target, words in targets if words and target]
        self._copy_to_log()

    def _copy_to_log(self) -> None:
        file, self._logged = self._logged, None
        if file is None or self._log is None:
            return
        pipes, followed = self._pipes, self._followed
        self._pipes, self._followed = {}, {}
        copies = [Copying(followed.items())] if followed else []
        for shown in dict.fromkeys(descriptor for _, descriptor in reversed(pipes)):
            group = [pipe for (_, descriptor), pipe in pipes.items() if descriptor == shown]
            copies.append(Copying(pipes=group, stream=Stream(shown) if shown else None))
        # Last those that a terminal which is not read may hold.
        self._ends += [copy.finish for copy in copies]
        self._ends.append(partial(self._log.writer.end, file))

    def end(self) -> None:
        """The ranks are gone: copy the rest, and end what runs with them."""
        _call_all([self._copy_to_log])  # where the ranks did not start
        ends, self._ends = self._ends, []
        if not ends:
            return
        try:
            in_time.within(ENDS, lambda: _call_all(ends))
        except in_time.TooLate:
            logger.warning(
                "the copy of the ranks' output is blocked: what they wrote last may be missing from it"
            )

    def _prefixes(self, environments: Mapping[int, Mapping[str, str]]) -> dict[int, str]:
        template = self._given.log_line_prefix_template or os.environ.get(TEMPLATE)
        return {
            local: Template(template or "[${role_name}${local_rank}]:").safe_substitute(
                role_name=self._given.role,
                rank=int(each["RANK"]),
                local_rank=local,
                hostname=socket.gethostname(),
            )
            for local, each in environments.items()
        }

    def _make_files(self, environments: dict[int, dict[str, str]]) -> LogFiles:
        count, first = len(environments), environments[0]
        teed = _streams(self._given.tee, count)
        redirected = _streams(self._given.redirects, count)
        if self._given.log_dir == os.devnull:  # torchrun's word for no logs
            for environment in environments.values():
                environment["TORCHELASTIC_ERROR_FILE"] = ""
            nowhere = dict.fromkeys(range(count), os.devnull)
            return LogFiles(dict.fromkeys(nowhere, ""), dict.fromkeys(nowhere, ""), nowhere, nowhere, nowhere)
        if not self._folder:
            os.makedirs(self._given.log_dir, exist_ok=True)
            run_id = first["TORCHELASTIC_RUN_ID"]
            self._folder = tempfile.mkdtemp(prefix=f"{run_id}_", dir=self._given.log_dir)
        attempt = os.path.join(self._folder, f"attempt_{first['TORCHELASTIC_RESTART_COUNT']}")
        shutil.rmtree(attempt, ignore_errors=True)
        files = LogFiles(
            filtered_stdout=os.path.join(attempt, "filtered_stdout.log"),
            filtered_stderr=os.path.join(attempt, "filtered_stderr.log"),
        )
        for local, environment in environments.items():
            folder = os.path.join(attempt, str(local))
            os.makedirs(folder)
            files.error_files[local] = os.path.join(folder, "error.json")
            environment["TORCHELASTIC_ERROR_FILE"] = files.error_files[local]
            is_shown = not self._shown or local in self._shown
            for bit, name, paths, copied in (
                (OUT, "stdout.log", files.stdouts, files.tee_stdouts),
                (ERR, "stderr.log", files.stderrs, files.tee_stderrs),
            ):
                paths[local] = os.path.join(folder, name) if (redirected[local] | teed[local]) & bit else ""
                if teed[local] & bit and is_shown:
                    copied[local] = paths[local]
                if not is_shown:
                    paths[local] = paths[local] or os.devnull
        return files


def _call_all(ends: Iterable[Callable[[], object]]) -> None:
    for end in ends:
        try:
            end()
        except Exception as error:  # a full disk, for example
            logger.warning("the ranks' log output could not be completed: %s", error)


def _users_specs(given: SimpleNamespace, shown: set[int]) -> Any:
    """The LogsSpecs that `--logs-specs` names, as torchrun makes it."""
    from importlib import metadata

    from torch.distributed.elastic.multiprocessing import Std

    (kind,) = metadata.entry_points(group="torchrun.logs_specs", name=given.logs_specs)
    return kind.load()(
        log_dir=given.log_dir,
        redirects=Std.from_str(given.redirects),
        tee=Std.from_str(given.tee),
        local_ranks_filter=shown or None,
    )


def _streams(text: str, count: int) -> list[int]:
    """The bits of each local rank; `text` is like 3 or 0:3,1:1."""
    if text.isdecimal():
        return [int(text)] * count
    named = dict(part.split(":") for part in text.split(","))
    return [int(named.get(str(local), 0)) for local in range(count)]


def _own_stream(stream: TextIO | None) -> int:
    """The descriptor of the launcher's stream; 0 if it is closed."""
    try:
        return stream.fileno() if stream is not None else 0
    except (ValueError, io.UnsupportedOperation):
        return 0


def _teed(prefix: str, stream: TextIO, words: Iterable[str] | None) -> Take:
    """Copies the lines of one file; lines without any of `words` are left out (None: no line is)."""

    def put(lines: list[bytes], end: bytes) -> None:
        for line in lines:
            text = (line + end).decode(errors="replace")
            if words is None or any(word in text for word in words):
                _write(stream, f"{prefix}{text}")
        stream.flush()

    return Lines(put).take


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:  # by the locale or PYTHONIOENCODING the stream has only some characters
        stream.write(text.encode(stream.encoding, "backslashreplace").decode(stream.encoding))


# -- what torch runs with the ranks -----------------------------------------------------------------------------


def _start_companions(environments: Mapping[int, dict[str, str]]) -> list[Callable[[], object]]:
    """torch's watchdog, whose file the ranks are given, and its health check, where they are turned on.

    Returns:
        The functions that end them.
    """
    ends: list[Callable[[], object]] = []
    progress: Callable[[], int] = lambda: int(time.time())  # noqa: E731  # of the last progress, in unix seconds
    path = os.environ.get(WATCHDOG_FILE)
    if os.environ.get(WATCHDOG) == "1":
        from torch.distributed.elastic import timer

        path = path or os.path.join(tempfile.gettempdir(), f"watchdog_timer_{uuid.uuid4()}")
        run_id = environments[0]["TORCHELASTIC_RUN_ID"]
        watchdog = timer.FileTimerServer(file_path=path, run_id=run_id, max_interval=0.1, daemon=True)
        watchdog.start()
        progress = watchdog.get_last_progress_time
        ends.append(watchdog.stop)
    if path is not None:
        for environment in environments.values():
            environment[WATCHDOG_FILE] = path
    port = os.environ.get(HEALTH_PORT)
    if port is not None and not port.isdecimal():
        logger.warning("%s=%s is no port: there is no health check", HEALTH_PORT, port)
    elif port is not None:
        from torch.distributed.elastic.agent.server.health_check_server import create_healthcheck_server

        server = create_healthcheck_server(alive_callback=progress, port=int(port), timeout=60)
        server.start()
        ends.append(server.stop)
    return ends
