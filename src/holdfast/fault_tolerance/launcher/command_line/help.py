"""The text of ``ft_launcher --help``: torchrun's options as torch prints them, then ours, one line each.

Options without effect are listed by name only; docs/settings-history.md has the table.
"""

from __future__ import annotations

import argparse
import textwrap

from ... import config_fields as grammar
from .ft_options import OPTIONS, PAST, FtOption

__all__ = ["help_text"]

FOOT = """\
settings come from: built-in default < YAML file < environment < command line; all of them apply together.
Each option may be spelled with - or _, as --ft-NAME or --ft-param-NAME, and set as PET_FT_NAME in the environment.
SECONDS are numbers; where the default is a limit, None, null or nothing means no limit."""


def help_text(parser: argparse.ArgumentParser) -> str:
    """torch's part from `parser`, then a group for each subject of ours."""
    return "\n".join([parser.format_help(), *_groups(), FOOT, ""])


def _groups() -> list[str]:
    effective = [option for option in OPTIONS if option.group != PAST]
    width = max(len(_left(option)) for option in effective)
    parts = []
    for group in dict.fromkeys(option.group for option in effective):
        lines = [f"  {_left(each):<{width}}  {_right(each)}" for each in effective if each.group == group]
        parts.append("\n".join([f"{group}:", *lines, ""]))
    past = " ".join(option.name for option in OPTIONS if option.group == PAST)
    names = textwrap.wrap(past, 110, break_on_hyphens=False, initial_indent="  ", subsequent_indent="  ")
    return [*parts, "\n".join([f"{PAST}:", *names, ""])]


def _left(option: FtOption) -> str:
    return f"{option.name} {option.metavar}".rstrip()


def _right(option: FtOption) -> str:
    return f"{option.meaning} [{default_text(option)}]"


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
