"""The options as an argparse parser: for the text of ``--help``, and for programs with a command line of their own.

The launcher itself does not parse with it: `options` reads a command line with less delay and better errors. Options
without effect are listed in the help by name only; docs/reference/settings.md has the table.

Does not cover: mixtures of hyphens and underscores that were never documented, and abbreviations.
"""

from __future__ import annotations

import argparse
import os
import re
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ... import config_fields as grammar
from ...config import PAST
from ...config_fields import TORCH, Option, resolve
from .ft_options import OPTIONS
from .torch_options import installed_options

ABOUT = (
    "Starts distributed PyTorch training as torchrun does, watches every rank, and has the job training\n"
    "again after a crash, a hang or a lost node. Takes every option of torchrun."
)
FOOT = """\
--version shows the versions of Holdfast and torch.
settings come from: built-in default < YAML file < environment < command line; all of them apply together.
Each option may be spelled with - or _, as --ft-NAME or --ft-param-NAME, and set as PET_FT_NAME in the environment.
SECONDS are numbers; where the default is a limit, None, null or nothing means no limit."""


def help_text() -> str:
    """The text of ``--help``."""
    return _parser({}).format_help()


def get_args_parser() -> argparse.ArgumentParser:
    """A parser with all options of ``ft_launcher``: torchrun's, and Holdfast's in their documented spellings.

    The attributes of a result are torchrun's, ``ft_<setting>`` (text, as given) and the other options under the names
    of their flags. ``PET_…`` variables give the defaults, as in torchrun.

    `FaultToleranceConfig.from_args` makes a config of the result. Raises `ConfigError` for a variable with a wrong
    value.
    """
    return _parser(os.environ)


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ft_launcher",
        usage="%(prog)s [options] training_script [options of the training script]",
        description=ABOUT,
        epilog=_epilog(),
        formatter_class=partial(argparse.RawTextHelpFormatter, width=150, max_help_position=60),
        allow_abbrev=False,
    )
    parser.add_argument("training_script", help="the program to run as each rank, followed by its arguments")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    groups: dict[str, argparse._ArgumentGroup] = {}
    torch = [option for option in installed_options() if option.key != "help"]
    for options in (torch, [option for option in OPTIONS if option.names]):
        values, origins = resolve(options, {}, environ)
        for option in options:
            if option.group not in groups:
                groups[option.group] = parser.add_argument_group(option.group)
            default = values.get(option.key, option.default)
            if option.is_setting:
                default = environ.get(origins.get(option.key, "").removeprefix("env "))
            _add(option, groups[option.group], default)
    return parser


def _epilog() -> str:
    other = [
        f"  --{name}: {each.name}"
        for each in OPTIONS
        for name in each.names[1:]
        if each.group != PAST and not name.startswith(("ft-param-", f"ft-{each.key.replace('_', '-')}"))
    ]
    past = " ".join(each.name for each in OPTIONS if each.group == PAST and each.names)
    lines = textwrap.wrap(past, 108, break_on_hyphens=False)
    rows = [
        "other names of these options:",
        *other,
        "",
        f"{PAST}:",
        *(f"  {line}" for line in lines),
        "",
        FOOT,
    ]
    return "\n".join(rows)


def _add(option: Option, group: argparse._ArgumentGroup, default: object) -> None:
    about: dict[str, Any] = {"default": default, "metavar": option.metavar}
    if not option.metavar:
        about = {"default": default, "action": "store_true"}
    elif not option.is_setting:  # else text: `None` is a value, and None is an option that was not given
        about["type"] = _checked(option.parse)
    about["dest"] = option.names[0].replace("-", "_")
    meaning = option.meaning
    if option.group != TORCH or option.default:
        meaning = f"{meaning} [{default_text(option)}]"
    first, *others = (spelling for name in option.names for spelling in _spellings(name))
    letter = [f"-{option.letter}"] if option.letter else []
    shown = argparse.SUPPRESS if option.no_effect else meaning.replace("%", "%%")
    group.add_argument(*letter, first, help=shown, **about)
    if others:
        group.add_argument(*others, help=argparse.SUPPRESS, **about | {"default": argparse.SUPPRESS})


def _spellings(name: str) -> dict[str, None]:
    """With hyphens, with underscores, and with hyphens in the prefix only."""
    mixed = re.sub("(?<!^ft)(?<!^ft-param)-", "_", name)
    return dict.fromkeys(f"--{each}" for each in (name, mixed, name.replace("-", "_")))


def _checked(parse: Callable[[Any], object]) -> Callable[[str], object]:
    """`parse` with the error that argparse shows in full."""

    def convert(text: str) -> object:
        try:
            return parse(text)
        except ValueError as problem:
            raise argparse.ArgumentTypeError(str(problem)) from None

    return convert


def default_text(option: Option) -> str:
    """The default as a user would write it."""
    value = option.default
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if value is None and option.parse is grammar.limit:
        return "no limit"
    return str(value) if value not in (None, {}, ()) else "none"
