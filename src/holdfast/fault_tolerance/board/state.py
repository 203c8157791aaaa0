"""Reading and writing the parts of a rank's page that change rarely: names, limits, the request.

Works on a `memoryview` of the 8-byte words of that group (`layout.RARE` on). The caller brackets writes with the
group's sequence word. Whatever the words hold, reading them never raises: a page that was scribbled
on gives odd values, not a dead monitor.
"""

from __future__ import annotations

from . import layout as L
from .records import Limits, Request

Words = memoryview  # of 8-byte integers


def write_text(words: Words, at: int, raw: bytes) -> None:
    """Store bytes from word `at` on."""
    words.cast("B")[at * L.WORD : at * L.WORD + len(raw)] = raw


def read_text(words: Words, at: int, length: int, limit: int) -> str:
    """The text of `length` bytes at word `at`, which has room for `limit`."""
    start = at * L.WORD
    return bytes(words.cast("B")[start : start + min(max(length, 0), limit)]).decode("utf-8", "replace")


def names(words: Words) -> list[str]:
    """The sections known to this board, in the order in which they became known."""
    count = min(max(words[L.NAMES], 0), L.MAX_SECTIONS)
    return [
        read_text(words, L.NAME + slot * L.NAME_WORDS, words[L.NAME_LENGTH + slot], L.NAME_BYTES)
        for slot in range(count)
    ]


def slot_of(words: Words, name: str) -> int:
    """The slot of a section, which is given one when it is new; `layout.OTHERS` when all are taken."""
    raw = L.cut(name, L.NAME_BYTES)
    known = names(words)
    text = raw.decode()
    if text in known:
        return known.index(text)
    slot = len(known)
    if slot == L.MAX_SECTIONS:
        return L.OTHERS
    write_text(words, L.NAME + slot * L.NAME_WORDS, raw)
    words[L.NAME_LENGTH + slot] = len(raw)
    words[L.SECTION_LIMIT + slot] = L.limit_word(None)
    words[L.NAMES] = slot + 1
    return slot


def write_limits(words: Words, limits: Limits) -> None:
    """Put limits in force. Sections that are not named lose theirs."""
    words[L.INITIAL_LIMIT] = L.limit_word(limits.initial)
    words[L.SUBSEQUENT_LIMIT] = L.limit_word(limits.subsequent)
    words[L.OUT_LIMIT] = L.limit_word(limits.out_of_section)
    by_user = L.LIMIT_FLAG_INITIAL_BY_USER if limits.initial_set_by_user else 0
    by_user |= L.LIMIT_FLAG_SUBSEQUENT_BY_USER if limits.subsequent_set_by_user else 0
    words[L.LIMIT_FLAGS] = by_user
    new = {slot_of(words, name): seconds for name, seconds in limits.sections.items()}
    for slot in range(len(names(words))):
        words[L.SECTION_LIMIT + slot] = L.limit_word(new.get(slot))


def read_limits(words: Words) -> Limits:
    """The limits in force."""
    sections = {
        name: L.limit_seconds(words[L.SECTION_LIMIT + slot]) for slot, name in enumerate(names(words))
    }
    return Limits(
        initial=L.limit_seconds(words[L.INITIAL_LIMIT]),
        subsequent=L.limit_seconds(words[L.SUBSEQUENT_LIMIT]),
        sections=sections,
        out_of_section=L.limit_seconds(words[L.OUT_LIMIT]),
        initial_set_by_user=bool(words[L.LIMIT_FLAGS] & L.LIMIT_FLAG_INITIAL_BY_USER),
        subsequent_set_by_user=bool(words[L.LIMIT_FLAGS] & L.LIMIT_FLAG_SUBSEQUENT_BY_USER),
    )


def write_request(words: Words, request: Request) -> None:
    """Store a request, its description cut to `layout.REQUEST_BYTES` bytes. ValueError for an unknown action."""
    raw = L.cut(request.description, L.REQUEST_BYTES)
    if request.action not in L.REQUEST_ACTIONS:
        raise ValueError(
            f"{request.action!r} is no request; a rank may ask for {', '.join(L.REQUEST_ACTIONS)}"
        )
    write_text(words, L.REQUEST_TEXT, raw)
    words[L.REQUEST_LENGTH] = len(raw)
    words[L.REQUEST_ACTION] = L.REQUEST_ACTIONS.index(request.action) + 1


def read_request(words: Words) -> Request | None:
    """The rank's last request, None if it has none."""
    action = words[L.REQUEST_ACTION]
    if not 1 <= action <= len(L.REQUEST_ACTIONS):
        return None
    text = read_text(words, L.REQUEST_TEXT, words[L.REQUEST_LENGTH], L.REQUEST_BYTES)
    return Request(L.REQUEST_ACTIONS[action - 1], text)
