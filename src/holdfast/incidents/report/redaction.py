"""Secrets out of the evidence, before anything of it is written, sent or printed. Pure.

A secret is the value of an environment variable whose name shows it (`HF_TOKEN`, `AWS_SECRET_ACCESS_KEY`), of at least
`SHORTEST` characters and no ordinary setting, and what has the form of one in any text (a key of a known form, a
password in a URL, `--token X`, `mysql -pX`). Each is replaced by `***`, also where it is quoted or over several lines.

Does not cover: a secret that is in no such variable and has no such form, one that was encoded (base64), and one of
which only a part was kept. A single word in a variable `*_KEY` or `*_AUTH` is taken for a setting, and 40 hexadecimal
digits after a word like "commit", or in a path, for a revision.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any
from urllib.parse import quote

from ..evidence import NodeEvidence, PassedLimit, RingEvent

HIDDEN = "***"
SHORTEST = 6
"""Characters; what is shorter is a word that occurs everywhere."""

_WORDS = frozenset(
    """
    KEY KEYS APIKEY TOKEN TOKENS SECRET SECRETS PASSWORD PASSWORDS PASSWD PASS PASSPHRASE CREDENTIAL
    CREDENTIALS AUTH AUTHORIZATION COOKIE COOKIES DSN BEARER JWT
    """.split()  # noqa: SIM905
)
_ENDINGS = (
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "APIKEY",
    "CREDENTIAL",
    "CREDENTIALS",
    "COOKIE",
)
_PLACES = frozenset(
    """
    FILE FILES PATH DIR DIRECTORY HOME SOCK SOCKET MODE TYPE SIZE LENGTH COUNT LIMIT
    """.split()  # noqa: SIM905
)
"""At the end of a name they mean that the value is where a secret is, or how it is made; not the secret."""

_ORDINARY = frozenset(
    """
    false default enabled disabled enable disable required optional always automatic bearer normal
    strict unknown public private prompt system global
    """.split()  # noqa: SIM905
)

_WORD = re.compile(r"[A-Za-z]+(?:[_.-][A-Za-z]+)*")
_NAMES = r"pass(?:word|wd|phrase)|secret(?:[-_]?(?:access[-_]?)?key)?|api[-_]?key|access[-_]?key(?:[-_]?id)?"
_NAMES += r"|private[-_]?key|(?:auth|access|refresh|bearer|session|secret|api|hf)[-_]?token|credentials?"
_VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s"',;&)}\]]+)"""

_IS = r"""["']?\s*[:=]\s*"""

_LETTERS_AND_DIGITS = r"(?=[A-Za-z._~+/%-]*[0-9])(?=[0-9._~+/%-]*[A-Za-z])[A-Za-z0-9._~+/%-]{6,}=*"
_QUOTED = r"""(?:"[^"\s]{6,}"|'[^'\s]{6,}')"""
_OPTIONS = r"[\w.-]*(?:\s[^\n|;&]{0,300}?)?\s"
"""The rest of a command's name, and what is before the option."""
_REVISION = r"(?i:commit|revision|rev|sha1?|hash|checkout|head|tree|parent)[\"']?[\s:=]+[\"']?"


def _hide_unless_named(found: re.Match[str]) -> str:
    return found[0] if found[1] else HIDDEN


_PRIVATE_KEY = re.compile(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)")
"""The only form over several lines."""

_FORMS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = tuple(
    (re.compile(form), new)
    for form, new in (
        (_PRIVATE_KEY, HIDDEN),
        (rf"(?i)\b((?:proxy-)?authorization{_IS}[\"']?)(?:(bearer|basic|token|digest)\s+)?[^\s\"',]+", rf"\1{HIDDEN}"),
        (r"(?i)\b((?:Account|SharedAccess)Key=)[^;\s]+", rf"\1{HIDDEN}"),
        (r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{12,}", rf"\1{HIDDEN}"),
        (r"(?i)\b((?:set-)?cookie[\"']?\s*:\s*)\S.*", rf"\1{HIDDEN}"),
        (rf"(?i)(--(?:[a-z0-9]+[-_])*(?:{_NAMES}|token|auth|cookie)(?:\s*=\s*|\s+))(?!-){_VALUE}", rf"\1{HIDDEN}"),
        (rf"(?i)((?:\b|_)(?:{_NAMES}){_IS}){_VALUE}", rf"\1{HIDDEN}"),
        (r"(?i)((?:\b|_)(?:token|auth|key|sig|signature)=)[A-Za-z0-9._~+/%-]{16,}=*", rf"\1{HIDDEN}"),
        (rf"(?i)((?:\b|_)(?:token|auth){_IS})(?:{_LETTERS_AND_DIGITS}|{_QUOTED})", rf"\1{HIDDEN}"),
        (r"((?<!\S)(?:-u\s*|--user[=\s]\s*)[^\s:/\"']+:)(?!\d+(?!\S))[^\s\"']+", rf"\1{HIDDEN}"),
        (rf"((?:mysql|mariadb){_OPTIONS}-p)[^\s\"']+", rf"\1{HIDDEN}"),
        (rf"(\b(?:docker|podman|nerdctl){_OPTIONS}login\s(?:[^\n|;&]{{0,300}}?\s)?-p[\s=]*){_VALUE}", rf"\1{HIDDEN}"),
        (rf"(\b[A-Z][A-Z0-9_]*(?:PASSWORD|PASSWD|PASSPHRASE|_PWD)=){_VALUE}", rf"\1{HIDDEN}"),
        (r"(?i)(\btoken\s+)(?=[a-z]*[0-9])(?=[0-9]*[a-z])[a-z0-9]{16,}(?![\w(.])", rf"\1{HIDDEN}"),
        (rf"(\bsshpass{_OPTIONS}-p\s*)[^\s\"']+", rf"\1{HIDDEN}"),
        (rf"(\bredis-cli{_OPTIONS}-a\s*)[^\s\"']+", rf"\1{HIDDEN}"),
        (rf"(?<![0-9A-Za-z/@._])({_REVISION})?[0-9a-f]{{40}}(?![0-9A-Za-z/])", _hide_unless_named),
        (r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@\"']*:)[^\s/\"']*@", rf"\1{HIDDEN}@"),
        (r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]{0,30}://)[^\s/:@\"']{16,}@", rf"\1{HIDDEN}@"),
        (r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])", HIDDEN),
        (r"(?<![A-Za-z0-9_])hf_[A-Za-z0-9]{20,}", HIDDEN),
        (r"(?<![A-Za-z0-9_])(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})", HIDDEN),
        (r"(?<![A-Za-z0-9_])glpat-[A-Za-z0-9_-]{16,}", HIDDEN),
        (r"(?<![A-Za-z0-9])(?:sk|pk|rk)[-_](?=[A-Za-z_-]{0,60}[0-9])[A-Za-z0-9_-]{20,}", HIDDEN),
        (r"(?<![A-Za-z0-9])(?:xox[abeprs]-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{30,}|nvapi-[A-Za-z0-9_-]{20,})", HIDDEN),
        (r"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*", HIDDEN),
    )
)  # fmt: skip

_CODES = {(PassedLimit, "reason"), (RingEvent, "kind")}
"""Words of ours: a password `heartbeat` must not change them."""


def secrets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The values to hide, each in the forms in which a program shows it; the longest first."""
    found: set[str] = set()
    for name, value in environment.items():
        if _names_secret(name) and not _is_ordinary(name, value):
            for part in (value, value.strip(), *value.splitlines()):
                found |= {form for form in _shown_as(part) if len(form) >= SHORTEST}
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def redacted(node: NodeEvidence, environment: Mapping[str, str]) -> NodeEvidence:
    """The evidence with every secret in any of its texts replaced."""
    known = _pattern(secrets(environment))
    found = _walked(node, known, {})
    assert isinstance(found, NodeEvidence)
    return found


def redacted_text(text: str, environment: Mapping[str, str]) -> str:
    """The same for one text."""
    return _clean(text, _pattern(secrets(environment)))


def redacted_lines(text: str, environment: Mapping[str, str], most: int) -> tuple[str, ...]:
    """The same for the last lines of a text, line by line. A private key may begin before them."""
    known = _pattern(secrets(environment))
    lines = _PRIVATE_KEY.sub(HIDDEN, text).splitlines()[-most:]
    return tuple(_clean(line, known) for line in lines)


def redacted_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The same for the arguments of a command: a secret may be the one after its option."""
    text = redacted_text(_BETWEEN.join(arguments), environment)
    # What begins with a secret is one to its end, white space included.
    return [HIDDEN if each.startswith(HIDDEN) else each for each in text.split(_BETWEEN)] if arguments else []


_BETWEEN = "\x1f"
"""A character between arguments that counts as white space, and that none of them has."""


def _names_secret(name: str) -> bool:
    if name.upper().endswith(("_PWD", "CONNECTION_STRING")):
        return True
    parts = [part for part in re.split(r"[^A-Z0-9]+", name.upper()) if part]
    if not parts or parts[-1] in _PLACES:
        return False
    return any(part in _WORDS or part.endswith(_ENDINGS) for part in parts)


def _is_ordinary(name: str, value: str) -> bool:
    """A switch, a number of tokens: hiding such a value would hide it in every text."""
    word = value.strip().lower()
    counts = name.upper().endswith(("TOKENS", "KEYS", "KEY", "PASS")) and word.isdecimal() and len(word) < 8
    return len(word) < SHORTEST or word in _ORDINARY or counts or _is_a_word(name, value.strip())


def _is_a_word(name: str, value: str) -> bool:
    """Such as `SORT_KEY=forward`. A password or token may be a word."""
    *rest, last = re.split(r"[^A-Z0-9]+", name.upper())
    if last not in ("KEY", "KEYS", "AUTH") or {"SECRET", "PASSWORD", "TOKEN", "PRIVATE"} & set(rest):
        return False
    is_plain = value in (value.lower(), value.upper(), value.capitalize()) and len(value) < 16
    return is_plain and _WORD.fullmatch(value) is not None


def _shown_as(value: str) -> Iterable[str]:
    """As it is, as `repr`, as JSON, and in a URL."""
    return value, repr(value)[1:-1], json.dumps(value)[1:-1], quote(value, safe="", errors="surrogateescape")


def _pattern(known: Iterable[str]) -> re.Pattern[str] | None:
    found = "|".join(map(re.escape, known))
    return re.compile(found) if found else None


def _clean(text: str, known: re.Pattern[str] | None) -> str:
    if known:
        text = known.sub(HIDDEN, text)
    for form, new in _FORMS:
        text = form.sub(new, text)
    return text


def _walked(value: Any, known: re.Pattern[str] | None, seen: dict[str, str]) -> Any:
    """The same value with clean texts; `seen` spares the work for texts that are in many stacks."""
    if isinstance(value, Enum):
        return value  # a code, and a rule compares it by identity
    if isinstance(value, str):
        if value not in seen:
            seen[value] = _clean(value, known)
        return seen[value]
    if isinstance(value, tuple):
        return tuple(_walked(part, known, seen) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        kind, parts = type(value), {each.name: getattr(value, each.name) for each in fields(value)}
        walked = {
            name: _walked(_without_keys(part) if name == "last_lines" else part, known, seen)
            for name, part in parts.items()
            if (kind, name) not in _CODES
        }
        return kind(**{**parts, **walked})
    return value


def _without_keys(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Lines without the private keys that they have together."""
    text = "\n".join(lines)
    return tuple(_PRIVATE_KEY.sub(HIDDEN, text).split("\n")) if _PRIVATE_KEY.search(text) else lines
