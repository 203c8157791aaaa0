"""``ft_launcher``: from the command line to an exit code.

A user's mistake ends here with one line and code 2, before anything was started.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from ..errors import ConfigError
from .in_time import TooLate, within
from .inbox import Inbox
from .ranks import exits

# torch's C++ side prints a page of stack for every connection that ends; the launcher says it in a sentence.
QUIET = ("TORCH_CPP_LOG_LEVEL", "ERROR")
EARLY = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def console() -> None:
    """Entry point of the command ``ft_launcher``."""
    code = main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        # Nobody reads it any more, or not now; it is closed, or was so from the start.
        with suppress(OSError, ValueError, AttributeError, TooLate):
            within(1.0, stream.flush)
    # Everything is closed; torch's interpreter shutdown would only take time that users wait for.
    os._exit(code)


def main(argv: Sequence[str]) -> int:
    """Run the job that `argv` describes; returns the exit code (docs/exit-codes.md)."""
    before = os.environ.get(QUIET[0])
    os.environ.setdefault(*QUIET)
    inbox = Inbox()
    try:
        # From here on a scheduler's signal is kept until it can be answered; Ctrl-C still ends an import at once.
        inbox.handle(EARLY)
        from .command_line import options

        given = options.parse(list(argv), os.environ)
        from . import launch

        _restore(before)
        return launch.run(given, inbox)
    except ConfigError as error:
        print(f"ft_launcher: error: {error}", file=sys.stderr)
        return exits.USAGE
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print(
            "ft_launcher: error: PyTorch is not installed in this environment (pip install torch)",
            file=sys.stderr,
        )
        return exits.USAGE
    except SystemExit as stop:  # argparse: --help, or an error that it has already said
        return stop.code if isinstance(stop.code, int) else exits.FAILED
    except KeyboardInterrupt:  # before the launcher took over the signals, nothing is started
        return exits.INTERRUPTED
    finally:
        inbox.close()


def _restore(before: str | None) -> None:
    """torch has read the variable when it was imported; the ranks get the user's own."""
    if before is None:
        os.environ.pop(QUIET[0], None)


if __name__ == "__main__":
    console()
