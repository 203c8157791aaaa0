"""Splits a command line into torchrun's options, ours, the training script and the script's own arguments.

What always holds: nothing from the script on is parsed. (torchrun hands its whole line to argparse, which tries to
parse the script's arguments too: ``torchrun train.py --log x`` fails as an "ambiguous option".) An option may be
spelled with hyphens and underscores in any mixture and be shortened as long as it is unique. Abbreviations are searched
in torchrun's own options first, then in ours, then in those without effect, so that each keeps its meaning.

Does not cover: what values mean (`torch_options`, `ft_options`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ...config_fields import TORCH, Given, Option, is_boolean_word, nearest
from ...errors import ConfigError
from .ft_options import OPTIONS
from .torch_options import TABLE

AFTER = "options of the training script belong after the script"


class UnknownOption(ConfigError):
    """An option that the vocabulary does not have, or an abbreviation that is not unique."""


class Vocabulary:
    """Every option by its hyphenated names without dashes.

    Args:
        torch: torchrun's options.
    """

    def __init__(self, torch: Iterable[Option] = TABLE) -> None:
        self.names = {name: option for option in (*torch, *OPTIONS) for name in option.names}
        self.letters = {option.letter: option for option in self.names.values() if option.letter}

    def find(self, body: str) -> Option:
        """The option that `body`, written after two dashes, means. Raises `UnknownOption`."""
        name = body.replace("_", "-")
        if name in self.names:
            return self.names[name]
        groups: list[dict[str, Option]] = [{}, {}, {}]
        for known, option in self.names.items():
            if name and known.startswith(name):
                group = 0 if option.group == TORCH else 2 if option.no_effect else 1
                groups[group][option.name] = option
        matches = next(filter(None, groups), {})
        if len(matches) == 1:
            return next(iter(matches.values()))
        if matches:
            raise UnknownOption(f"--{body} may be short for {', '.join(sorted(matches))}; write more of it")
        if any(name in option.names for option in TABLE):
            raise UnknownOption(f"--{body} needs a newer torch than the installed one")
        near = nearest(name, self.names)
        raise UnknownOption(f"unknown option --{body}; {f'did you mean --{near}?' if near else AFTER}")


@dataclass
class CommandLine:
    """A command line taken apart: torchrun's options and ours by key, each as it was given; a switch is ``1``."""

    torch: dict[str, Given] = field(default_factory=dict)
    ft: dict[str, Given] = field(default_factory=dict)
    script: str | None = None
    script_args: list[str] = field(default_factory=list)

    @property
    def is_help(self) -> bool:
        """Whether the text of ``--help`` was asked for."""
        return "help" in self.torch


def scan(argv: Sequence[str], vocabulary: Vocabulary) -> CommandLine:
    """Take `argv` (without the program's name) apart. An option given twice counts as given last.

    Raises:
        UnknownOption: `vocabulary` does not have an option.
        ConfigError: A value is missing.
    """
    line = CommandLine()
    tokens = deque(argv)
    while tokens and not line.is_help:
        token = tokens.popleft()
        if token == "--":
            break
        if len(token) < 2 or not token.startswith("-"):
            tokens.appendleft(token)
            break
        option, given = _option(token, tokens, vocabulary)
        (line.torch if option.group == TORCH else line.ft)[option.key] = given
    if tokens:
        line.script, *line.script_args = tokens
    return line


def _option(token: str, tokens: deque[str], vocabulary: Vocabulary) -> tuple[Option, Given]:
    value: str | None
    if token.startswith("--"):
        flag, equals, value = token.partition("=")
        option = vocabulary.find(flag[2:])
        value = value if equals else None
    else:
        flag, value = token[:2], token[2:].removeprefix("=") if len(token) > 2 else None
        if flag[1] not in vocabulary.letters:
            raise UnknownOption(f"unknown option {token}; {AFTER}")
        option = vocabulary.letters[flag[1]]
        if value is not None and not option.metavar:
            # Letters may be glued together, the last one with its value: -mr3 is -m -r 3.
            tokens.appendleft(f"-{value}")
            value = None
    # A flag of true or false takes the next word only where that is one of these.
    stands_alone = option.is_boolean and not (tokens and is_boolean_word(tokens[0]))
    if value is None and option.metavar and not stands_alone:
        if not tokens or _looks_like_an_option(tokens[0]):
            raise ConfigError(f"{flag} needs a value")
        value = tokens.popleft()
    return option, Given("1" if value is None else value, flag)


def _looks_like_an_option(token: str) -> bool:
    """As argparse has it: a dash makes an option, except alone, in a negative number, or in words with spaces."""
    if not token.startswith("-") or token == "-" or " " in token:
        return False
    try:
        float(token)
    except ValueError:
        return True
    return False
