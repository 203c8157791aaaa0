"""``ft_launcher``: from the command line to an exit code.

A user's mistake ends here with one line and code 2, before anything was started. Almost nothing is imported before
signals are handled. Until all imports are done Ctrl-C ends the process by itself, not by KeyboardInterrupt: torch and
numpy, which a job of several nodes needs, may catch that in their imports, and the job would continue.
Once the command's exit code is known, no signal that it handles changes it.

Does not cover: signals before `main` is called, in about the first 0.05 s; SIGINT is a traceback of Python's then.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from ..processes.process_one import leave_process_one

if TYPE_CHECKING:
    from .inbox import Inbox

# torch's C++ side prints a page of stack for every connection that ends; the launcher logs one sentence.
QUIET = ("TORCH_CPP_LOG_LEVEL", "ERROR")
INTERRUPTED = 130  # Ctrl-C; the other codes are in `exit_codes`
_at_once: list[Callable[[], object]] = []
"""What ends a zygote that has been started, when the launcher ends before it has begun."""
EARLY = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def console() -> None:
    """Entry point of the command ``ft_launcher``."""
    leave_process_one()
    code = _main(sys.argv[1:], is_last=True)
    from contextlib import suppress

    from holdfast.in_time import TooLate, within

    for stream in (sys.stdout, sys.stderr):
        # It is not read any more, or not now; it is closed, or was so from the start.
        with suppress(OSError, ValueError, AttributeError, TooLate):
            within(1.0, stream.flush)
    # Everything is closed; torch's interpreter shutdown would only take time that users wait for.
    os._exit(code)


def main(argv: Sequence[str]) -> int:
    """Run the job that `argv` describes; returns the exit code (docs/exit-codes.md), and gives the signals back."""
    return _main(argv, is_last=False)


def _main(argv: Sequence[str], *, is_last: bool) -> int:
    """The same; with `is_last` the process only ends after it: signals are not given back, and change nothing."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, the ranks' exit codes would be lost
    # From here on a scheduler's signal is kept until it can be answered; Ctrl-C ends what is only imports, at once.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, EARLY)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from .inbox import Inbox

    inbox = Inbox()
    gives_back = True
    try:
        inbox.handle(EARLY)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = _run(argv, inbox)
        gives_back = not is_last
        return code
    finally:
        inbox.close(gives_back=gives_back)
        if gives_back:
            _interruptible_again()
        elif signal.getsignal(signal.SIGINT) in (_leave, signal.default_int_handler):
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave(number: int, frame: object) -> NoReturn:
    for end in _at_once:
        end()
    os._exit(INTERRUPTED)  # nothing else was started or made


def _interruptible_again() -> None:
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(argv: Sequence[str], inbox: Inbox) -> int:
    from ..errors import ConfigError, UnsupportedTorch
    from .exit_codes import Outcome

    before = os.environ.get(QUIET[0])
    from .warm.plan import request_of
    from .warm.pool import Ahead

    ahead = Ahead(os.environ)
    _at_once[:] = [ahead.close]
    os.environ.setdefault(*QUIET)
    try:
        from .command_line import options

        given = options.read(argv, os.environ)
        ahead.begin(request_of(given), given.run_dir)
        from . import launch

        if launch.needs_torch(given.torch):
            import torch.distributed  # noqa: F401  # here, where its errors are answered
        if before is None:  # torch has read it; the ranks get the user's own
            os.environ.pop(QUIET[0], None)
        _interruptible_again()
        return launch.run(given, inbox, ahead)
    except FileNotFoundError:
        from .command_line.checks import check_folder

        try:
            check_folder()
        except ConfigError as gone:
            print(f"ft_launcher: error: {gone}", file=sys.stderr)
            return Outcome.USAGE.code
        raise
    except (ConfigError, UnsupportedTorch, ModuleNotFoundError) as error:
        line = " ".join(str(error).split())
        if isinstance(error, ModuleNotFoundError):
            if error.name != "torch":
                raise
            line = "PyTorch is not installed in this environment (pip install torch)"
        print(f"ft_launcher: error: {line}", file=sys.stderr)
        return Outcome.USAGE.code
    except SystemExit as stop:  # --help
        return stop.code if isinstance(stop.code, int) else Outcome.LAUNCHER_FAILED.code
    except KeyboardInterrupt:  # --signals-to-handle without SIGINT
        return INTERRUPTED
    finally:
        ahead.close()


if __name__ == "__main__":
    console()
