"""The state file, what verdicts know of the ranks' past for the next start of the job; and the journal of reports.

It is what `numpy.savez` makes of four arrays: `version`, `nodes` (of each rank), `names`, and `levels` [names, ranks].

What always holds: `save` neither waits for the disk nor raises; `load` waits for a second at most; a file that cannot
be used costs its content and one warning. The file is replaced whole; it is private (0600), and one of another user is
not read. A state file that does not fit is replaced by the next one; what is no state file of ours is left alone, and
then nothing is written.

Does not cover: two jobs with one state file: the last to write wins. A state that comes while the disk is busy with the
one before: it is left out.
"""

from __future__ import annotations

import atexit
import errno
import io
import logging
import os
import stat
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.in_time import TooLate, UnderWay
from holdfast.journal.run_dir import RunDirError, make_private
from holdfast.journal.writer import Journal
from holdfast.prefixed_log import Once
from holdfast.private_file import write_file
from holdfast.visible import escaped

from .record import KIND, record_of
from .report import Report

if TYPE_CHECKING:
    from .window import Array

log = logging.getLogger("holdfast.straggler")

VERSION = 2
ANSWER = 1.0
"""Seconds that training may wait for the file's content, once."""

LARGEST = 256 * 1024 * 1024
"""Bytes of a file that is read: 16,384 ranks with 1,000 sections have less."""


class Foreign(ValueError):
    """What is there is not of ours."""


class StateFile:
    """The state of one rank's verdicts on disk, which is read and written in a thread."""

    def __init__(self, path: str) -> None:
        """The folder of `path` is made, private, when the state is first written."""
        self.path = os.path.abspath(path)
        self._under_way: UnderWay[Any] | None = None
        self._closed = False
        self._once = Once(log)
        atexit.register(self.close)  # for a program that ends without Detector.shutdown()

    def load(self, nodes: Sequence[str]) -> tuple[list[str], dict[str, Array]] | None:
        """The nodes of each rank and the levels [ranks] by name that were last saved, for a job of ranks on these nodes
        (one for each rank, in order). Call it once.

        None when there is none that fits; that there is one which does not is warned about. Ranks that are on other
        nodes than before are for the caller to tell apart.
        """
        try:
            reading = UnderWay(lambda: _parsed(_read(self.path)))
            try:
                found = reading.answer(ANSWER)
            except TooLate:
                self._under_way = reading
                raise ValueError(f"it could not be read within {ANSWER:g} s") from None
            return None if found is None else fitting(found, nodes)
        except OSError as error:
            self._leave(error.strerror or str(error))
        except (Foreign, RuntimeError) as error:  # RuntimeError: no thread to be had
            self._leave(str(error))
        except ValueError as error:
            text = (
                "straggler state file %s: %s. What ranks were like before this start is not known; it is learned anew, "
                "and the next state replaces the file"
            )
            log.warning(text, self.path, error)
        return None

    def _leave(self, problem: str) -> None:
        """Leave a file of another program where it is."""
        self._closed = True
        log.warning(
            "straggler state file %s: %s. It is left as it is, and what verdicts learn is not kept for the next start: "
            "name another file, or remove this one",
            self.path,
            problem,
        )

    def save(self, levels: Mapping[str, Array], nodes: Sequence[str]) -> None:
        """Replace the file's content by a copy of this, unless the disk is still busy."""
        if not self._is_idle(0.0) or self._closed:
            return
        levels = {name: one.astype("f4") for name, one in levels.items()}
        try:
            self._under_way = UnderWay(lambda: _write(self.path, as_bytes(levels, nodes)))
        except RuntimeError as error:  # no thread to be had; tried again with the next state
            self._warn(str(error))

    def close(self, timeout: float = 1.0) -> None:
        """Wait for what is being written, for at most `timeout` seconds."""
        atexit.unregister(self.close)
        self._closed = True
        if not self._is_idle(timeout):
            self._warn(f"not written within {timeout:g} s")

    def _is_idle(self, seconds: float) -> bool:
        """Whether nothing is being read or written; waits for that for at most `seconds`. Logs an error of it."""
        if self._under_way is None:
            return True
        try:
            self._under_way.answer(seconds)
        except TooLate:
            return False
        except Foreign as error:
            self._leave(str(error))
        except OSError as error:
            self._warn(error.strerror or str(error))
        except Exception as error:  # of numpy, such as MemoryError; the next state may do
            self._warn(f"{type(error).__name__}: {error}")
        self._under_way = None
        return True

    def _warn(self, problem: str) -> None:
        text = (
            "straggler state file %s cannot be written: %s. Verdicts are not affected now; after a restart the ranks' "
            "history starts empty. This warning is logged once"
        )
        self._once(logging.WARNING, text, self.path, problem)


def as_bytes(levels: Mapping[str, Array], nodes: Sequence[str]) -> bytes:
    """What the file holds."""
    import numpy as np

    content = io.BytesIO()
    table = np.array(list(levels.values()), "f4").reshape(len(levels), len(nodes))
    np.savez(content, version=VERSION, nodes=list(nodes), names=np.array(list(levels), str), levels=table)
    return content.getvalue()


def fitting(found: Mapping[str, Any], nodes: Sequence[str]) -> tuple[list[str], dict[str, Array]]:
    """What a file says; ValueError, with the reason in one clause, if it is none for these ranks."""
    then = found["nodes"].tolist()
    if found["version"] != VERSION:
        raise ValueError(f"it is of version {found['version']}, not {VERSION}")
    if len(then) != len(nodes):
        raise ValueError(f"it is of a job with {len(then)} ranks, not {len(nodes)}")
    if not any(old == new for old, new in zip(then, nodes, strict=True)):
        raise ValueError(
            f"it is of a job on other nodes ({escaped(str(then[0]))}, …; now {escaped(nodes[0])}, …)"
        )
    return then, dict(zip(found["names"].tolist(), found["levels"].astype(float), strict=True))


def _parsed(content: bytes | None) -> Mapping[str, Any] | None:
    """The arrays of a file, of the shapes that they must have."""
    import numpy as np

    if not content:
        return None
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            found = {name: file[name] for name in ("version", "nodes", "names", "levels")}
        if found["levels"].shape == (*found["names"].shape, *found["nodes"].shape):
            return found
    except Exception as error:  # whatever numpy and zip files raise of what is no such file
        log.debug("a straggler state file cannot be read: %r", error)
    raise Foreign("it is no state file, or cut off")


def _read(path: str) -> bytes | None:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Foreign("it is no regular file")
        if found.st_uid != os.geteuid():
            raise Foreign(f"it belongs to user {found.st_uid}, not to {os.geteuid()}")
        if found.st_size > LARGEST:
            raise Foreign(f"it has {found.st_size} bytes, more than {LARGEST}")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def _write(path: str, content: bytes) -> None:
    folder, name = os.path.split(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    write_file(os.path.realpath(folder), name, content, flush=True)


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

    def write(self, report: Report) -> None:
        """Keep this report. Never waits, never raises."""
        if not self._reports:
            atexit.register(self.close)  # of a program that ends without Detector.shutdown()
        self._reports += 1
        head: dict[str, Any] = {"node": self._node, "cycle": self._cycle, "report": self._reports}
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
