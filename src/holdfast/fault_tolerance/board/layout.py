"""Where everything lies in a board file, and how limits, names and requests become words and back.

    page 0            written by the launcher, read-only in the rank: magic, version, size, identity
    then 8 KiB        written by the rank: counters, times, sections, limits, request
    then 16 KiB       the ring of the last `RING_EVENTS` events

Every field is one aligned 8-byte word in the machine's own byte order, so a single field is never torn. A group of
fields belongs together when its sequence word before and after the reading is the same even number; an odd one means
that a write is in progress, or was when its writer died. There are three groups, each with a sequence of its own: the
identity, what changes all the time, and what changes rarely. A section's name is written before its first opening.
The step of the last checkpoint and the end of the main thread are stored by themselves, so a reader may get the
values before.

A change of anything here needs a new `VERSION`: launcher, monitor and rank may run different installations.

The functions below work on a `memoryview` of words. The caller brackets writes with the group's sequence word.
Whatever the words hold, reading them never raises: a page that was scribbled on gives odd values, not a dead monitor.
"""

from __future__ import annotations

import math
import mmap
import struct
import sys

from ..errors import BoardError
from .values import CHECKPOINTING as CHECKPOINTING
from .values import Limits, Request

MAGIC = int.from_bytes(b"HOLDFAST", "little")
VERSION = 6
WORD = 8
Words = memoryview  # of 8-byte integers

# mmap() offsets are multiples of the page size, which is 64 KiB on some ARM and POWER kernels.
IDENTITY_BYTES = max(4096, mmap.ALLOCATIONGRANULARITY)
STATE_WORDS = 1024
RING_EVENTS = 512  # a power of two: the writer masks instead of dividing
RING_MASK = RING_EVENTS - 1
EVENT_WORDS = 4
RING = STATE_WORDS  # first word of the ring, counted from the rank's part
RANK_WORDS = STATE_WORDS + RING_EVENTS * EVENT_WORDS
RANK_BYTES = RANK_WORDS * WORD
BOARD_BYTES = IDENTITY_BYTES + RANK_BYTES

MAX_SECTIONS = 64
OTHERS = MAX_SECTIONS  # the slot that sections beyond MAX_SECTIONS share; readers do not see it
NAME_WORDS = 8
NAME_BYTES = NAME_WORDS * WORD
REQUEST_BYTES = 1024

# Page 0, in words from the start of the file.
P_MAGIC, P_VERSION, P_SIZE, P_SEQUENCE = range(4)
P_PID, P_START_TIME, P_RANK, P_LOCAL_RANK, P_CYCLE, P_STARTED = range(4, 10)  # the fields of `Identity`
P_SUCCESSIVE = 10  # 1: any process may write, one after another
P_WORDS = 11

# The rank's part, in words from its own start. First what changes all the time, stored word by word.
SEQUENCE = 0  # every change is one event: half of this is how many there were
FLAGS = 1
CONNECTED_AT = 2
HEARTBEATS = 3
LAST_HEARTBEAT = 4
STEP = 5  # step + 1, so that zero is "never given"
SECTIONS_OPENED = 6
OUT_SINCE = 7
LAST_EDGE = 8  # the last activity that was no plain heartbeat
CHECKPOINTS = 9  # outside of sections; the others are the closings of the section CHECKPOINTING
FIRST_EVENT = 10  # number of this owner's first event
OWNER = 11  # pid of the process that writes; another one begins anew
OWNER_START = 12  # its start time, as in the identity: with it a recycled pid is recognised
FIRST_STEP = 13  # of counted steps only: when the first ended, and the longest time between two
LONGEST_STEP = 14
CHECKPOINT_STEP = 15  # step + 1 at the last checkpoint of any kind, so that zero is "none"
# When a main thread ended, negative after an uncaught exception, and the pid of its process; written by the prologue.
MAIN_ENDED, MAIN_ENDED_PID = 16, 17
# One word per section: when it was opened (0 = closed), nanoseconds from openings to closings, number of closings.
SINCE = 18
SPENT = SINCE + MAX_SECTIONS + 1
CLOSED = SPENT + MAX_SECTIONS + 1
LARGEST = (1 << 63) - 1  # totals are cut to 63 bits: a store cannot fail, even after a word was scribbled on

# Then what changes rarely: edited in a copy, stored as one block. Offsets count from the start of this group.
RARE = CLOSED + MAX_SECTIONS + 1
RARE_WORDS = STATE_WORDS - RARE
RARE_SEQUENCE = 0
NAMES = 1
INITIAL_LIMIT = 2  # limits: see `limit_word`
SUBSEQUENT_LIMIT = 3
OUT_LIMIT = 4
LIMIT_FLAGS = 5
REQUEST_ACTION = 6  # index into REQUEST_ACTIONS, plus one
REQUEST_LENGTH = 7
SECTION_LIMIT = 8
NAME_LENGTH = SECTION_LIMIT + MAX_SECTIONS
NAME = NAME_LENGTH + MAX_SECTIONS
REQUEST_TEXT = NAME + MAX_SECTIONS * NAME_WORDS
assert REQUEST_TEXT * WORD + REQUEST_BYTES <= RARE_WORDS * WORD

FLAG_CONNECTED = 1
FLAG_FINISHED = 2
LIMIT_FLAG_INITIAL_BY_USER = 1
LIMIT_FLAG_SUBSEQUENT_BY_USER = 2

# In the order of the values of `WorkloadAction`.
REQUEST_ACTIONS = ("continue", "exclude_this_node", "shutdown_workload")
EVENT_KINDS = ("connect", "heartbeat", "start", "end", "step", "checkpoint", "mark", "finish")
CONNECT, HEARTBEAT, START, END, STEPPED, CHECKPOINT, MARK, FINISH = range(len(EVENT_KINDS))
KIND_BITS = 8  # an event's second word: name slot + 1 (0 = no name), then the kind

WITH_VALUE = {STEPPED, CHECKPOINT, MARK}  # the others leave an event's third word as it is


def cut(text: str, limit: int) -> bytes:
    """`text` as UTF-8 of at most `limit` bytes, never ending inside a character."""
    raw = text.encode("utf-8", "replace")
    return raw if len(raw) <= limit else raw[:limit].decode("utf-8", "ignore").encode("utf-8")


def limit_word(seconds: float | None) -> int:
    """A limit as a word: the bits of a double, zero for no limit."""
    return 0 if seconds is None else int.from_bytes(struct.pack("=d", seconds), sys.byteorder, signed=True)


def limit_seconds(word: int) -> float | None:
    """The limit of a word; a word that no writer of ours would have written is no limit."""
    (seconds,) = struct.unpack("=d", word.to_bytes(WORD, sys.byteorder, signed=True))
    return float(seconds) if seconds > 0 and math.isfinite(seconds) else None


def write_text(words: Words, at: int, raw: bytes) -> None:
    """Store bytes from word `at` on."""
    words.cast("B")[at * WORD : at * WORD + len(raw)] = raw


def read_text(words: Words, at: int, length: int, limit: int) -> str:
    """The text of `length` bytes at word `at`, which has room for `limit`."""
    start = at * WORD
    return bytes(words.cast("B")[start : start + min(max(length, 0), limit)]).decode("utf-8", "replace")


def section_names(words: Words) -> list[str]:
    """The sections of this board, in the order of their first use."""
    count = min(max(words[NAMES], 0), MAX_SECTIONS)
    return [
        read_text(words, NAME + slot * NAME_WORDS, words[NAME_LENGTH + slot], NAME_BYTES)
        for slot in range(count)
    ]


def slot_of(words: Words, name: str) -> int:
    """The slot of a section, which is given one when it is new; `layout.OTHERS` when all are taken."""
    raw = cut(name, NAME_BYTES)
    names = section_names(words)
    text = raw.decode()
    if text in names:
        return names.index(text)
    slot = len(names)
    if slot == MAX_SECTIONS:
        return OTHERS
    write_text(words, NAME + slot * NAME_WORDS, raw)
    words[NAME_LENGTH + slot] = len(raw)
    words[SECTION_LIMIT + slot] = limit_word(None)
    words[NAMES] = slot + 1
    return slot


def write_limits(words: Words, limits: Limits) -> None:
    """Put limits in force. Sections that are not named lose theirs."""
    words[INITIAL_LIMIT] = limit_word(limits.initial)
    words[SUBSEQUENT_LIMIT] = limit_word(limits.subsequent)
    words[OUT_LIMIT] = limit_word(limits.out_of_section)
    by_user = LIMIT_FLAG_INITIAL_BY_USER if limits.initial_set_by_user else 0
    by_user |= LIMIT_FLAG_SUBSEQUENT_BY_USER if limits.subsequent_set_by_user else 0
    words[LIMIT_FLAGS] = by_user
    new = {slot_of(words, name): seconds for name, seconds in limits.sections.items()}
    for slot in range(len(section_names(words))):
        words[SECTION_LIMIT + slot] = limit_word(new.get(slot))


def read_limits(words: Words) -> Limits:
    """The limits in force."""
    sections = {
        name: limit_seconds(words[SECTION_LIMIT + slot]) for slot, name in enumerate(section_names(words))
    }
    return Limits(
        initial=limit_seconds(words[INITIAL_LIMIT]),
        subsequent=limit_seconds(words[SUBSEQUENT_LIMIT]),
        sections=sections,
        out_of_section=limit_seconds(words[OUT_LIMIT]),
        initial_set_by_user=bool(words[LIMIT_FLAGS] & LIMIT_FLAG_INITIAL_BY_USER),
        subsequent_set_by_user=bool(words[LIMIT_FLAGS] & LIMIT_FLAG_SUBSEQUENT_BY_USER),
    )


def write_request(words: Words, request: Request) -> None:
    """Store a request, its description cut to `layout.REQUEST_BYTES` bytes. ValueError for an unknown action."""
    raw = cut(request.description, REQUEST_BYTES)
    if request.action not in REQUEST_ACTIONS:
        raise ValueError(f"{request.action!r} is no request; a rank may ask for {', '.join(REQUEST_ACTIONS)}")
    write_text(words, REQUEST_TEXT, raw)
    words[REQUEST_LENGTH] = len(raw)
    words[REQUEST_ACTION] = REQUEST_ACTIONS.index(request.action) + 1


def read_request(words: Words) -> Request | None:
    """The rank's last request, None if it has none."""
    action = words[REQUEST_ACTION]
    if not 1 <= action <= len(REQUEST_ACTIONS):
        return None
    text = read_text(words, REQUEST_TEXT, words[REQUEST_LENGTH], REQUEST_BYTES)
    return Request(REQUEST_ACTIONS[action - 1], text)


def check_header(path: str, head: bytes, size: int) -> None:
    """Raise BoardError unless `head` (the file's first words) and `size` (its bytes) are those of a board."""
    if size < P_WORDS * WORD or len(head) < P_WORDS * WORD:
        raise BoardError(f"{path}: not a board: {size} bytes found, {BOARD_BYTES} expected")
    magic, version, declared, *_ = memoryview(head).cast("q")
    if magic != MAGIC:
        raise BoardError(
            f"{path}: not a board: starts with {head[:WORD]!r}, {MAGIC.to_bytes(WORD, 'little')!r} expected"
        )
    if version != VERSION:
        raise BoardError(
            f"{path}: board of layout version {version}, this holdfast reads version {VERSION}; "
            "launcher and ranks must use the same installation"
        )
    if declared != BOARD_BYTES or size != BOARD_BYTES:
        raise BoardError(f"{path}: board of {size} bytes that declares {declared}, {BOARD_BYTES} expected")
