"""The documented constructors of the fault-tolerance callbacks, the same for every framework; and callbacks' loggers.

What always holds: arguments that cannot be meant are refused when the callback is made; an environment that they cannot
work in, when the training begins. While the program has no logging handlers, a callback's lines go to stderr from INFO
on; the root logger stays as it is, or other libraries' lines would show, and `logging.basicConfig` do nothing.

Does not cover: what the arguments do; a program that sets up logging later, for warnings only, on the root: lines from
INFO on reach its handlers.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from holdfast.fault_tolerance.board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from holdfast.fault_tolerance.config import docstring_section
from holdfast.prefixed_log import Prefixed
from holdfast.testing.fault import SimulatedFaultParams

from .completion import flag_path, why_no_flag

INSTEAD_OF_ROOT = "holdfast.callbacks"
"""Where no name is given, and the root has no handler."""

Constructor = TypeVar("Constructor", bound=Callable[..., None])

MEANINGS = {
    "autoresume": "Create the file that FAULT_TOL_FINISHED_FLAG_FILE names when the training is finished. "
    "True, False, or None: True where that variable is set.",
    "calculate_timeouts": "Learn timeouts from observed durations, and use those of earlier jobs. They replace "
    "configured ones. Timeouts of heartbeats are learned at the end of a job that loaded and saved a checkpoint: of a "
    "training from scratch, its second job. Those of sections are learned after saves and at the end. True or False.",
    "simulated_fault_params": "A fault to rehearse with: `SimulatedFaultParams` or a dict of its fields, with delays "
    "in seconds. None injects no fault.",
    "exp_dir": "The folder of the state file, the same for all jobs. It is made if it is missing. None is the folder "
    "`ft_state` in Lightning's `trainer.log_dir`, or in Hugging Face's `output_dir`. A framework may move files "
    "that are written directly to `trainer.log_dir`. A path, or None.",
    "logger_name": "The logger of all lines; None is the root logger. While the program has set up no logging, lines "
    "from INFO on go to stderr, and the root logger stays as it is. A text, or None.",
    "exc_handling_policy": "Is called with the exception that ends the training. It returns a WorkloadControlRequest "
    "for the launcher, or None. ShutdownWorkload first creates the file that FAULT_TOL_FINISHED_FLAG_FILE names. "
    "A function, or None.",
}
"""What each argument means, and in which unit it is. The defaults are those of the signatures."""


def described(constructor: Constructor) -> Constructor:
    """Give a constructor a docstring of its arguments; it is otherwise unchanged."""
    parameters = list(inspect.signature(constructor).parameters.values())[1:]
    items = [(each.name, f"{MEANINGS[each.name]} {_default(each)}") for each in parameters]
    summary = "Take the arguments; everything else is done when the training begins."
    raises = docstring_section("Raises", [("ValueError", "an argument is not what is allowed.")])
    constructor.__doc__ = f"{summary}\n\n{docstring_section('Args', items)}\n\n{raises}\n"
    return constructor


def _default(parameter: inspect.Parameter) -> str:
    return "Required." if parameter.default is parameter.empty else f"Default: {parameter.default!r}."


class FaultToleranceArguments:
    """The arguments of `FaultToleranceCallback`, as attributes of their names."""

    TIMEOUTS_FILENAME: ClassVar[str] = "_ft_state.json"
    FT_DIR_NAME: ClassVar[str] = "ft_state"

    @described
    def __init__(
        self,
        autoresume: bool | None = None,
        calculate_timeouts: bool = True,
        simulated_fault_params: SimulatedFaultParams | dict[str, Any] | Any | None = None,
        exp_dir: str | Path | None = None,
        logger_name: str | None = "nemo_logger.FaultToleranceCallback",
    ) -> None:
        self.autoresume = None if autoresume is None else flag("autoresume", autoresume)
        self.calculate_timeouts = flag("calculate_timeouts", calculate_timeouts)
        fault = simulated_fault_params
        self.simulated_fault_params = None if fault is None else SimulatedFaultParams.parse(fault)
        self.exp_dir = folder(exp_dir)
        self.logger_name = logger_name

    @property
    def makes_flag(self) -> bool:
        """Whether the finished flag is created when the training is finished."""
        return flag_path() is not None if self.autoresume is None else self.autoresume


class SectionsArguments(FaultToleranceArguments):
    """The arguments of `FaultToleranceSectionsCallback`."""

    TIMEOUTS_FILENAME: ClassVar[str] = "_ft_state_.json"

    @described
    def __init__(
        self,
        autoresume: bool | None = None,
        calculate_timeouts: bool = True,
        simulated_fault_params: SimulatedFaultParams | dict[str, Any] | Any | None = None,
        exp_dir: str | Path | None = None,
        logger_name: str | None = "nemo_logger.FaultToleranceCallback",
        exc_handling_policy: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(autoresume, calculate_timeouts, simulated_fault_params, exp_dir, logger_name)
        if exc_handling_policy is not None and not callable(exc_handling_policy):
            raise ValueError(
                f"exc_handling_policy must be a function of the exception or None, not {exc_handling_policy!r}"
            )
        self.exc_handling_policy = exc_handling_policy


class NoFlagError(RuntimeError, SystemExit):
    """`autoresume` is True, and nothing names the flag. It ends a rank with 1 and no traceback: rank 0 has said it."""

    code = 1


def verify_environment(arguments: FaultToleranceArguments, rank: int, log: Prefixed) -> None:
    """Raises RuntimeError, with what to do, without `ft_launcher`; NoFlagError without the flag `autoresume` needs."""
    no_flag = why_no_flag() if arguments.autoresume is True else ""
    missing = " ".join(filter(None, [no_flag, why_no_launcher(type(arguments).__name__)]))
    if no_flag:
        if rank == 0:
            log.error("%s", missing)
        raise NoFlagError(missing)
    if missing:
        raise RuntimeError(missing)


def why_no_launcher(who: str) -> str:
    """What to run instead, if the program was not started by `ft_launcher`; else nothing."""
    if os.environ.get(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR) is not None:
        return ""
    script = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0].endswith(".py") else "script.py"
    return (
        f"{who} needs ft_launcher, which watches over the ranks, and this program was started without it "
        f"({FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR} is not set). "
        f"Run `ft_launcher --nproc-per-node=N {script}` with N ranks on this node, "
        f"in place of `python {script}` or torchrun; or take the callback out of the trainer."
    )


def refuse_untested(framework: str, version: str, tested: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """Raises RuntimeError where the framework is older or newer than the first and the last that were tested."""
    first, last = (".".join(map(str, each)) for each in tested)
    if not tested[0] <= tuple(int(part) for part in version.split(".")[:2]) <= tested[1]:
        raise RuntimeError(
            f"holdfast was tested with {framework} {first} to {last}, and this is {version}: install one of those "
            f"(pip install '{framework.lower()}=={last}.*'), or a holdfast that was tested with yours"
        )


def flag(name: str, value: Any) -> bool:
    """Any text would count as true, "no" as well. Raises ValueError."""
    if value not in (True, False):
        raise ValueError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def folder(value: Any) -> str | Path | None:
    """The `exp_dir`. Raises ValueError."""
    if value is not None and not isinstance(value, (str, os.PathLike)):
        raise ValueError(f"exp_dir must be a folder's path or None, not {value!r}")
    return value if value is None or isinstance(value, str) else Path(value)


# -- the logger


def named(name: str | None) -> logging.Logger:
    """The logger; None (or "root") is the root's, or one of ours below it where the root would show nothing."""
    logger = logging.getLogger(name)
    if logger.hasHandlers():
        return logger
    if logger.parent is None:
        logger = logging.getLogger(INSTEAD_OF_ROOT)
    if not any(isinstance(handler, _UntilThereAreOthers) for handler in logger.handlers):
        logger.addHandler(_UntilThereAreOthers(logger))
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    return logger


class _UntilThereAreOthers(logging.StreamHandler):  # type: ignore[type-arg]
    """Silent once the program has handlers that get the same lines."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if not _others(self._logger):
            super().emit(record)


def _others(logger: logging.Logger | None) -> bool:
    """Whether a line given to this logger reaches a handler that is not ours."""
    while logger is not None:
        if any(not isinstance(handler, _UntilThereAreOthers) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
