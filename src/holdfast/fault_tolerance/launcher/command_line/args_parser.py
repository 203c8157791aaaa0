"""The options in two other forms: the text of ``--help``, and `get_args_parser` for programs with a command line of
their own.

The launcher itself does not use that parser: `options` reads a command line with less delay and better errors. Options
without effect are listed in the help by name only; docs/settings-history.md has the table.

Does not cover: mixtures of hyphens and underscores that were never documented, and abbreviations.
"""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from ... import config_fields as grammar
from ...config import parse_with
from .ft_options import OPTIONS, PAST, FtOption
from .torch_options import TorchOption, installed_options, namespace

__all__ = ["default_text", "get_args_parser", "help_text"]

PREFIXES = ("ft-param-", "ft-")
"""The longest first."""
ABOUT = (
    "Starts distributed PyTorch training as torchrun does, watches every rank, and has the job training\n"
    "again after a crash, a hang or a lost node. Takes every option of torchrun."
)
HEAD = f"""\
usage: ft_launcher [options] training_script [options of the training script]

{ABOUT}
"""
FOOT = """\
settings come from: built-in default < YAML file < environment < command line; all of them apply together.
Each option may be spelled with - or _, as --ft-NAME or --ft-param-NAME, and set as PET_FT_NAME in the environment.
SECONDS are numbers; where the default is a limit, None, null or nothing means no limit."""


def help_text() -> str:
    """torchrun's options, then a group for each subject of ours."""
    effective = [option for option in OPTIONS if option.group != PAST]
    rows = {"options of torchrun": [_row(each) for each in installed_options()]}
    for group in dict.fromkeys(option.group for option in effective):
        rows[group] = [
            (f"{each.name} {each.metavar}".rstrip(), f"{each.meaning} [{default_text(each)}]")
            for each in effective
            if each.group == group
        ]
    width = max(len(left) for lines in rows.values() for left, _ in lines)
    parts = [
        "\n".join([f"{group}:", *(f"  {left:<{width}}  {right}" for left, right in lines), ""])
        for group, lines in rows.items()
    ]
    past = " ".join(option.name for option in OPTIONS if option.group == PAST)
    names = textwrap.wrap(past, 110, break_on_hyphens=False, initial_indent="  ", subsequent_indent="  ")
    return "\n".join([HEAD, *parts, f"{PAST}:", *names, "", FOOT, ""])


def _row(option: TorchOption) -> tuple[str, str]:
    flags = f"-{option.letter}, --{option.name}" if option.letter else f"--{option.name}"
    return flags, f"{option.meaning} [{option.default}]" if option.default else option.meaning


def default_text(option: FtOption) -> str:
    """The default as a user would write it."""
    value = option.default
    if option.key == "rank_termination_signal":
        return grammar.signal_of(value).name
    if option.key == "log_level":
        return str(grammar.log_level_name(grammar.log_level(value)))
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if value is None and option.parse is grammar.limit:
        return "no limit"
    return str(value) if value not in (None, {}, ()) else "none"


def get_args_parser() -> argparse.ArgumentParser:
    """A parser with all options of ``ft_launcher``: torchrun's, and Holdfast's in their documented spellings.

    The attributes of a result are torchrun's, ``ft_<setting>`` (text, as given) and the other options under the names
    of their flags. ``PET_…`` variables give the defaults, as in torchrun.

    `FaultToleranceConfig.from_args` makes a config of the result. Raises `ConfigError` for a variable with a wrong
    value.
    """
    parser = argparse.ArgumentParser(prog="ft_launcher", description=ABOUT, allow_abbrev=False)
    torch = installed_options()
    defaults = vars(namespace(torch, {}, os.environ))
    for each in torch:
        if each.name != "help":
            _add_torch(each, parser, defaults[each.dest])
    parser.add_argument("training_script", help="the program to run as each rank, followed by its arguments")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    with_flags = [option for option in OPTIONS if option.names]
    groups = {
        name: parser.add_argument_group(name) for name in dict.fromkeys(each.group for each in with_flags)
    }
    for option in with_flags:
        _add(option, groups[option.group], os.environ)
    return parser


def _add_torch(option: TorchOption, parser: argparse.ArgumentParser, default: object) -> None:
    about: dict[str, Any] = {"action": "store_true"}
    if option.takes_value:
        about = {"type": option.parse, "choices": option.choices or None}
    letter = [f"-{option.letter}"] if option.letter else []
    spellings = [*letter, *dict.fromkeys((f"--{option.name}", f"--{option.dest}"))]
    parser.add_argument(*spellings, dest=option.dest, default=default, help=option.meaning, **about)


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
