"""Any evidence, for properties: each field of each dataclass, by its type. Also evidence with other texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar, get_type_hints

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from holdfast.incidents import evidence as E
from holdfast.incidents.verdict import KINDS, Judgement, Verdict
from tests.incidents.cases import STACKS, frames
from tests.incidents.test_rules_crash import LATE, LOST

T = TypeVar("T")
WORDS = st.sampled_from(["", LOST, LATE, "rank 1 failed to pass monitoredBarrier", "\n\x00ß", "x" * 400])
_IDENTIFIERS = """
data checkpointing gloo:all_reduce recv barrier scheduled started completed nccl gloo heartbeat futex poll read
write wait_for_partner anon_pipe_read clock_nanosleep RuntimeError MemoryError S D T Z gone R dp tp
"""
IDENTIFIERS = st.sampled_from(["", *_IDENTIFIERS.split()])
FRAMES = st.sampled_from([frames(text) for text in STACKS.values()])
SECONDS = st.sampled_from([-1.0, 0.0, 0.01, 0.5, 3.0, 31.0, 1e9])

TEXTS: dict[type, tuple[str, ...]] = {
    E.Exit: ("meaning", "out_of_memory", "core_dump", "kept_by"),
    E.Raised: ("message", "traceback"),
    E.RankEvidence: ("notes", "last_lines"),
    E.NodeEvidence: ("notes", "reason"),
    E.NodeFault: ("text",),
    E.PassedLimit: ("text",),
    E.Thread: ("name",),
    E.KernelThread: ("name",),
    E.Child: ("command",),
    E.SystemCall: ("path", "peer"),
    E.Process: ("network_files",),
}
"""The fields that are for people."""


Values = Mapping[type, SearchStrategy[Any]]
BOOLEANS = st.booleans()
OF_RULES: Values = {str: IDENTIFIERS, int: st.integers(-15, 6), float: SECONDS, bool: BOOLEANS}
"""What a rule compares, or nearly so."""
TEXT = st.text(max_size=20) | st.sampled_from(["\x1b[2J", "a\nb\nc", "\u202e", "x" * 3000, "{0} {rank}", ""])
NUMBER = st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 1e5)
ANY: Values = {str: TEXT, int: st.integers(-5, 14), float: NUMBER, bool: BOOLEANS}
"""Whatever a text of a report may have to show."""


def some(kind: type[T], values: Values = OF_RULES) -> SearchStrategy[T]:
    """Any value of one of the dataclasses of evidence and verdicts."""
    texts = TEXTS.get(kind, ()) if values is OF_RULES else ()
    found = {name: _of(hint, values, texts=name in texts) for name, hint in get_type_hints(kind).items()}
    if kind is E.Thread and values is OF_RULES:
        found["frames"] = FRAMES
    if kind is E.RankEvidence:
        found["rank"] = st.integers(0, 4)
    if kind is E.NodeEvidence:
        found["accused"] = st.none() | st.integers(-1, 4)
        found["trigger"] = st.sampled_from([E.HANG, E.CRASH, E.ELSEWHERE, E.EARLY, E.DIAGNOSE])
    if kind is Verdict:
        found["kind"] = st.sampled_from(KINDS)
    return st.builds(kind, **found)


def _of(hint: Any, values: Values, *, texts: bool = False) -> SearchStrategy[Any]:
    parts = getattr(hint, "__args__", ())
    if getattr(hint, "__origin__", None) is tuple:
        return st.lists(_of(parts[0], values, texts=texts), max_size=3).map(tuple)
    if parts:
        return st.none() | _of(parts[0], values)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    if hint is str and texts:
        return WORDS
    return values[hint] if hint in values else st.deferred(lambda: some(hint, values))


NODES = some(E.NodeEvidence)
CASES = st.lists(NODES, max_size=3).map(lambda nodes: E.Case(tuple(nodes)))
ANY_CASES = st.lists(some(E.NodeEvidence, ANY), max_size=3).map(lambda nodes: E.Case(tuple(nodes)))
ANY_JUDGEMENTS = some(Judgement, ANY)


def scrambled(value: Any, words: Callable[[str], str]) -> Any:
    """The same evidence with other texts; `words` gives one for each."""
    if isinstance(value, tuple):
        return tuple(scrambled(each, words) for each in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {}
    for each in fields(value):
        part = getattr(value, each.name)
        if each.name not in TEXTS.get(type(value), ()):
            changes[each.name] = scrambled(part, words)
        else:
            changes[each.name] = tuple(map(words, part)) if isinstance(part, tuple) else words(part)
            if each.name == "peer":  # that a socket is a TCP connection shows in this alone
                changes[each.name] = (changes[each.name] or "10.0.0.7:29500") if part else ""
    return replace(value, **changes)
