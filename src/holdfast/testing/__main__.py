"""`python -m holdfast.testing [-m MODULE | SCRIPT] ARGS…`: runs an unmodified program with HOLDFAST_FAULT armed.

For programs that call no `Faults.at_step`: it arms the delayed faults (`after=`). Those with `step=` are left in the
environment for the program itself, and a line on stderr reports it. The program sees the argv, the `__name__` and the
sys.path that it would have without us.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import NoReturn

from holdfast.testing.fault import FaultSpecError, parse
from holdfast.testing.injector import ENVIRONMENT, Faults

USAGE = f"usage: {ENVIRONMENT}=FAULTS python -m holdfast.testing [-m MODULE | SCRIPT] [ARGS ...]"


def main(argv: list[str]) -> None:
    """Runs the program; ends with status 2 and one line when the fault or the command line is wrong."""
    as_module = argv[:1] == ["-m"]
    program = argv[1:] if as_module else argv
    if not program or program[0].startswith("-"):
        _refuse(USAGE)
    try:
        _arm_delayed(os.environ.get(ENVIRONMENT, ""))
    except FaultSpecError as error:
        _refuse(f"holdfast.testing: error: {error}")
    sys.argv = program
    if as_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
        runpy.run_path(program[0], run_name="__main__")


def _arm_delayed(text: str) -> None:
    faults = parse(text, ENVIRONMENT) if text.strip() else ()
    at_step = ";".join(str(fault) for fault in faults if fault.step is not None)
    # What is armed here is taken out of the environment: a program that does call Faults would arm it again.
    os.environ.pop(ENVIRONMENT, None)
    if at_step:
        os.environ[ENVIRONMENT] = at_step
        if os.environ.get("RANK", "0") == "0":
            print(f"[holdfast.testing] left to the program's own Faults.at_step: {at_step}", file=sys.stderr)
    Faults(fault for fault in faults if fault.after is not None)


def _refuse(text: str) -> NoReturn:
    print(text, file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
