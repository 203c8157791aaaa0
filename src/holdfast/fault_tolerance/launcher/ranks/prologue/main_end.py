"""Marks on the rank's board when its main thread has ended, and whether an uncaught exception ended it.

From then on only Python's shutdown keeps the process: threads that are joined, `atexit` functions, destructors, child
processes. The launcher ends a process that stays after an exception, and reports one that stays after a good end.

The mark is the time and the pid, written by one system call into the board's file; the constants are those of
`board.layout`. It is made in the process that the board belongs to, in its main thread, once. At that moment the thread
that answers questions is started as well, so that the stacks of all threads are at hand. It imports nothing of Holdfast
and never raises.
Does not cover: a Python below a shell script that is the rank; a program that is replaced by `exec` at its exit; an
exception hook of the program that never returns, and one of a program that also sets `sys.last_value` by itself.
The number given to `sys.exit` cannot be read before the process has ended.
"""

import _thread
import os
import sys
import time

TYPE_CHECKING = False  # `typing` would be an import more in every rank
if TYPE_CHECKING:
    from typing import Any

BOARD = "FT_RANK_MONITOR_IPC_SOCKET"
WORD = 8
MAGIC = int.from_bytes(b"HOLDFAST", "little")
VERSION = 6
P_VERSION, P_PID = 1, 4
"""Words of the first page."""
MAIN_ENDED = 16
"""A word of the rank's part, which begins after the first page; the pid is in the next one."""
MODULE_RUNNER = "_run_module_as_main"
"""The function of `runpy` by which `python -m` runs a module."""


class MainEnd:
    """The end of this process's main thread. `then` is called after it is marked; it must not raise."""

    def __init__(self, path: str, then: "Any") -> None:
        self._path, self._then = path, then
        self._owner, self._main = os.getpid(), _thread.get_ident()
        self._is_marked = not path
        self.hook: Any = None
        """Our exception hook."""
        self.keep: Any = None
        """Takes the exception that has ended the program where our hook was not called."""

    def attach(self, threading: "Any") -> None:
        """Mark the end where Python begins its shutdown, before it joins any thread: it calls this by its name."""
        inner = threading._shutdown

        def _shutdown() -> None:
            self.mark()
            inner()

        threading._shutdown = _shutdown

    def is_uncaught(self, value: "Any") -> bool:
        """Whether this exception, which our hook is given now, has ended the program.

        Python notes it before it calls the hook; a program that calls the hook by itself may not. C code that shows an
        exception, and continues, does; then the program's outermost frame is below the hook.
        """
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
        is_running = frame.f_code.co_name in ("<module>", MODULE_RUNNER)
        is_last = getattr(sys, "last_value", None) is value
        return is_last and not is_running and _thread.get_ident() == self._main

    def mark(self, *, has_raised: bool = False) -> None:
        """The main thread has ended: by an exception that our hook was given, or Python is at its shutdown."""
        try:
            if self._is_marked or os.getpid() != self._owner or _thread.get_ident() != self._main:
                return
            self._is_marked = True
            if not has_raised and self._has_raised():
                has_raised = True
                self.keep(type(sys.last_value), sys.last_value, sys.last_traceback)
            now = time.monotonic_ns()
            self._write(-now if has_raised else now)
            self._then()
        except Exception:
            pass  # the board is gone, or of another version: the process ends as it does without a mark

    def _has_raised(self) -> bool:
        """Whether an exception has ended a program that has put a hook of its own in the place of ours.

        Ctrl-C is no failure.
        """
        value, trace = getattr(sys, "last_value", None), getattr(sys, "last_traceback", None)
        if sys.excepthook is self.hook or trace is None or isinstance(value, KeyboardInterrupt):
            return False
        frame, name = trace.tb_frame, trace.tb_frame.f_code.co_name
        is_script = name == "<module>" and frame.f_globals.get("__name__") == "__main__"
        return bool(is_script or name == MODULE_RUNNER)

    def _write(self, value: int) -> None:
        file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            page = memoryview(os.pread(file, (P_PID + 1) * WORD, 0)).cast("q")
            # A script of a few milliseconds ends before the launcher has written which process the board is of.
            is_ours = page[P_PID] in (0, self._owner)
            if page[0] == MAGIC and page[P_VERSION] == VERSION and is_ours:
                at = max(4096, os.sysconf("SC_PAGE_SIZE")) + MAIN_ENDED * WORD
                mark = (each.to_bytes(WORD, sys.byteorder, signed=True) for each in (value, self._owner))
                os.pwrite(file, b"".join(mark), at)
        finally:
            os.close(file)


def arm(environ: "Any", after_import: "Any", then: "Any") -> MainEnd:
    """From now on the end of the calling thread is marked; `then` is called after that."""
    found = MainEnd(environ.get(BOARD, ""), then)
    if "threading" in sys.modules:
        found.attach(sys.modules["threading"])
    else:
        after_import("threading", found.attach)
    return found
