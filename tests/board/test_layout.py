"""The layout: what is rejected at the door, and what survives the way into words and back."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.board import BoardError, Limits, Request, layout
from holdfast.fault_tolerance.board.mapped import private_words

NAMES = st.text(max_size=80)
SECONDS = st.none() | st.floats(min_value=0, exclude_min=True, allow_infinity=False)


@given(st.text(), st.integers(0, 100))
def test_cut_keeps_whole_characters(text: str, limit: int) -> None:
    raw = layout.cut(text, limit)
    assert len(raw) <= limit
    assert text.encode("utf-8", "replace").decode().startswith(raw.decode("utf-8"))
    assert len(raw) > limit - 4 or raw == text.encode("utf-8", "replace")


@given(SECONDS)
def test_a_limit_survives_its_word(seconds: float | None) -> None:
    assert layout.limit_seconds(layout.limit_word(seconds)) == seconds


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_any_word_is_a_usable_limit_or_none(word: int) -> None:
    seconds = layout.limit_seconds(word)
    assert seconds is None or (seconds > 0 and math.isfinite(seconds))


@given(
    SECONDS, SECONDS, SECONDS, st.booleans(), st.dictionaries(NAMES, SECONDS, max_size=layout.MAX_SECTIONS)
)
def test_limits_survive(
    initial: float | None,
    subsequent: float | None,
    out: float | None,
    by_user: bool,
    sections: dict[str, float | None],
) -> None:
    words = private_words(layout.RANK_BYTES)[layout.RARE : layout.STATE_WORDS]
    limits = Limits(initial, subsequent, sections, out, by_user)
    layout.write_limits(words, limits)
    read = layout.read_limits(words)
    assert (read.initial, read.subsequent, read.out_of_section) == (initial, subsequent, out)
    assert read.initial_set_by_user == by_user
    cut = {layout.cut(name, layout.NAME_BYTES).decode(): value for name, value in sections.items()}
    assert read.sections == cut


@given(st.sampled_from(layout.REQUEST_ACTIONS), st.text(max_size=2000))
def test_a_request_survives(action: str, description: str) -> None:
    words = private_words(layout.RANK_BYTES)[layout.RARE : layout.STATE_WORDS]
    assert layout.read_request(words) is None
    layout.write_request(words, Request(action, description))
    cut = layout.cut(description, layout.REQUEST_BYTES).decode()
    assert layout.read_request(words) == Request(action, cut)


def test_an_unknown_action_changes_nothing() -> None:
    words = private_words(layout.RANK_BYTES)[layout.RARE : layout.STATE_WORDS]
    with pytest.raises(ValueError, match="reboot"):
        layout.write_request(words, Request("reboot", ""))
    assert layout.read_request(words) is None


@given(
    st.dictionaries(st.integers(0, layout.RARE_WORDS - 1), st.integers(-(1 << 63), (1 << 63) - 1)),
    st.integers(0, 255),
)
def test_reading_scribbled_memory_never_raises(scribbles: dict[int, int], fill: int) -> None:
    words = memoryview(bytearray([fill]) * (layout.RARE_WORDS * layout.WORD)).cast("q")
    for at, word in scribbles.items():
        words[at] = word
    layout.read_limits(words)
    layout.read_request(words)


def _header(
    magic: int = layout.MAGIC, version: int = layout.VERSION, size: int = layout.BOARD_BYTES
) -> bytes:
    head = memoryview(bytearray(layout.P_WORDS * layout.WORD)).cast("q")
    head[layout.P_MAGIC], head[layout.P_VERSION], head[layout.P_SIZE] = magic, version, size
    return bytes(head)


@pytest.mark.parametrize(
    ("head", "size", "found"),
    [
        (_header(magic=int.from_bytes(b"\x7fELF....", sys.byteorder)), layout.BOARD_BYTES, "ELF"),
        (_header(version=7), layout.BOARD_BYTES, f"version 7, this holdfast reads version {layout.VERSION}"),
        (_header(size=99), layout.BOARD_BYTES, "declares 99"),
        (_header(), layout.BOARD_BYTES - 1, f"{layout.BOARD_BYTES} expected"),
        (_header(), layout.BOARD_BYTES + 4096, f"{layout.BOARD_BYTES} expected"),
        (b"", 0, "0 bytes found"),
        (_header()[:40], 40, "40 bytes found"),
    ],
    ids=["magic", "version", "declared size", "truncated", "too long", "empty", "half a header"],
)
def test_what_is_not_a_board_is_named(head: bytes, size: int, found: str) -> None:
    with pytest.raises(BoardError, match=found) as raised:
        layout.check_header("/dev/shm/x.board", head, size)
    assert "/dev/shm/x.board" in str(raised.value)
