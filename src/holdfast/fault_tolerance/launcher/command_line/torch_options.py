"""torchrun's options: one table, good for all supported versions of torch, so that a command line needs no torch.

A test compares the table with the installed torch's own parser. `SINCE` has the versions of newer options. An option
that the table lacks is searched in the parser of a torch that is newer than the tested ones or has a special build
(:func:`options_of_torch`, which imports torch).

What differs from torchrun on purpose: errors are one line, the default of ``--signals-to-handle`` has SIGUSR1 and
SIGUSR2 too (Slurm's and Lightning's preemption signals), and the script's arguments are never parsed.

Does not cover: whether values make sense together (`checks`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from holdfast import torch_version
from holdfast.torch_version import NEWEST, OLDEST, release

from ...config_fields import nearest
from ...config_sources import Given
from ...errors import ConfigError
from .ft_options import variables

__all__ = [
    "TorchOption",
    "installed_options",
    "installed_torch",
    "namespace",
    "options_of_torch",
    "source_of",
    "unknown_variables",
]

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"


def _list(value: str) -> list[str]:
    """Separated by commas; two of them are one comma."""
    return [item.replace("\0", ",") for item in value.replace(",,", "\0").split(",")]


@dataclass(frozen=True)
class TorchOption:
    """One option of torchrun.

    Attributes:
        name: With hyphens and without dashes.
        meaning: The text of ``--help``.
        default: As torchrun has it where neither a flag nor a variable is given.
        parse: Makes the value of a text; None for a switch, which takes none.
        letter: Its one-letter form.
        choices: The allowed values; empty for any.
        has_variable: Whether ``PET_NAME`` in the environment sets it.
    """

    name: str
    meaning: str = ""
    default: object = None
    parse: Callable[[str], object] | None = str
    letter: str = ""
    choices: tuple[str, ...] = ()
    has_variable: bool = True

    @property
    def takes_value(self) -> bool:
        """Whether a value belongs to it."""
        return self.parse is not None

    @property
    def dest(self) -> str:
        """Its attribute in torchrun's namespace."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"PET_{self.dest.upper()}"


def _switch(name: str, meaning: str, letter: str = "") -> TorchOption:
    return TorchOption(name, meaning, False, None, letter)


# fmt: off
TABLE = (
    TorchOption("nnodes", "number of nodes, or MIN:MAX", "1:1"),
    TorchOption("nproc-per-node", "ranks per node: a number, auto, cpu, gpu or xpu", "1"),
    TorchOption("rdzv-backend", "c10d, or static, which is served by a c10d store on node 0", "static"),
    TorchOption("rdzv-endpoint", "HOST:PORT of the rendezvous store", ""),
    TorchOption("rdzv-id", "id of the job, the same on every node", "none"),
    TorchOption("rdzv-conf", "more settings of the rendezvous: KEY=VALUE,...", ""),
    _switch("standalone", "one node; the options of the rendezvous are ignored"),
    TorchOption("max-restarts", "restarts of all ranks before the job fails", 0, int),
    TorchOption("monitor-interval", "has no effect: exits of ranks are events", 0.1, float),
    TorchOption("start-method", "has no effect: each rank is a program of its own", "spawn",
                choices=("spawn", "fork", "forkserver")),
    TorchOption("event-log-handler", "has no effect: the events of the job are in its journal", "null"),
    TorchOption("role", "name of the ranks in log lines and in ROLE_NAME", "default"),
    _switch("module", "the script is a module, run as with python -m", "m"),
    _switch("no-python", "the script is a program of its own, not run by python"),
    _switch("run-path", "run the script by runpy.run_path; takes precedence over --no-python"),
    TorchOption("log-dir", "folder for the logs of the ranks"),
    TorchOption("redirects", "streams to write to files: 0, 1 (stdout), 2 (stderr), 3, or RANK:STREAM,...", "0",
                letter="r"),
    TorchOption("tee", "streams to write to files and to the console, as --redirects", "0", letter="t"),
    TorchOption("log-line-prefix-template", "prefix of lines of --tee; has ${role_name}, ${local_rank}, ${rank}, "
                "${hostname}", ""),
    TorchOption("local-ranks-filter", "show only the output of these local ranks, like 0,1", ""),
    TorchOption("duplicate-stdout-filters", "copy lines of --tee with one of these words to a file", [], _list),
    TorchOption("duplicate-stderr-filters", "as --duplicate-stdout-filters, for stderr", [], _list),
    TorchOption("node-rank", "number of this node", 0, int),
    TorchOption("master-addr", "address of node 0, for --rdzv-backend static", "127.0.0.1"),
    TorchOption("master-port", "port on node 0, for --rdzv-backend static [29500]", None, int),
    TorchOption("local-addr", "address of this node, where it cannot be found"),
    TorchOption("logs-specs", "entry point of the group torchrun.logs_specs that decides on log files",
                has_variable=False),
    TorchOption("numa-binding", "bind each rank to the processors of its GPU", has_variable=False,
                choices=("node", "socket", "exclusive", "core-complex")),
    TorchOption("signals-to-handle", "signals to pass on to the ranks", SIGNALS),
    TorchOption("shutdown-timeout", "as --workers-stop-timeout, which takes precedence", None, int),
    _switch("virtual-local-rank", "each rank has LOCAL_RANK 0 and sees only its own GPU"),
    TorchOption("print-completion", "print torchrun's completion for a shell, and exit", has_variable=False),
    TorchOption("help", "show this text", parse=None, letter="h", has_variable=False),
)
SINCE = {
    "numa-binding": (2, 9),
    "duplicate-stdout-filters": (2, 10), "duplicate-stderr-filters": (2, 10), "virtual-local-rank": (2, 10),
    "shutdown-timeout": (2, 12),
    "log-line-prefix-template": (2, 15), "print-completion": (2, 15),
}
# fmt: on
"""The first version of torch that has the option, where that is not the oldest supported one. `signals-to-handle` is
new in 2.10, but does not depend on torch."""


def installed_torch() -> str:
    """The version of the torch of this environment; empty without one.

    By the name of the folder with its metadata: to import importlib.metadata takes longer than all that the launcher
    does until it starts the ranks.
    """
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith("torch-") and name.endswith(".dist-info"):
                return name[len("torch-") : -len(".dist-info")]
    return torch_version.installed()


def installed_options() -> tuple[TorchOption, ...]:
    """The options of the installed torch; all of the table where its version is unknown."""
    version = installed_torch()
    return tuple(
        option for option in TABLE if not version or release(version) >= SINCE.get(option.name, OLDEST)
    )


def print_completion(shell: str) -> None:
    """torch's own answer to ``--print-completion``, which ends the program."""
    from torch.distributed.run import get_args_parser

    get_args_parser().parse_args(["--print-completion", shell])


def options_of_torch() -> tuple[TorchOption, ...]:
    """Those of the installed torch's parser, if that may have others than the table. May import torch (seconds)."""
    version = installed_torch()
    if re.fullmatch(r"[\d.]+(\+[\w.]+)?", version) and release(version) <= NEWEST:
        return ()  # a release that the table has been compared with
    from torch.distributed.run import get_args_parser

    try:
        actions = get_args_parser()._actions
    except ValueError:  # the variable of a switch is no number, which `namespace` reports
        return ()
    found = []
    for action in actions:
        name = next(
            (each[2:].replace("_", "-") for each in action.option_strings if each.startswith("--")), ""
        )
        letter = next((each[1:] for each in action.option_strings if not each.startswith("--")), "")
        if name:
            parse: Any = None if action.nargs == 0 else action.type or str
            choices = tuple(map(str, action.choices or ()))
            found.append(TorchOption(name, action.help or "", action.default, parse, letter, choices))
    return tuple(found)


def namespace(
    options: tuple[TorchOption, ...], given: Mapping[str, Given], environ: Mapping[str, str]
) -> SimpleNamespace:
    """torchrun's namespace, without the script. Raises `ConfigError`.

    Args:
        given: Texts from the command line by name of the option.
    """
    values = {}
    for option in options:
        if option.name == "help":
            continue
        value = option.default
        if option.name in given:
            text = str(given[option.name].value)
            value = _parsed(option, text, f"--{option.name}") if option.takes_value else True
        elif option.has_variable and option.variable in environ:
            value = _from_variable(option, environ[option.variable])
        values[option.dest] = value
    return SimpleNamespace(**values)


def _parsed(option: TorchOption, text: str, where: str) -> object:
    assert option.parse is not None
    try:
        value = option.parse(text)
    except ValueError:
        kind = getattr(option.parse, "__name__", "")
        raise ConfigError(f"{where}: invalid {kind} value: {text!r}") from None
    if option.choices and value not in option.choices:
        allowed = ", ".join(option.choices)
        raise ConfigError(f"{where}: invalid choice: {text!r} (choose from {allowed})")
    return value


def _from_variable(option: TorchOption, text: str) -> object:
    if option.takes_value:
        if option.choices and text not in option.choices:
            allowed = ", ".join(option.choices)
            raise ConfigError(f"{option.variable}: {text!r} is not allowed: give one of {allowed}")
        return _parsed(option, text, option.variable)
    try:
        return bool(int(text))
    except ValueError:
        raise ConfigError(f"{option.variable}: {text!r} is not allowed: give 0 or 1") from None


def source_of(dest: str, given: Mapping[str, Given], environ: Mapping[str, str]) -> str:
    """What set the option `dest`, for errors: the flag, or the environment variable when there is no flag."""
    name, variable = dest.replace("_", "-"), f"PET_{dest.upper()}"
    return variable if variable in environ and name not in given else f"--{name}"


def is_given(dest: str, given: Mapping[str, Given], environ: Mapping[str, str]) -> bool:
    """Whether the user set the option `dest`."""
    return f"PET_{dest.upper()}" in environ or dest.replace("_", "-") in given


def unknown_variables(options: tuple[TorchOption, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """Each ``PET_…`` variable that neither torchrun nor we have -> a warning: torchrun ignores them silently."""
    known = {option.variable for option in options} | variables()
    newer = {option.variable for option in TABLE} - known
    found = {}
    for name in sorted(name for name in environ if name.startswith("PET_") and name not in known):
        why = "it needs a newer torch than the installed one"
        if name not in newer:
            near = nearest(name, known)
            why = f"ft_launcher has no such option; {f'did you mean {near}?' if near else 'unset it'}"
        found[name] = f"environment variable {name} has no effect: {why}"
    return found
