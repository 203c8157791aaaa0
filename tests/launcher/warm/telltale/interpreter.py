"""What Python itself shows: `__main__`, `sys`, streams, signals, threads, random numbers, modules, hooks.

Names that begin with "unique " are for values that differ between any two processes: of these only the pattern is
compared. Does not cover: what the kernel shows (`kernel`), libraries (`libraries`).
"""

from __future__ import annotations

import atexit
import builtins
import faulthandler
import gc
import importlib.machinery
import locale
import logging
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
import uuid
import warnings
from typing import Any

OF_SYS = """
    _base_executable abiflags base_exec_prefix base_prefix byteorder dont_write_bytecode exec_prefix executable
    hexversion last_type last_value maxsize platlibdir prefix ps1 pycache_prefix tracebacklimit
"""
OF_A_STREAM = ("name", "mode", "encoding", "errors", "line_buffering", "write_through", "newlines", "closed")
LOADERS: tuple[Any, ...] = (
    importlib.machinery.SourceFileLoader,
    importlib.machinery.SourcelessFileLoader,
    importlib.machinery.ExtensionFileLoader,
    importlib.machinery.BuiltinImporter,
)


def facts(main: dict[str, Any], at_first: list[str]) -> dict[str, Any]:
    own = _main(main, at_first) | _system() | streams() | _signals()
    return own | _threads() | _random() | _modules() | _hooks()


def kind(thing: object) -> str:
    """Where a function or class comes from, else its type."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{getattr(named, '__module__', None)}.{getattr(named, '__qualname__', None)}"


def _main(main: dict[str, Any], at_first: list[str]) -> dict[str, Any]:
    module = sys.modules["__main__"]
    spec, loader = main["__spec__"], main["__loader__"]
    return {
        "main: names at first": at_first,
        "main: __name__": main["__name__"],
        "main: __file__": main.get("__file__", "missing"),
        "main: __package__": main["__package__"],
        "main: __doc__": main["__doc__"],
        "main: __cached__": main.get("__cached__", "missing"),
        "main: __annotations__": main.get("__annotations__", "missing"),
        "main: __loader__": kind(loader if isinstance(loader, type) else type(loader)),
        "main: __loader__ name": getattr(loader, "name", "missing"),
        "main: __loader__ path": getattr(loader, "path", "missing"),
        "main: __spec__": spec and [spec.name, spec.origin, spec.parent, spec.has_location],
        "main: __builtins__": type(main["__builtins__"]).__name__,
        "main: __builtins__ are those": main["__builtins__"] in (builtins, vars(builtins)),
        "main: is in sys.modules": vars(module) is main,
        "main: __mp_main__": "__mp_main__" in sys.modules,
    }


def _system() -> dict[str, Any]:
    return {
        **{f"sys: {name}": repr(getattr(sys, name, "missing"))[:300] for name in OF_SYS.split()},
        "sys: argv": sys.argv,
        "sys: argv kind": type(sys.argv).__name__,
        "sys: orig_argv": sys.orig_argv,
        "sys: path": sys.path,
        "sys: flags": list(map(repr, sys.flags)),
        "sys: safe_path": getattr(sys.flags, "safe_path", None),
        "sys: warnoptions": sys.warnoptions,
        "sys: _xoptions": sys._xoptions,
        "sys: recursion limit": sys.getrecursionlimit(),
        "sys: switch interval": sys.getswitchinterval(),
        "sys: dlopen flags": sys.getdlopenflags(),
        "sys: digits": getattr(sys, "get_int_max_str_digits", lambda: None)(),
        "sys: trace, profile": [repr(sys.gettrace()), repr(sys.getprofile())],
        "sys: asyncgen hooks": repr(sys.get_asyncgen_hooks()),
        "sys: origin tracking": sys.get_coroutine_origin_tracking_depth(),
        "os: cwd": os.getcwd(),
        "os: environ": dict(os.environ),
        "os: environ is plain": [type(os.environ._data).__name__, kind(type(os.environ))],  # type: ignore[attr-defined]
        "os: environb": {os.fsdecode(key): os.fsdecode(value) for key, value in os.environb.items()},
        "gc: enabled": [gc.isenabled(), gc.get_debug(), len(gc.callbacks)],
        "gc: thresholds": gc.get_threshold(),
        "gc: frozen": gc.get_freeze_count(),
        "locale": [locale.setlocale(locale.LC_ALL), locale.getlocale(), locale.getpreferredencoding(False)],
        "time zone": [time.tzname, time.timezone],
        "tempfile": [tempfile.gettempdir(), tempfile.template],
        "cpu seconds are few": time.process_time() < 30,
    }


def streams() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        found[f"{name}: is the original"] = stream is getattr(sys, f"__{name}__")
        found[f"{name}: kinds"] = [type(part).__name__ for part in _layers(stream)]
        for each in OF_A_STREAM:
            found[f"{name}: {each}"] = repr(getattr(stream, each, "missing"))
        for each in ("fileno", "isatty", "readable", "writable", "seekable"):
            found[f"{name}: {each}"] = getattr(stream, each)()
    return found


def _layers(stream: Any) -> list[Any]:
    buffer = getattr(stream, "buffer", None)
    return [stream, buffer, getattr(buffer, "raw", None)]


def _signals() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number in sorted(signal.valid_signals()):
        handler = signal.getsignal(number)
        found[f"signal: {int(number)}"] = (
            str(handler) if isinstance(handler, signal.Handlers) else kind(handler)
        )
    wakeup = signal.set_wakeup_fd(-1)
    timers = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    return found | {
        "signal: wakeup descriptor": wakeup,
        "signal: blocked, pending": [
            sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
            sorted(signal.sigpending()),
        ],
        "signal: timers": [signal.getitimer(timer) for timer in timers],
        "faulthandler": faulthandler.is_enabled(),
    }


def _threads() -> dict[str, Any]:
    main = threading.main_thread()
    return {
        "threads: all": [thread.name for thread in threading.enumerate()],
        "threads: main is this one": [
            main is threading.current_thread(),
            main.ident == threading.get_ident(),
        ],
        "threads: native id is the pid": main.native_id == os.getpid(),
        "threads: stack size": threading.stack_size(),
        "threads: hook": kind(threading.excepthook),
        "multiprocessing: process": multiprocessing.current_process().name,
        "multiprocessing: parent": repr(multiprocessing.parent_process()),
        "multiprocessing: start method": multiprocessing.get_start_method(allow_none=True),
        "multiprocessing: children": multiprocessing.active_children(),
        "unique multiprocessing: authkey": multiprocessing.current_process().authkey.hex(),
    }


def _random() -> dict[str, Any]:
    return {
        "unique random: random": random.random(),
        "unique random: system": random.SystemRandom().random(),
        "unique random: uuid4": str(uuid.uuid4()),
        "unique random: temporary name": next(tempfile._get_candidate_names()),  # type: ignore[attr-defined]
        "hash: x": hash("x"),
        "hash: order of a set": list({"one", "two", "three", "four", "five"}),
    }


def _modules() -> dict[str, Any]:
    return {
        "modules": sorted(sys.modules),
        "modules: finders": [kind(finder) for finder in sys.meta_path],
        "modules: path hooks": [kind(hook) for hook in sys.path_hooks],
        "modules: __import__": kind(builtins.__import__),
        "modules: loaders": [kind(each.exec_module) for each in LOADERS],
        "modules: sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    }


def _hooks() -> dict[str, Any]:
    hooks = ("excepthook", "displayhook", "unraisablehook", "breakpointhook", "__excepthook__", "audit")
    handlers = [  # type: ignore[assignment]
        each for each in _loggers() for each in each.handlers if isinstance(each, logging.StreamHandler)
    ]
    return {
        **{f"hook: {name}": kind(getattr(sys, name)) for name in hooks},
        "hook: fork": [kind(os.fork), kind(os.register_at_fork), kind(signal.signal), kind(atexit.register)],
        "logging: root": [
            logging.root.level,
            [kind(each) for each in logging.root.handlers],
            logging.root.disabled,
        ],
        "logging: off": logging.root.manager.disable,
        "logging: other streams": [repr(each.stream) for each in handlers if not _is_todays(each.stream)],  # type: ignore[attr-defined]
        "logging: names": sorted(logging.root.manager.loggerDict),
        "warnings: filters": [repr(each) for each in warnings.filters],
        "warnings: shown by": kind(warnings.showwarning),
        "atexit: count": atexit._ncallbacks(),  # type: ignore[attr-defined]
    }


def _is_todays(stream: object) -> bool:
    """Whether what a handler writes goes where today's streams go."""
    return stream is None or stream is sys.stdout or stream is sys.stderr


def _loggers() -> list[logging.Logger]:
    every = logging.root.manager.loggerDict.values()
    return [logging.root, *(each for each in every if isinstance(each, logging.Logger))]


def tell_at_exit() -> None:
    """Two handlers print in which order they run, after everything else was printed."""
    place = f"rank {os.environ['RANK']} cycle {os.environ['TORCHELASTIC_RESTART_COUNT']}"
    for name in ("last", "first"):
        atexit.register(sys.stdout.write, f"{place} at exit {name}\n")
