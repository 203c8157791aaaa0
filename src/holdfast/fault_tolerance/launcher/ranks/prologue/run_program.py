"""Start a program that is not Python (``--no-python``) as a rank: tie its life to the launcher's, then exec it.

Run as ``python -I -S run_program.py PROGRAM ARGS…``. Exits 127 when there is no such program and 126 when it
cannot be run, as a shell does.
"""

import ctypes
import os
import signal
import sys


def main() -> None:
    # The signal is kept over exec, unless the program is set-uid.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.environ.get("HOLDFAST_LAUNCHER_PID") != str(os.getppid()):
        os._exit(1)  # the launcher, which starts this directly, died before the line above
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        rank = os.environ.get("RANK", "?")
        sys.stderr.write(f"[holdfast] rank {rank} cannot run {sys.argv[1]}: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


main()
