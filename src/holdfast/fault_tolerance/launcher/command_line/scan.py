"""Splits a command line into torchrun's options, ours, the training script and the script's own arguments.

What always holds: nothing from the script on is parsed. (torchrun hands its whole line to argparse, which tries to
parse the script's arguments too: ``torchrun train.py --log x`` fails as an "ambiguous option".) An option may be
spelled with hyphens and underscores in any mixture and be shortened as long as it is unique. Abbreviations are searched
in torchrun's own options first, then in ours, then in those without effect, so that each keeps its meaning.

Does not cover: what values mean (`torch_options`, `ft_options`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...config_fields import is_boolean_word, nearest
from ...config_sources import Given
from ...errors import ConfigError
from .ft_options import PAST, FtOption, by_name
from .torch_options import TABLE, TorchOption

__all__ = ["CommandLine", "UnknownOption", "Vocabulary", "scan"]


class UnknownOption(ConfigError):
    """An option that the vocabulary does not have, or an abbreviation that is not unique."""


class Vocabulary:
    """Every option by its hyphenated name without dashes.

    Args:
        torch: torchrun's options.
    """

    def __init__(self, torch: Iterable[TorchOption]) -> None:
        self.torch: Mapping[str, TorchOption] = {option.name: option for option in torch}
        self.letters = {option.letter: option for option in self.torch.values() if option.letter}
        self.ft = by_name()

    def find(self, body: str) -> TorchOption | FtOption:
        """The option that `body`, written after two dashes, means. Raises `UnknownOption`."""
        name = body.replace("_", "-")
        known = self.ft.get(name) or self.torch.get(name)
        if known is not None:
            return known
        if name:
            for names in self._abbreviated():
                matches = {option.name: option for each, option in names.items() if each.startswith(name)}
                if len(matches) == 1:
                    return next(iter(matches.values()))
                if matches:
                    listed = ", ".join(sorted(f"--{name.removeprefix('--')}" for name in matches))
                    raise UnknownOption(f"--{body} may be short for {listed}; write more of it")
        raise self._unknown(body)

    def _abbreviated(self) -> Iterator[Mapping[str, TorchOption | FtOption]]:
        yield self.torch
        yield {name: option for name, option in self.ft.items() if option.group != PAST}
        yield {name: option for name, option in self.ft.items() if option.group == PAST}

    def _unknown(self, body: str) -> UnknownOption:
        name = body.replace("_", "-")
        if any(option.name == name for option in TABLE):
            return UnknownOption(f"--{body} needs a newer torch than the installed one")
        near = nearest(name, [*self.torch, *self.ft])
        if near:
            return UnknownOption(f"unknown option --{body}; did you mean --{near}?")
        return UnknownOption(
            f"unknown option --{body}; options of the training script belong after the script"
        )


@dataclass
class CommandLine:
    """A command line taken apart; `torch` has torchrun's options by name, `ft` ours by key, each as it was given."""

    torch: dict[str, Given] = field(default_factory=dict)
    ft: dict[str, Given] = field(default_factory=dict)
    script: str | None = None
    script_args: list[str] = field(default_factory=list)
    help: bool = False


def scan(argv: Sequence[str], vocabulary: Vocabulary) -> CommandLine:
    """Take `argv` (without the program's name) apart. An option given twice counts as given last.

    Raises:
        UnknownOption: `vocabulary` does not have an option.
        ConfigError: A value is missing.
    """
    line = CommandLine()
    tokens = deque(argv)
    while tokens:
        token = tokens.popleft()
        if token == "--":
            break
        if len(token) < 2 or not token.startswith("-"):
            tokens.appendleft(token)
            break
        _option(token, tokens, vocabulary, line)
        if line.help:
            return line
    if tokens:
        line.script, *line.script_args = tokens
    return line


def _option(token: str, tokens: deque[str], vocabulary: Vocabulary, line: CommandLine) -> None:
    if token.startswith("--"):
        flag, equals, value = token.partition("=")
        option = vocabulary.find(flag[2:])
        given = value if equals else None
    else:
        flag, rest = token[:2], token[2:]
        letter = vocabulary.letters.get(token[1])
        if letter is None:
            raise UnknownOption(
                f"unknown option {token}; options of the training script belong after the script"
            )
        option, given = letter, (rest.removeprefix("=") if rest else None)
        if rest and not option.takes_value:
            # Letters may be glued together, the last one with its value: -mr3 is -m -r 3.
            tokens.appendleft(f"-{rest}")
            given = None
    if given is None and option.takes_value and not _stands_alone(option, tokens):
        if not tokens or _looks_like_an_option(tokens[0]):
            raise ConfigError(f"{flag} needs a value")
        given = tokens.popleft()
    _note(option, flag, given, line)


def _stands_alone(option: TorchOption | FtOption, tokens: Sequence[str]) -> bool:
    """A flag of true or false takes the next word only where that is one of these."""
    has_value = bool(tokens) and is_boolean_word(tokens[0])
    return isinstance(option, FtOption) and option.is_boolean and not has_value


def _note(option: TorchOption | FtOption, flag: str, given: str | None, line: CommandLine) -> None:
    if isinstance(option, FtOption):
        line.ft[option.key] = Given("true" if given is None else given, flag)
    elif given is not None and not option.takes_value:
        raise ConfigError(f"--{option.name}: ignored explicit argument {given!r}")
    elif option.name == "help":
        line.help = True
    else:
        line.torch[option.name] = Given(given, flag)


def _looks_like_an_option(token: str) -> bool:
    """As argparse has it: a dash makes an option, except alone, in a negative number, or in words with spaces."""
    if not token.startswith("-") or token == "-" or " " in token:
        return False
    try:
        float(token)
    except ValueError:
        return True
    return False
