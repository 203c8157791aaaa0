"""A single option: its description, where its value comes from, and the grammar of that value.

Every function of the grammar takes whatever a person may have written and returns the value in force, or raises
`ValueError` with half a sentence on what is allowed. Text means the same everywhere: ``"60"`` on the command line, in
the environment and quoted in YAML is 60 seconds, and ``None``, ``null``, ``none`` or nothing is "no limit" where a
limit may be absent.

Does not cover: YAML files (`config_sources`), and whether values fit together.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import math
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from .errors import ConfigError

Value = TypeVar("Value")
"""The type that a grammar gives."""

LONGEST = 1e9
"""Seconds, 31 years. A longer timeout is a typing error, and would overflow timers of the kernel."""
TORCH = "options of torchrun"
"""The group of these."""
OLDEST = "0.4"
"""Stands for release 0.4 of NVRx and those before it."""

_NOTHING = frozenset({"", "none", "null"})
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_LEVELS: dict[str, int] = {
    name: getattr(logging, name)
    for name in ("DEBUG", "INFO", "WARN", "WARNING", "ERROR", "FATAL", "CRITICAL")
} | {"DBG": logging.DEBUG}


class Effect(Enum):
    """The class of an option that changes nothing; the value is the word for it in reports and docs."""

    NOT_NEEDED = "no effect needed"
    NONE = "no effect here"


class Reason(NamedTuple):
    """Why an option of another release changes nothing here, in half a sentence."""

    effect: Effect
    text: str


@dataclass(frozen=True)
class Option:
    """One option of the command line: of torchrun, of the launcher, or a setting of `FaultToleranceConfig`.

    Attributes:
        key: Its attribute in the result; also its key in YAML if it is a setting.
        parse: Its grammar.
        metavar: What a value is, for help; empty for a switch.
        names: Of its flags, with hyphens and without dashes, the one to show first.
        variables: The environment variables that set it, the strongest first.
        letter: Its one-letter form.
        since: The release of NVRx, or of torch for an option of torchrun, that had it first.
        no_effect: Why it changes nothing; None if it takes effect.
        more: What docs/reference/settings.md has in addition to `meaning`, in Markdown.
    """

    key: str
    parse: Callable[[Any], Any]
    default: Any
    metavar: str
    meaning: str
    group: str
    names: tuple[str, ...]
    variables: tuple[str, ...]
    letter: str = ""
    since: str = OLDEST
    no_effect: Reason | None = None
    is_setting: bool = False
    more: str = ""

    @property
    def name(self) -> str:
        """The name in help and errors, with its dashes; of a variable without flag, the variable."""
        return f"--{self.names[0]}" if self.names else self.variables[0]

    @property
    def is_boolean(self) -> bool:
        """Whether the value is true or false; the flag alone means true."""
        return self.parse is boolean


class Given(NamedTuple):
    """A value as it was given, and by which flag, spelled as the user spelled it."""

    value: object
    flag: str


def resolve(
    options: Iterable[Option], given: Mapping[str, Given], environ: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The values that the command line and the environment set, and the origin of each, by key.

    An origin is ``--flag`` or ``env NAME``. Raises `ConfigError` for the first wrong value, also of a variable that a
    flag overrides. Of torchrun's options such a variable is not read, and an empty variable counts, as in torchrun.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for option in options:
        key, is_torchs = option.key, option.group == TORCH
        for variable in () if is_torchs and key in given else option.variables:
            text = environ.get(variable)
            if text is not None and (text.strip() or is_torchs):
                values[key] = parse_with(option.parse, text, variable)
                origins[key] = f"env {variable}"
                break
        if key in given:
            values[key] = parse_with(option.parse, *given[key])
            origins[key] = given[key].flag
    return values, origins


def parse_with(parse: Callable[[Any], Any], value: object, where: str) -> Any:
    """What `parse` makes of `value`. Its `ValueError` becomes a `ConfigError` naming where, the value and the rule."""
    try:
        return parse(value)
    except ValueError as problem:
        words = repr(value)
        shown = words if len(words) <= 80 else words[:77] + "…"
        raise ConfigError(f"{where}: {shown} is not allowed: {problem}") from None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, or None when none is like it."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """``did you mean …?`` with the known name most like `name`, or `otherwise` when none is like it."""
    near = nearest(name, known)
    return f"did you mean {near}?" if near else otherwise


def is_nothing(value: object) -> bool:
    """Whether `value` is one of the spellings of "no value": None, ``None``, ``none``, ``null``, empty."""
    return value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING)


def optional(parse: Callable[[object], Value]) -> Callable[[object], Value | None]:
    """The grammar of `parse`, or None."""

    def parse_or_none(value: object) -> Value | None:
        return None if is_nothing(value) else parse(value)

    return parse_or_none


def number(
    allowed: str, *, least: float = math.ulp(0.0), most: float = math.inf
) -> Callable[[object], float]:
    """The grammar of a finite number from `least` to `most` seconds; `allowed` describes it."""

    def parse(value: object) -> float:
        found = math.nan
        # bool is an int in Python; `rank_heartbeat_timeout: yes` is a mistake and not one second.
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            with contextlib.suppress(ValueError, OverflowError):
                found = float(value)
        if not least <= found < math.inf:  # nan compares false with everything
            raise ValueError(f"give {allowed}")
        if found > most:
            raise ValueError(f"give at most {most:g} seconds")
        return found

    return parse


factor = number("a number greater than 0")
amount = number("a number, 0 or greater", least=0.0)
seconds = number("a number of seconds greater than 0", most=LONGEST)
limit = optional(number("a number of seconds greater than 0, or None for no limit", most=LONGEST))
limit_or_zero = optional(
    number("a number of seconds, 0 or greater, or None for no limit", least=0.0, most=LONGEST)
)


def sections(value: object) -> dict[str, float | None]:
    """Section name → timeout in seconds or None, from a mapping or from ``setup:600,step:180,checkpointing:None``.

    In the text form each section has a value: ``step:`` alone is refused, because it reads like a forgotten
    number and would switch the timeout off.
    """
    if is_nothing(value):
        return {}
    if isinstance(value, str):
        entries = [_section(entry) for entry in value.split(",")]
    elif isinstance(value, Mapping):
        entries = list(value.items())
    else:
        raise ValueError("give section names with their limits, like step:180,checkpointing:None")
    found: dict[str, float | None] = {}
    for name, number in entries:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"a section's name is a word, not {name!r}")
        if name.strip() in found:
            raise ValueError(f"section {name!r} is given twice")
        try:
            found[name.strip()] = limit(number)
        except ValueError as problem:
            raise ValueError(f"section {name!r} has {number!r}: {problem}") from None
    return found


def _section(entry: str) -> tuple[str, str]:
    name, colon, number = (part.strip() for part in entry.rpartition(":"))
    if not colon:
        raise ValueError(f"{entry.strip()!r} is not NAME:SECONDS; write like step:180,checkpointing:None")
    if not number:
        raise ValueError(f"section {name!r} has no limit; write {name}:180 or {name}:None")
    return name, number


def boolean(value: object) -> bool:
    """True or False, also as yes/no, on/off, 1/0 in any case."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, str)) and is_boolean_word(str(value)):
        return str(value).strip().lower() in _TRUE
    raise ValueError("give true or false")


def is_boolean_word(word: str) -> bool:
    return word.strip().lower() in _TRUE | _FALSE


def matching(pattern: str, allowed: str) -> Callable[[object], str]:
    """The grammar of a text that `pattern` matches as a whole; `allowed` describes it."""

    def parse(value: object) -> str:
        if isinstance(value, str) and re.fullmatch(pattern, value, re.DOTALL):
            return value
        raise ValueError(f"give {allowed}")

    return parse


def one_of(*words: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if isinstance(value, str) and value.strip() in words:
            return value.strip()
        raise ValueError(f"give one of {', '.join(words)}")

    return parse


def whole(least: int, most: int | None = None) -> Callable[[object], int]:
    """The grammar of a whole number from `least` to `most`."""
    rule = f"give a whole number, at least {least}"
    if most is not None:
        rule = f"give a whole number from {least} to {most}"

    def parse(value: object) -> int:
        if isinstance(value, str) and value.strip().removeprefix("-").isdecimal():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            if least <= value and (most is None or value <= most):
                return value
        raise ValueError(rule)

    return parse


text = optional(matching(r".*", "a text"))
"""A text, or None."""


def signal_of(value: object) -> signal.Signals:
    """A signal by name (``SIGTERM``, ``TERM``, any case) or by number."""
    if isinstance(value, str) and not value.strip().isdecimal():
        name = value.strip().upper()
        name = name if name.startswith("SIG") else f"SIG{name}"
        if name in signal.Signals.__members__:
            return signal.Signals[name]
        hint = did_you_mean(name, signal.Signals.__members__, "give a name like SIGTERM or a number")
        raise ValueError(f"there is no such signal; {hint}")
    with contextlib.suppress(ValueError):
        return signal.Signals(whole(1)(value))
    raise ValueError("give the name of a signal, like SIGTERM, or its number")


def log_level(value: object) -> int:
    """A level of `logging`, by name (also DBG and WARN, any case) or by number from 10 to 50."""
    if isinstance(value, str) and value.strip().upper() in _LEVELS:
        return _LEVELS[value.strip().upper()]
    with contextlib.suppress(ValueError):
        return whole(logging.DEBUG, logging.CRITICAL)(value)
    raise ValueError("give DEBUG, INFO, WARNING, ERROR, CRITICAL, or a number from 10 to 50")


def log_level_name(level: int) -> str | int:
    """The name of a standard level, for files that people read; any other level stays a number."""
    name = logging.getLevelName(level)
    return name if name in _LEVELS else level


def restart_policy(value: object) -> str:
    """``any-failed``: the only policy there is."""
    word = value.strip().replace("_", "-") if isinstance(value, str) else value
    if word == "min-healthy":
        raise ValueError(
            "min-healthy keeps the other ranks running after a failure, for a recovery inside the process that "
            "Holdfast does not have, and their collectives would hang; use any-failed, which restarts all ranks"
        )
    if word != "any-failed":
        raise ValueError("give any-failed")
    return "any-failed"
