"""Makes a rank report where it is: a signal dumps its main thread's stack, and a helper thread answers questions
(`rank_answer`).

In the folder of the rank's board `L.board` it leaves `L.armed` (which process, signal and descriptor; whether the
thread runs), `L.stack` (what the signal writes), `L.ask` (a FIFO; a question is eight bytes) and `L.answer` (JSON of
less than 256 KB). The other side is `holdfast.incidents.capture.stack_request`.
What always holds: nothing here raises, nothing is done before a question, a signal that the program handles is never
taken, a forked child never answers, and the helper thread takes no signal. It imports nothing of Holdfast.
``HOLDFAST_WITNESS=off`` switches all of it off.
Does not cover: a program that handles the same real-time signal later.
"""

import _signal  # type: ignore[import-not-found]
import _thread
import os
import sys

if __package__:
    from .rank_answer import MODULE, answers
else:  # beside the script of a rank: no package
    from rank_answer import MODULE, answers  # type: ignore[import-not-found,no-redef]

TYPE_CHECKING = False  # `typing` would be an import more in every rank
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "HOLDFAST_WITNESS"
BOARD = "FT_RANK_MONITOR_IPC_SOCKET"
SUFFIX = ".board"
FIRST_SIGNAL = 45
"""SIGRTMIN+11, or the next one that is free: debuggers, profilers and libraries take the first and the last ones."""
HIGH = 900, 200, 60
"""Our descriptors are not below the first of these that is possible: the script's own have the numbers that they would
have without us."""
QUESTION = 8
LEAVES = 0.5
"""Seconds to wait for the thread when a client goes."""
REMEMBERED = 16
"""An answer names this many of the last questions, so that each of several concurrent askers finds its own."""


def arm(environ: "Any", after_import: "Any") -> "Any":
    """In the prologue: the signal from now on, the thread once the program has a process group. Earlier it would be
    the one reason for which Python warns of a fork beside threads. Returns what starts the thread at once."""
    try:
        prefix = _prefix(environ)
        if prefix:
            found = _Introspection(prefix)
            found.arm()
            if MODULE in sys.modules:
                _with_first_group(sys.modules[MODULE], found.start)
            else:
                after_import(MODULE, lambda module: _with_first_group(module, found.start))
            return found.start
    except Exception:
        pass  # the rank cannot be asked; it trains all the same
    return lambda: None


def connect(environ: "Any") -> "Any":
    """Start the thread when a client connects, and arm the signal where the prologue has not.

    Returns a function that undoes both when the client disconnects. A rank of the launcher gets None: it answers until
    it ends.
    """
    try:
        prefix = _prefix(environ)
        if prefix:
            found = _Introspection(prefix)
            alone = found.armed() is None
            if alone:
                found.arm()
            found.start()
            return found.end if alone else None
    except Exception:
        pass
    return None


def _prefix(environ: "Any") -> str:
    path = environ.get(BOARD, "")
    if not path or environ.get(VARIABLE, "").lower() in ("off", "0"):
        return ""
    path = os.path.realpath(path)  # a `RankMonitorServer` gives its rank a link
    return path[: -len(SUFFIX)] if path.endswith(SUFFIX) else ""


def _with_first_group(module: "Any", start: "Any") -> None:
    """Start when torch has its first process group; leaves no trace afterwards. At once where this is another torch."""
    inner = getattr(module, "_update_default_pg", None)
    if inner is None or module._world.default_pg is not None:
        start()
        return

    def once(*args: "Any", **more: "Any") -> "Any":
        if module._update_default_pg is once:
            module._update_default_pg = inner
        try:
            return inner(*args, **more)
        finally:
            start()

    module._update_default_pg = once


class _Introspection:
    """What one rank has armed. There may be two of these in a process, of which only the files know each other."""

    def __init__(self, prefix: str) -> None:
        self._prefix, self._owner = prefix, os.getpid()
        self._leaves: Any = False
        self._helper = 0
        self._gone = _thread.allocate_lock()  # held while the thread runs
        self._ask = self._stack = self._signal = -1

    def armed(self) -> "Any":
        """What this process has armed already: signal, descriptor, whether the thread runs."""
        import json

        try:
            with open(f"{self._prefix}.armed") as file:
                said = json.load(file)
            return (
                (said["signal"], said["descriptor"], said["thread"]) if said["pid"] == self._owner else None
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def arm(self) -> None:
        """Let the signal dump the main thread's stack. All threads' would be unsafe while they run."""
        signum = self._signal = _free_signal()
        descriptor = self._stack = _file_of(f"{self._prefix}.stack", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        known = "faulthandler" in sys.modules
        import faulthandler

        # Python gives the signal back when it ends; should one still come then, it shall not be the rank's death.
        # A function that does nothing: to ignore it would be inherited by the programs that are started from here.
        _take(signum)
        _ours.add(signum)
        faulthandler.register(signum, file=descriptor, all_threads=False, chain=False)
        if not known:
            sys.modules.pop("faulthandler", None)
        self._say(signum, descriptor, False)

    def start(self) -> None:
        """Start the thread, if this process has none yet. Never raises."""
        try:
            armed = self.armed()
            if os.getpid() != self._owner or armed is None or armed[2]:
                return
            path = f"{self._prefix}.ask"
            if os.path.lexists(path):  # an earlier process of the same rank has left it
                os.unlink(path)
            os.mkfifo(path, 0o600)
            # For writing as well: so there is always a writer, and a read waits.
            descriptor = self._ask = _file_of(path, os.O_RDWR)
            self._gone.acquire()
            before = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
            try:
                _thread.start_new_thread(self._answer, (descriptor, _identity(descriptor)))
            finally:
                _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
            self._say(armed[0], armed[1], True)
        except Exception:
            pass

    def end(self) -> None:
        """Undo it. The signal stays harmless: it may have been sent at this very moment. Never raises."""
        try:
            if os.getpid() != self._owner or sys.is_finalizing() or self._signal < 0:
                return
            os.unlink(f"{self._prefix}.armed")
            import faulthandler

            faulthandler.unregister(self._signal)
            identity = _identity(self._stack)
            if identity == _identity(f"{self._prefix}.stack"):
                os.close(self._stack)
            if self._gone.locked() and _identity(self._ask) == _identity(f"{self._prefix}.ask"):
                self._leaves = True
                os.write(self._ask, bytes(QUESTION))
                if _thread.get_ident() != self._helper:  # not where it collects garbage
                    self._gone.acquire(timeout=LEAVES)
        except Exception:
            pass

    def _say(self, signum: int, descriptor: int, thread: bool) -> None:
        text = f'"pid": {self._owner}, "signal": {signum}, "descriptor": {descriptor}, "thread": {str(thread).lower()}'
        self._put("armed", f"{{{text}}}")

    def _put(self, what: str, text: str) -> None:
        aside = f"{self._prefix}.{what}.new"
        try:
            with open(
                os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w"
            ) as file:
                file.write(text)
            os.replace(aside, f"{self._prefix}.{what}")
        except OSError:
            if os.path.lexists(aside):
                os.unlink(aside)  # no room: it must not hold what there is
            raise

    def _answer(self, descriptor: int, identity: "Any") -> None:
        self._helper = _thread.get_ident()
        try:
            self._answer_all(descriptor, identity)
            if _identity(descriptor) == identity:
                os.close(descriptor)
        except Exception:
            pass
        self._gone.release()

    def _answer_all(self, descriptor: int, identity: "Any") -> None:
        asked: list[str] = []
        while not self._leaves and os.getpid() == self._owner:
            try:
                # The program may have closed it, and have opened something else under its number. That it does so
                # between this check and the read, some microseconds, is not covered.
                if _identity(descriptor) != identity:
                    return
                got = os.read(descriptor, QUESTION * REMEMBERED)
            except OSError:
                return
            if self._leaves:
                return
            asked = [*asked, *(got[at : at + QUESTION].hex() for at in range(0, len(got), QUESTION))]
            asked = asked[-REMEMBERED:]
            try:
                for answer in answers(asked):
                    self._put("answer", answer)
            except Exception:
                pass  # there is no room for it: who asked does not wait long


def _free_signal() -> int:
    """Raises LookupError where there is none."""
    taken = 0
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(("SigBlk:", "SigIgn:", "SigCgt:")):
                taken |= int(line.split()[1], 16)
    for signum in range(FIRST_SIGNAL, _signal.SIGRTMAX):
        free = signum in _ours or not taken >> (signum - 1) & 1
        if free and _signal.getsignal(signum) == _signal.SIG_DFL:
            return signum
    raise LookupError("every real-time signal is taken")


def _file_of(path: str, flags: int) -> int:
    """Open it, with a high number that no program started from here inherits."""
    low = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    for least in HIGH:
        high = _libc().fcntl(low, 1030, least)  # F_DUPFD_CLOEXEC; the module fcntl would be an import more
        if high >= 0:
            os.close(low)
            return high  # type: ignore[no-any-return]
    return low


_ours: "set[int]" = set()  # signals that are handled because of us


def _identity(file: "int | str") -> "tuple[int, int]":
    """Of a file, by its descriptor or path."""
    found = os.stat(file)
    return found.st_dev, found.st_ino


def _libc() -> "Any":
    import ctypes

    return ctypes.CDLL(None)


def _take(signum: int) -> None:
    import ctypes

    libc = _libc()
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signum, ctypes.cast(libc.abs, ctypes.c_void_p))
