"""Runs first in a rank's interpreter, then disappears: the script finds the environment it would have had.

The launcher puts this folder on the rank's PYTHONPATH. It ties the rank's life to the launcher's, and keeps an
unhandled exception and the last of what Python writes to stderr where the launcher finds them, so that a failed job
ends with a traceback or with its last lines. At the rank's end it lets torch's threads finish. Other files of this
folder count steps, list modules, mark the end of the main thread, and answer questions after an incident. It imports
nothing of Holdfast (the rank's interpreter may not have it) and must never fail.
Does not cover: a script that replaces ``sys.excepthook`` or ``sys.stderr``; exceptions in threads; the output of native
code and of child processes; other languages.
"""

import _signal  # type: ignore[import-not-found]  # the part of `signal` that costs no import
import os
import sys


def _quiet_interrupts() -> bool:
    """In the next milliseconds Ctrl-C ends the rank without a traceback, which would only show this file."""
    if _signal.getsignal(_signal.SIGINT) is not _signal.default_int_handler:
        return False
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    return True


def _vanish() -> None:
    """Take this folder off the paths, and let a sitecustomize of the site's own run in its place."""
    here = os.path.dirname(os.path.abspath(__file__))
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if entries == [here]:
        del os.environ["PYTHONPATH"]
    elif here in entries:
        os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in entries if entry != here)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found] # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


def _die_with_launcher() -> None:
    launcher = os.environ.pop("HOLDFAST_LAUNCHER_PID", "")
    if not launcher or os.getppid() != int(launcher):
        return
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(launcher):  # it died between the fork and the line above
        os._exit(1)


def _keep_exception(save, end) -> None:  # type: ignore[no-untyped-def]
    target = os.environ.pop("HOLDFAST_ERROR_FILE", "")
    if not target:
        return
    inner = sys.excepthook
    owner = os.getpid()

    def keep(kind, value, trace, has_ended=True):  # type: ignore[no-untyped-def]
        for _ in range(2):  # again if a signal's handler raises meanwhile, as the data loader's does once
            try:
                _write(target, kind, value, trace, has_ended)
                break
            except Exception:
                pass  # the record is a courtesy; the exception itself must be shown whatever happens
        if save is not None:
            save("exception")

    def hook(kind, value, trace):  # type: ignore[no-untyped-def]
        # Ctrl-C is no failure. And imports here would make Python forget that it has to end by SIGINT.
        is_kept = os.getpid() == owner and not issubclass(kind, KeyboardInterrupt)
        has_ended = is_kept and end is not None and end.is_uncaught(value)
        if is_kept:
            if has_ended:
                _allow_files()
            keep(kind, value, trace, has_ended)  # type: ignore[no-untyped-call]
        try:
            inner(kind, value, trace)
        finally:
            if has_ended:
                end.mark(has_raised=True)

    sys.excepthook = hook
    if end is not None:
        end.hook, end.keep = hook, keep


def _keep_last_lines(old, standard) -> None:  # type: ignore[no-untyped-def]
    """Python's stderr goes where it did, at the same moment; the last of it is also kept in memory.

    From :func:`_begin_to_keep` on. The stream is there before anything else is imported: handlers of loggers hold on to
    the one that they find.
    """
    import io

    if old is not standard or type(old) is not io.TextIOWrapper:
        return  # closed, or a stand-in that the site has put there
    getpid = os.getpid

    class Kept(io.FileIO):
        """Standard error itself: the descriptor, unbuffered."""

        def write(self, data):  # type: ignore[no-untyped-def]
            # First into memory: should a signal handler raise there, nothing is written yet.
            if _rank[1] and getpid() == _rank[0]:  # a forked child's lines are not the rank's
                _rank[1](bytes(data))
            return super().write(data)

    raw = Kept(old.fileno(), "wb", closefd=False)
    raw.name = "<stderr>"
    # As Python makes its own: buffered, unless it runs with -u.
    buffer = io.BufferedWriter(raw) if hasattr(old.buffer, "raw") else raw
    flushes = {"line_buffering": old.line_buffering, "write_through": old.write_through}
    new = io.TextIOWrapper(buffer, old.encoding, old.errors, "\n", **flushes)
    new.mode = "w"  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = new  # type: ignore[misc]
    _kept.append(new)


def _begin_to_keep() -> None:
    """From now on the last 16 KiB are in a file that has the rank's pid in its name; ranks/failures.py reads it.

    Into memory: a system call would let other threads run each time. Does not cover: two threads in the same moment, of
    which one's bytes may be lost.
    """
    target, size, tail = os.environ.pop("HOLDFAST_STDERR_FILE", ""), 16384, b""
    if not target or not _kept:
        return
    memory = _mapped(f"{target}.{os.getpid()}", size)

    def keep(data):  # type: ignore[no-untyped-def]
        nonlocal tail
        tail = (tail + data)[-size:]
        memory[: len(tail)] = tail

    _rank[1] = keep


def _mapped(target: str, size: int) -> memoryview:
    """The file's memory, all of it allocated. Python's own mmap would keep a descriptor open in the rank."""
    import ctypes

    file = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(file, 0, size)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        place = libc.mmap(None, size, 3, 1, file, 0)  # PROT_READ | PROT_WRITE, MAP_SHARED
    finally:
        os.close(file)
    if place in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    return memoryview((ctypes.c_char * size).from_address(place)).cast("B")


def _allow_files() -> None:
    """Let a process that ends, perhaps for want of descriptors, open some more: its last records need them."""
    ctypes = sys.modules.get("ctypes")  # an import needs a descriptor
    if ctypes is None:
        return
    limit, nofile = (ctypes.c_ulong * 2)(), 7
    if ctypes.CDLL(None).prlimit(0, nofile, None, limit) == 0:
        limit[0] = min(limit[0] + 16, limit[1])
        ctypes.CDLL(None).prlimit(0, nofile, limit, None)


def _write(target, kind, value, trace, has_ended) -> None:  # type: ignore[no-untyped-def]
    import json
    import time
    import traceback

    text = "".join(traceback.format_exception(kind, value, trace))
    record = {
        "at": time.monotonic(),
        "pid": os.getpid(),
        "type": kind.__name__,
        "message": str(value)[:2000],
        "traceback": text[-20000:],
        "unhandled": has_ended,
    }
    with open(f"{target}.new", "w") as file:
        json.dump(record, file)
    os.replace(f"{target}.new", target)  # the launcher may look at any moment


def _let_torch_finish() -> None:
    """At the exit of Python, wait until no other thread is running, for at most 0.2 s.

    After a collective a gloo thread releases Python objects, and needs the interpreter's lock for that. If the rank's
    last act was a collective, Python may be shutting down by then. It ends such a thread in a way that torch 2.13 turns
    into an abort (exit code 134), and a finished rank would have failed.
    """
    import atexit
    import time

    def wait() -> None:
        me = os.getpid()
        if me != _rank[0] or "torch" not in sys.modules:
            return
        until, idle = time.monotonic() + 0.2, 0
        while idle < 3 and time.monotonic() < until:
            time.sleep(0.002)
            idle = 0 if _others_run(me) else idle + 1

    atexit.register(wait)  # before others do: it is called last


def _others_run(main: int) -> bool:
    """Whether another thread than the main one has a core, or waits for one."""
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return False  # no descriptor is left
    for thread in threads:
        try:
            with open(f"/proc/self/task/{thread}/stat", "rb") as file:
                if int(thread) != main and file.read().rpartition(b") ")[2][:1] == b"R":
                    return True
        except OSError:
            pass  # it has ended
    return False


def _parts() -> "list[object]":
    """The files beside this one, which the script shall not see: their names are free for its own modules."""
    names = "optimizer_hook", "introspection", "main_end", "rank_answer"
    try:
        return [__import__(name) for name in names]
    except Exception:  # removed while the job runs
        return [None] * len(names)
    finally:
        for name in names:
            sys.modules.pop(name, None)


def _wait_to_be_a_rank() -> None:
    """In a zygote (see the package `launcher.warm`): import and fork; only a standby that becomes a rank returns."""
    given = os.environ.pop("HOLDFAST_ZYGOTE", "")
    if not given:
        return
    import importlib.util
    import json

    launcher = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    folder = os.path.join(launcher, "warm", "zygote")
    name = "holdfast_zygote"
    spec = importlib.util.spec_from_file_location(name, os.path.join(folder, "__init__.py"))
    assert spec is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    serve = importlib.import_module(f"{name}.serve")
    serve.serve(json.loads(given))
    for module in serve.OWN:
        del sys.modules[module]


_rank: list = [0, None]  # type: ignore[type-arg]  # the rank's pid, and what keeps its last lines
_kept: list = []  # type: ignore[type-arg]  # the stream of which the last lines are kept, if there is one
_is_zygote = "HOLDFAST_ZYGOTE" in os.environ
_quiet = _quiet_interrupts()
try:
    _optimizer, _introspection, _main_end, _ = _parts()  # before the folder is off the path
    _vanish()
    _let_torch_finish()
    try:  # noqa: SIM105
        _keep_last_lines(sys.stderr, sys.__stderr__)
    except Exception:
        pass  # a stderr of another kind: the rank has it as it was
    _wait_to_be_a_rank()
except BaseException:
    if _is_zygote:
        os._exit(1)  # Python would continue with the script, but this process has not become a rank
    raise
finally:
    _die_with_launcher()
    _rank[0] = os.getpid()
    _save = _end = None
    if _optimizer:
        _save = _optimizer.save_modules(os.environ)  # type: ignore[attr-defined]
        _optimizer.arm(os.environ, _save)  # type: ignore[attr-defined]
        _answers = _introspection.arm(os.environ, _optimizer._after_import)  # type: ignore[attr-defined]
        _end = _main_end.arm(os.environ, _optimizer._after_import, _answers)  # type: ignore[attr-defined]
    _keep_exception(_save, _end)
    try:  # noqa: SIM105
        _begin_to_keep()
    except Exception:
        pass  # no room for it
    if _quiet and _signal.getsignal(_signal.SIGINT) == _signal.SIG_DFL:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
