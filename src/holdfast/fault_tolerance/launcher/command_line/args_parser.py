"""`get_args_parser`: an argparse parser of ``ft_launcher``'s options, for programs with a command line of their own.

The launcher itself does not use it: `options` reads a command line with less delay and better errors.

Does not cover: mixtures of hyphens and underscores that were never documented, and abbreviations.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import Any

from ...config import parse_with
from .ft_options import OPTIONS, FtOption
from .help import default_text
from .torch_options import build_parser

__all__ = ["get_args_parser"]

PREFIXES = ("ft-param-", "ft-")
"""The longest first."""


def get_args_parser() -> argparse.ArgumentParser:
    """A parser with all options of ``ft_launcher``: torchrun's, and Holdfast's in their documented spellings.

    The attributes of a result are torchrun's, ``ft_<setting>`` (text, as given) and the other options under the names
    of their flags. ``PET_…`` variables give the defaults, as in torchrun.

    `FaultToleranceConfig.from_args` makes a config of the result. Imports torch. Raises `ConfigError` for a variable
    with a wrong value.
    """
    parser = build_parser(argparse.ArgumentParser)
    with_flags = [option for option in OPTIONS if option.names]
    groups = {
        name: parser.add_argument_group(name) for name in dict.fromkeys(each.group for each in with_flags)
    }
    for option in with_flags:
        _add(option, groups[option.group], os.environ)
    return parser


def _add(option: FtOption, group: argparse._ArgumentGroup, environ: Mapping[str, str]) -> None:
    about: dict[str, Any] = {"dest": option.names[0].replace("-", "_")}
    if not option.takes_value:
        about["action"] = "store_true"
    elif option.is_setting:
        about["metavar"] = option.metavar  # text: `None` is a value, and None is an option that was not given
    else:
        about |= {"metavar": option.metavar, "type": _checked(option.parse)}
    first, *others = (spelling for name in option.names for spelling in _spellings(name))
    meaning = f"{option.meaning} [{default_text(option)}]".replace("%", "%%")
    group.add_argument(first, help=meaning, default=_default(option, environ), **about)
    group.add_argument(*others, help=argparse.SUPPRESS, default=argparse.SUPPRESS, **about)


def _spellings(name: str) -> list[str]:
    prefix = next((each for each in PREFIXES if name.startswith(each)), "")
    mixed = prefix + name.removeprefix(prefix).replace("-", "_")
    return [f"--{each}" for each in dict.fromkeys((name, mixed, name.replace("-", "_")))]


def _default(option: FtOption, environ: Mapping[str, str]) -> object:
    variable = next((name for name in option.variables if environ.get(name, "").strip()), None)
    if variable is None:
        return None if option.is_setting else option.default
    value = parse_with(option.parse, environ[variable], variable)
    return environ[variable] if option.is_setting else value


def _checked(parse: Callable[[object], object]) -> Callable[[str], object]:
    """`parse` with the error that argparse shows in full."""

    def convert(text: str) -> object:
        try:
            return parse(text)
        except ValueError as problem:
            raise argparse.ArgumentTypeError(str(problem)) from None

    return convert
