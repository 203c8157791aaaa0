"""The grammar of a single setting: from text, YAML or Python to one typed value.

Every function takes whatever a person may have written and returns the value in force, or raises `ValueError` with
half a sentence on what is allowed; the reader of the setting adds where it was set. Text means the same
everywhere: ``"60"`` on the command line, in the environment and quoted in YAML is 60 seconds, and ``None``, ``null``,
``none`` or nothing is "no limit" where a limit may be absent.

Does not cover: where a value comes from (`config_sources`), and whether values fit together.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import math
import signal
from collections.abc import Callable, Iterable, Mapping
from string import Formatter
from typing import TypeVar

Value = TypeVar("Value")
"""The type that a grammar gives."""

LONGEST = 1e9
"""Seconds, 31 years. A longer timeout is a typing error, and would overflow timers of the kernel."""

_NOTHING = frozenset({"", "none", "null"})
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_LEVELS = {
    "DEBUG": logging.DEBUG,
    "DBG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARNING": logging.WARNING,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
    "FATAL": logging.CRITICAL,
}


def is_nothing(value: object) -> bool:
    """Whether `value` is one of the spellings of "no value": None, ``None``, ``none``, ``null``, empty."""
    return value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, or None when none is like it."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def factor(value: object) -> float:
    """A finite number greater than 0."""
    return _positive(value, "give a number greater than 0")


def seconds(value: object) -> float:
    """A positive, finite number of seconds."""
    return _bounded(_positive(value, "give a number of seconds greater than 0"))


def limit(value: object) -> float | None:
    """A positive, finite number of seconds, or None for no limit."""
    if is_nothing(value):
        return None
    return _bounded(_positive(value, "give a number of seconds greater than 0, or None for no limit"))


def amount(value: object) -> float:
    """A finite number, 0 or greater."""
    allowed = "give a number, 0 or greater"
    return 0.0 if _number(value) == 0 else _positive(value, allowed)


def limit_or_zero(value: object) -> float | None:
    """A finite number of seconds, 0 or greater, or None for no limit."""
    if is_nothing(value) or _number(value) == 0:
        return None if is_nothing(value) else 0.0
    return _bounded(_positive(value, "give a number of seconds, 0 or greater, or None for no limit"))


def _positive(value: object, allowed: str) -> float:
    number = _number(value)
    # not (x > 0) instead of x <= 0: nan compares false with everything.
    if not number > 0 or math.isinf(number):
        raise ValueError(allowed)
    return number


def _number(value: object) -> float:
    # bool is an int in Python; `rank_heartbeat_timeout: yes` is a mistake and not one second.
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            return float(value)
    return math.nan


def _bounded(number: float) -> float:
    if number > LONGEST:
        raise ValueError(f"give at most {LONGEST:g} seconds")
    return number


def sections(value: object) -> dict[str, float | None]:
    """Section name → timeout in seconds or None, from a mapping or from ``setup:600,step:180,checkpointing:None``.

    In the text form each section has a value: ``step:`` alone is refused, because it reads like a forgotten
    number and would switch the timeout off.
    """
    if is_nothing(value):
        return {}
    if isinstance(value, str):
        return _sections_from_text(value)
    if not isinstance(value, Mapping):
        raise ValueError("give section names with their limits, like step:180,checkpointing:None")
    return {_section_name(name): _section_limit(name, each) for name, each in value.items()}


def _sections_from_text(text: str) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for entry in text.split(","):
        name, colon, number = (part.strip() for part in entry.rpartition(":"))
        if not colon:
            raise ValueError(f"{entry.strip()!r} is not NAME:SECONDS; write like step:180,checkpointing:None")
        if not number:
            raise ValueError(f"section {name!r} has no limit; write {name}:180 or {name}:None")
        if name in found:
            raise ValueError(f"section {name!r} is given twice")
        found[_section_name(name)] = _section_limit(name, number)
    return found


def _section_name(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"a section's name is a word, not {name!r}")
    return name.strip()


def _section_limit(name: object, value: object) -> float | None:
    try:
        return limit(value)
    except ValueError as problem:
        raise ValueError(f"section {name!r} has {value!r}: {problem}") from None


def boolean(value: object) -> bool:
    """True or False, also as yes/no, on/off, 1/0 in any case."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, str)) and is_boolean_word(str(value)):
        return str(value).strip().lower() in _TRUE
    raise ValueError("give true or false")


def is_boolean_word(word: str) -> bool:
    """Whether `word` is one of the spellings of true and false."""
    return word.strip().lower() in _TRUE | _FALSE


def text(value: object) -> str | None:
    """A text, or None."""
    if is_nothing(value):
        return None
    if not isinstance(value, str):
        raise ValueError("give a text")
    return value


def absolute_paths(value: object) -> str | None:
    """Absolute paths, separated by commas, or None."""
    paths = text(value)
    if paths is not None and not all(each.strip().startswith("/") for each in paths.split(",")):
        raise ValueError("give absolute paths, separated by commas")
    return paths


def socket_path(value: object) -> str | None:
    """The path of a socket, or its ``unix://`` URI, or None."""
    path = text(value)
    if path is not None and "://" in path and not path.startswith("unix://"):
        raise ValueError("give the path of a socket, or unix:// and the path")
    return path


def template(value: object) -> str | None:
    """A path with a placeholder for a network card, ``{dev_name}`` or ``{nic}``, or None."""
    pattern = text(value)
    if pattern is None:
        return None
    try:
        names = {name for _, name, _, _ in Formatter().parse(pattern) if name is not None}
    except ValueError:
        names = set()
    if not names or not names <= {"dev_name", "nic"}:
        raise ValueError("give a path that contains {dev_name} or {nic}, and no other placeholder")
    return pattern


def one_of(*words: str) -> Callable[[object], str]:
    """The grammar of one of these words."""

    def parse(value: object) -> str:
        if isinstance(value, str) and value.strip() in words:
            return value.strip()
        raise ValueError(f"give {' or '.join(words)}")

    return parse


def whole(least: int, most: int | None = None) -> Callable[[object], int]:
    """The grammar of a whole number from `least` to `most`."""
    rule = f"give a whole number, at least {least}"
    if most is not None:
        rule = f"give a whole number from {least} to {most}"

    def parse(value: object) -> int:
        digits = str(value).strip()
        if isinstance(value, (int, str)) and digits.removeprefix("-").isdecimal():
            number = int(digits)
            if least <= number and (most is None or number <= most):
                return number
        raise ValueError(rule)

    return parse


exit_code = whole(0, 255)
"""The exit code of a process."""


def optional(parse: Callable[[object], Value]) -> Callable[[object], Value | None]:
    """The grammar of `parse`, or None."""

    def parse_or_none(value: object) -> Value | None:
        return None if is_nothing(value) else parse(value)

    return parse_or_none


def signal_of(value: object) -> signal.Signals:
    """A signal by name (``SIGTERM``, ``TERM``, any case) or by number."""
    if isinstance(value, str) and not value.strip().isdecimal():
        name = value.strip().upper()
        name = name if name.startswith("SIG") else f"SIG{name}"
        if name in signal.Signals.__members__:
            return signal.Signals[name]
        near = nearest(name, signal.Signals.__members__)
        hint = f"did you mean {near}?" if near else "give a name like SIGTERM or a number"
        raise ValueError(f"there is no such signal; {hint}")
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            return signal.Signals(int(value))
        except ValueError:
            pass
    raise ValueError("give the name of a signal, like SIGTERM, or its number")


def log_level(value: object) -> int:
    """A level of `logging`, by name (also DBG and WARN, any case) or by number from 10 to 50."""
    if isinstance(value, str) and value.strip().upper() in _LEVELS:
        return _LEVELS[value.strip().upper()]
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            number = int(value)
        except ValueError:
            number = -1
        if logging.DEBUG <= number <= logging.CRITICAL:
            return number
    raise ValueError("give DEBUG, INFO, WARNING, ERROR, CRITICAL, or a number from 10 to 50")


def log_level_name(level: int) -> str | int:
    """The name of a standard level, for files that people read; any other level stays a number."""
    names = {number: name for name, number in reversed(_LEVELS.items())}
    return names.get(level, level)


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
