"""One fault as a value and as text: what happens, when, on which rank, in which cycle. Pure.

    FAULTS  :=  FAULT { ";" FAULT }
    FAULT   :=  KIND "@" KEY "=" VALUE { "," KEY "=" VALUE }

docs/reference/faults.md has the kinds and keys. A duration is `5`, `5s`, `500ms`, `2m`, `1h`; a size is `268435456`,
`256MiB`, `1GiB` (`MB` and `GB` mean the same). Blanks around every part are ignored. A `Fault` that exists is valid, so
arming never fails on its fields. `parse` reads what `render` writes, unless the message contains "," or ";".
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal

from holdfast.fault_tolerance.errors import HoldfastError

MIB = 1024 * 1024


class FaultSpecError(HoldfastError, ValueError):
    """A fault description is wrong; nothing was armed. The text names the value and what is allowed."""


class InjectedFault(RuntimeError):
    """Raised in the training loop by the fault `exception`.

    Deliberately no `HoldfastError`: to the program it must look like a bug of its own.
    """


@dataclass(frozen=True, slots=True)
class Kind:
    """The properties of a kind."""

    summary: str
    options: frozenset[str] = frozenset()
    in_main_thread: bool = False
    """Acts on the training loop itself, so a delayed one must be carried into the main thread."""


KINDS = MappingProxyType(
    {
        "exit": Kind("the process ends at once: no `finally`, no `atexit`", frozenset({"code"})),
        "exception": Kind("`InjectedFault` is raised in the training loop", frozenset({"message"}), True),
        "kill": Kind("SIGKILL"),
        "stop": Kind("SIGSTOP: every thread is stopped, and only SIGCONT and SIGKILL have an effect"),
        "segv": Kind("a read from address 0"),
        "sleep": Kind(
            "the main thread sleeps; other threads and signal handlers run", frozenset({"for"}), True
        ),
        "gil": Kind(
            "a busy loop in C that holds the GIL: no other Python thread and no Python signal handler runs",
            frozenset({"for"}),
        ),
        "deadlock": Kind(
            "`enter`: this rank is in an all_reduce that no other joins; `skip`: the others are in one without it",
            frozenset({"for", "how"}),
            True,
        ),
        "memory": Kind(
            "allocates until a limit that it sets itself (RLIMIT_AS): `MemoryError`",
            frozenset({"limit"}),
            True,
        ),
        "half_save": Kind(
            "the kernel ends the process (SIGXFSZ) when a file that it writes, its output included, exceeds `size`",
            frozenset({"size"}),
            True,
        ),
        "ignore_term": Kind("SIGTERM is ignored from now on", in_main_thread=True),
        "child": Kind("leaves a process in a session of its own", frozenset({"for", "ignore_term"})),
        "random": Kind("kill or stop, the same choice on every rank"),
    }
)

ALIASES = MappingProxyType(
    {
        "hang": "sleep",
        "sigkill": "kill",
        "rank_killed": "kill",
        "sigstop": "stop",
        "rank_hung": "stop",
        "segfault": "segv",
        "sigsegv": "segv",
        "oom": "memory",
        "raise": "exception",
    }
)
"""Other names for the same. `rank_killed` and `rank_hung` are those of SimulatedFaultParams."""


@dataclass(frozen=True)
class Fault:
    """A fault, when and where it happens.

    kind: a name from `KINDS` or `ALIASES`. Exactly one of `step` and `after` is given.
    step: the number given to `Faults.at_step`; only that very step, not a later one.
    point: which `at_step` call of the step, when the loop has several; None is the first.
    after: seconds since the fault was armed.
    rand: with `after`: up to so many seconds later, drawn from `seed`.
    rank: a global rank, "random" (every rank makes the same choice) or "all".
    seed: makes random choices repeatable; without it they differ from job to job. The restart cycle counts as well, so
        with `cycle="each"` another rank may be hit each time.
    cycle: the restart cycle (TORCHELASTIC_RESTART_COUNT) or "each".
    code: exit code of `exit`.
    message: text of `exception`.
    limit: bytes that `memory` may add to the process.
    duration: seconds; of `sleep` and `gil` (None: forever), `child` (None: 600) and the timeout of `deadlock`'s
        collective (None: torch's own default).
    how: `deadlock`: "enter" (this rank is alone in the all_reduce) or "skip" (the others wait in it for this rank).
    size: bytes of a file that are written before `half_save` ends the process.
    ignore_term: the `child` ignores SIGTERM.

    Raises FaultSpecError for anything else.
    """

    kind: str
    step: int | None = None
    after: float | None = None
    rand: float = 0.0
    rank: int | Literal["random", "all"] = "random"
    seed: int | None = None
    cycle: int | Literal["each"] = 0
    point: str | None = None
    code: int = 1
    message: str | None = None
    duration: float | None = None
    how: Literal["enter", "skip"] = "enter"
    limit: int = 256 * MIB
    size: int = 4096
    ignore_term: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", canonical_kind(self.kind))
        if problem := _problem(self):
            raise FaultSpecError(f"fault {self.kind!r}: {problem}")

    def __str__(self) -> str:
        return render(self)


def canonical_kind(name: object) -> str:
    """`SIGKILL` → `kill`, `ignore-term` → `ignore_term`; FaultSpecError with the nearest name otherwise."""
    if not isinstance(name, str):
        raise FaultSpecError(f"a fault's kind is a name such as 'kill', not {name!r}")
    key = name.strip().lower().replace("-", "_")
    key = ALIASES.get(key, key)
    if key not in KINDS:
        known = [*KINDS, *ALIASES]
        raise FaultSpecError(f"unknown fault {name!r}{nearest(key, known)}; known: {', '.join(KINDS)}")
    return key


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'kill'?)`, or nothing when no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


# The fields, each as text and as value


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of `Fault`: how its text is read and written, and which values it may have.

    `read` raises ValueError, whose text is what is allowed.
    """

    read: Callable[[str], object]
    is_valid: Callable[[Any], bool] = lambda value: True
    allowed: str = ""
    name: str = ""
    """In `Fault`, where it differs from the key: `for` is a keyword of Python's."""
    write: Callable[[Any], str] = str


def _matching(pattern: str, allowed: str, convert: Callable[[str], object] = int) -> Callable[[str], object]:
    def read(text: str) -> object:
        if not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(allowed)
        return convert(text)

    return read


def _word_or_whole(*words: str, allowed: str) -> Callable[[str], object]:
    return _matching(rf"\d+|{'|'.join(words)}", allowed, lambda text: text if text in words else int(text))


def _read_seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)(ms|s|m|h|)", text, re.ASCII)
    if not found:
        raise ValueError("a duration such as 5s, 500ms or 2m")
    return float(found[1]) * {"ms": 0.001, "m": 60.0, "h": 3600.0}.get(found[2], 1.0)


def _read_bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([kmg]i?b?)?b?", text.lower(), re.ASCII)
    if not found:
        raise ValueError("a size such as 256MiB")
    return int(found[1]) * {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}[(found[2] or "")[:1]]


def _write_seconds(seconds: float) -> str:
    return f"{seconds!r}s"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_seconds(value: object) -> bool:
    # The upper bound (30 years) keeps out infinity, nan and what no timer takes.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1e9


_read_count = _matching(r"\d+", "a whole number from 0")
_read_text = _matching(r"(?s).+", "some text", str)
_SECONDS = _Field(_read_seconds, _is_seconds, "a number of seconds from 0", write=_write_seconds)

FIELDS = MappingProxyType(
    {
        "step": _Field(_read_count, _is_count, "a whole number from 0"),
        "point": _Field(_read_text),
        "after": _SECONDS,
        "rand": _SECONDS,
        "rank": _Field(
            _word_or_whole("random", "all", allowed="a rank, 'random' or 'all'"),
            lambda value: value in ("random", "all") or _is_count(value),
            "a whole number from 0, 'random' or 'all'",
        ),
        "seed": _Field(_matching(r"-?\d+", "a whole number")),
        "cycle": _Field(
            _word_or_whole("each", allowed="a restart cycle or 'each'"),
            lambda value: value == "each" or _is_count(value),
            "a whole number from 0 or 'each'",
        ),
        "code": _Field(
            _read_count, lambda value: _is_count(value) and value <= 255, "an exit code from 0 to 255"
        ),
        "message": _Field(_read_text),
        "for": _Field(
            _read_seconds,
            lambda value: _is_seconds(value) and value > 0,
            "a number of seconds above 0",
            "duration",
            _write_seconds,
        ),
        "how": _Field(_read_text, lambda value: value in ("enter", "skip"), "'enter' or 'skip'"),
        "limit": _Field(
            _read_bytes, lambda value: _is_count(value) and value >= MIB, "a number of bytes from 1MiB"
        ),
        "size": _Field(
            _read_bytes, lambda value: _is_count(value) and value >= 1, "a number of bytes from 1"
        ),
        "ignore_term": _Field(
            _matching(r"(?i)yes|no", "'yes' or 'no'", lambda text: text.lower() == "yes"),
            write=lambda is_ignored: "yes" if is_ignored else "no",
        ),
    }
)
"""Every key, in the order in which `render` writes them."""

_OPTIONS = frozenset().union(*(kind.options for kind in KINDS.values()))


def _given(fault: Fault) -> dict[str, Any]:
    """The values that are not the default, by key."""
    fields = Fault.__dataclass_fields__
    values = {key: (getattr(fault, field.name or key), field.name or key) for key, field in FIELDS.items()}
    return {key: value for key, (value, name) in values.items() if value != fields[name].default}


def _problem(fault: Fault) -> str | None:
    given = _given(fault)
    if ("step" in given) == ("after" in given):
        return "say when, with either step=N or after=SECONDS"
    for key, value in given.items():
        if not FIELDS[key].is_valid(value):
            return f"{key} is {FIELDS[key].allowed}, not {value!r}"
        if key in _OPTIONS - KINDS[fault.kind].options:
            return f"{key} does not belong to it"
    if "rand" in given and "step" in given:
        return "rand goes with after, not with step"
    if "point" in given and "after" in given:
        return "point names an at_step call, so it goes with step"
    if fault.how == "skip" and "after" in given:
        return "how=skip needs step: all the other ranks act, so all must agree on the moment"
    if fault.kind == "deadlock" and fault.rank == "all":
        return "rank=all is no deadlock: with every rank in the all_reduce it completes"
    return None


def parse(text: str, source: str = "fault") -> tuple[Fault, ...]:
    """Reads one or more faults.

    source: where the text comes from, for the error ("HOLDFAST_FAULT").
    Raises FaultSpecError: names the source, the fault and the value, and what is allowed.
    """
    faults = []
    for piece in filter(None, (piece.strip() for piece in text.split(";"))):
        try:
            faults.append(_parse_one(piece))
        except FaultSpecError as error:
            raise FaultSpecError(f"{source}: in {piece!r}: {error}") from None
    if not faults:
        raise FaultSpecError(f"{source}: {text!r} names no fault; an example: kill@step=12,rank=1")
    return tuple(faults)


def render(fault: Fault) -> str:
    """The text that `parse` reads back as the same fault; values that are the default are left out."""
    values = ",".join(f"{key}={FIELDS[key].write(value)}" for key, value in _given(fault).items())
    return f"{fault.kind}@{values}"


def _parse_one(text: str) -> Fault:
    name, _, rest = text.partition("@")
    kind = canonical_kind(name)
    values: dict[str, Any] = {}
    for pair in filter(None, (pair.strip() for pair in rest.split(","))):
        key, equals, value = (part.strip() for part in pair.partition("="))
        key = key.lower().replace("-", "_")
        if not equals:
            raise FaultSpecError(f"{pair!r} is not KEY=VALUE")
        if key not in FIELDS:
            raise FaultSpecError(f"unknown key {key!r}{nearest(key, FIELDS)}; known: {', '.join(FIELDS)}")
        if (FIELDS[key].name or key) in values:
            raise FaultSpecError(f"{key} is given twice")
        try:
            values[FIELDS[key].name or key] = FIELDS[key].read(value)
        except ValueError as error:
            raise FaultSpecError(f"{key} is {error}, not {value!r}") from None
    return Fault(kind, **values)


# The documented way to ask a Lightning callback or a Megatron-style loop for one fault

_FAILED = "Failed to parse simulated fault params"


@dataclass
class SimulatedFaultParams:
    """One fault after a delay, in every restart cycle.

    fault_type: `rank_killed` (SIGKILL), `rank_hung` (SIGSTOP), `random` (one of these two) or any kind of
        `holdfast.testing` with its default options.
    base_delay: seconds from `inject(params)`. rand_delay: seconds of random delay: base + U(0, 1) · rand.
    rank_to_fail: a global rank; None chooses one, the same on every rank, with no communication (CPU is enough).

    Raises FaultSpecError, a ValueError: "Failed to parse simulated fault params, …".
    """

    fault_type: str
    base_delay: float
    rand_delay: float = 0.0
    rank_to_fail: int | None = None

    def __post_init__(self) -> None:
        self.to_fault()

    def to_fault(self) -> Fault:
        """The same as a `Fault`."""
        if self.rank_to_fail is not None and not isinstance(self.rank_to_fail, int):
            raise FaultSpecError(f"{_FAILED}, rank_to_fail is a rank or None, not {self.rank_to_fail!r}")
        try:
            return Fault(
                self.fault_type,
                after=self.base_delay,
                rand=self.rand_delay,
                rank="random" if self.rank_to_fail is None else self.rank_to_fail,
                cycle="each",
            )
        except FaultSpecError as error:
            names = (
                "; documented names: rank_killed, rank_hung, random" if "unknown fault" in str(error) else ""
            )
            raise FaultSpecError(f"{_FAILED}, {error}{names}") from None

    @classmethod
    def parse(cls, params: SimulatedFaultParams | Mapping[str, Any]) -> SimulatedFaultParams:
        """From a dict (or any mapping with these keys, OmegaConf's too); an instance is returned as it is."""
        if isinstance(params, cls):
            return params
        if not isinstance(params, Mapping):
            raise FaultSpecError(f"{_FAILED}, a mapping is needed, not {params!r}")
        known = [field.name for field in fields(cls)]
        for key in params:
            if key not in known:
                hint = nearest(str(key), known)
                raise FaultSpecError(f"{_FAILED}, unknown key {key!r}{hint}; known: {', '.join(known)}")
        for key in ("fault_type", "base_delay"):
            if key not in params:
                raise FaultSpecError(f"{_FAILED}, {key} is missing")
        return cls(**{str(key): params[key] for key in params})
