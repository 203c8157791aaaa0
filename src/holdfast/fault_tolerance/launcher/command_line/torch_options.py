"""torchrun's options, by the installed torch's own parser, so that they mean here what they mean there.

What differs from torchrun on purpose: errors are one line, the default of ``--signals-to-handle`` has SIGUSR1 and
SIGUSR2 too (Slurm's and Lightning's preemption signals), and the parser never sees the script's arguments.

`KNOWN` lists the options of all tested versions of torch. With it a wrong setting is reported before torch is imported,
in 0.1 s instead of seconds; it decides nothing else, and an option that it lacks is looked up in the real parser.

Does not cover: whether values make sense together (`torch_checks`). torch's ``PET_…`` variables are read by torch
from the process's environment.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ...config_fields import nearest
from ...errors import ConfigError
from .ft_options import by_name, variables
from .option_spellings import TorchOption, Vocabulary

__all__ = [
    "build_parser",
    "known_vocabulary",
    "parse_torch",
    "source_of",
    "unknown_variables",
    "vocabulary_of",
]

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"

DIFFERENT = {
    "signals_to_handle": f"Comma-separated list of signals to forward to the ranks. Default: {SIGNALS}.",
    "shutdown_timeout": "As in torchrun, but --workers-stop-timeout takes precedence and its default holds.",
    "rdzv_backend": "c10d, or static, which is served by a c10d store on node 0.",
}
"""Help texts of options whose default or range is another one here."""

SWITCHES = ["help", "standalone", "module", "no-python", "run-path", "virtual-local-rank"]
# fmt: off
KNOWN = [
    "nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts",
    "monitor-interval", "start-method", "event-log-handler", "role", "log-dir", "redirects", "tee",
    "local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters", "node-rank",
    "master-addr", "master-port", "local-addr", "logs-specs", "numa-binding", "signals-to-handle",
    "shutdown-timeout", "log-line-prefix-template", "print-completion",
]
# fmt: on
LETTERS = {"h": "help", "m": "module", "r": "redirects", "t": "tee"}


class _Parser(argparse.ArgumentParser):
    """A parser that raises its complaint instead of printing the usage and leaving."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def known_vocabulary() -> Vocabulary:
    """The options of the tested torch and ours, in full spellings only: abbreviations depend on the real list."""
    torch = {name: TorchOption(f"--{name}", name not in SWITCHES) for name in (*SWITCHES, *KNOWN)}
    letters = {letter: torch[name] for letter, name in LETTERS.items()}
    return Vocabulary(torch, letters, by_name(), abbreviations=False)


def build_parser(kind: type[argparse.ArgumentParser] = _Parser) -> argparse.ArgumentParser:
    """torch's own parser of torchrun's command line, as a `kind` of parser. Imports torch (seconds)."""
    from torch.distributed.run import get_args_parser

    try:
        theirs = get_args_parser()
    except ValueError:
        raise _wrong_switch_variable() from None
    parser = kind(
        prog="ft_launcher",
        usage="ft_launcher [options] training_script [options of the training script]",
        description="Starts distributed PyTorch training as torchrun does, watches every rank, and has the job "
        "training again after a crash, a hang or a lost node. Takes every option of torchrun.",
        parents=[theirs],
        add_help=False,
        allow_abbrev=False,
    )
    if "signals_to_handle" not in {action.dest for action in parser._actions}:  # new in torch 2.10
        default = os.environ.get("PET_SIGNALS_TO_HANDLE")
        parser.add_argument("--signals-to-handle", "--signals_to_handle", default=default)
    for action in parser._actions:
        action.help = DIFFERENT.get(action.dest, action.help)
        if action.dest == "signals_to_handle" and "PET_SIGNALS_TO_HANDLE" not in os.environ:
            action.default = SIGNALS
    return parser


def vocabulary_of(parser: argparse.ArgumentParser) -> Vocabulary:
    """The options of `parser` and ours."""
    torch: dict[str, TorchOption] = {}
    letters: dict[str, TorchOption] = {}
    for action in parser._actions:
        option = TorchOption(_name(action), action.nargs != 0)
        for each in action.option_strings:
            if each.startswith("--"):
                torch[each[2:].replace("_", "-")] = option
            else:
                letters[each[1:]] = option
    return Vocabulary(torch, letters, by_name(), missing={*SWITCHES, *KNOWN} - torch.keys())


def parse_torch(parser: argparse.ArgumentParser, tokens: Sequence[str]) -> argparse.Namespace:
    """torchrun's namespace for `tokens` (as `scan` gives them), without script. Raises `ConfigError` in one line."""
    try:
        namespace = parser.parse_args([*tokens, "script"])
    except ConfigError as error:
        raise ConfigError(_in_one_line(str(error), tokens)) from None
    for action in parser._actions:
        value = getattr(namespace, action.dest, None)
        # argparse checks choices of given values only, not of a default, and a PET_ variable is a default.
        if action.choices is not None and value is not None and value not in action.choices:
            allowed = ", ".join(map(str, action.choices))
            raise ConfigError(
                f"{source_of(action.dest, tokens)}: {value!r} is not allowed: give one of {allowed}"
            )
    return namespace


def source_of(dest: str, tokens: Sequence[str]) -> str:
    """Who set the option `dest`, for errors: the flag, or the environment variable when there is no flag."""
    flag, variable = f"--{dest.replace('_', '-')}", f"PET_{dest.upper()}"
    return variable if variable in os.environ and not _has_flag(flag, tokens) else flag


def is_given(dest: str, tokens: Sequence[str]) -> bool:
    """Whether the user set the option `dest`."""
    return f"PET_{dest.upper()}" in os.environ or _has_flag(f"--{dest.replace('_', '-')}", tokens)


def _has_flag(flag: str, tokens: Sequence[str]) -> bool:
    return any(token == flag or token.startswith(f"{flag}=") for token in tokens)


def unknown_variables(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> list[str]:
    """A warning for each ``PET_…`` variable that neither torchrun nor we have: torchrun passes over them in silence."""
    known = {
        f"PET_{action.dest.upper()}" for action in parser._actions if action.option_strings
    } | variables()
    found = []
    for name in sorted(name for name in environ if name.startswith("PET_") and name not in known):
        if name.removeprefix("PET_").lower().replace("_", "-") in KNOWN:
            found.append(
                f"environment variable {name} has no effect: it needs a newer torch than the installed one"
            )
            continue
        near = nearest(name, known)
        hint = f"did you mean {near}?" if near else "unset it"
        found.append(f"environment variable {name} has no effect: ft_launcher has no such option; {hint}")
    return found


def _name(action: argparse.Action) -> str:
    longest = [each for each in action.option_strings if each.startswith("--")]
    return (longest or action.option_strings or [""])[0]


def _in_one_line(message: str, tokens: Sequence[str]) -> str:
    found = re.match(r"argument (\S+): (.*)", message, re.DOTALL)
    if found is None:
        return message
    name = next(each for each in reversed(found[1].split("/")) if each.startswith("-"))
    return f"{source_of(name.lstrip('-').replace('-', '_'), tokens)}: {found[2]}"


def _wrong_switch_variable() -> ConfigError:
    """torch reads the variable of a switch by int(), before there is any parser to complain."""
    for switch in SWITCHES:
        variable = f"PET_{switch.upper().replace('-', '_')}"
        value = os.environ.get(variable, "0")
        if not _is_int(value):
            return ConfigError(f"{variable}: {value!r} is not allowed: give 0 or 1")
    return ConfigError("a PET_… variable of a switch is neither 0 nor 1")


def _is_int(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def environment_switch(name: str, environ: Mapping[str, str]) -> bool:
    """Whether torch takes the switch `name` from ``PET_…``; a value that it would refuse counts as no."""
    value = environ.get(f"PET_{name.upper()}", "0")
    return _is_int(value) and int(value) != 0
