"""The page on which a rank and its launcher agree where the rank stops; it lies next to the rank's board.

The one place that defines its layout. It is a file of its own because a rank that takes part in an agreed stop need not
be a client of the monitor, whose limits would begin with that. Every word is one aligned 8-byte store and has one
writer: the launcher those of the first half, the rank those of the second. A proposal's place is written before its
number, into a slot of its own, so that a reader of the number never finds another proposal's place.

What always holds: a page that exists has its memory, so no later store can fail.
Does not cover: processors that reorder stores among threads of different processes more than x86 and what Python's
own atomic operations on ARM allow for; and protection from the rank's own user.
"""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Callable, Mapping

from ..board.mapped import Page
from .rules import COMMIT, NEVER, WITHDRAW, RankView, Word

logger = logging.getLogger("holdfast.launcher")
SUFFIX = ".stop"
SIZE = Page.SIZE

# The launcher's words.
_, NUMBER, COMMITTED, WITHDRAWN, ASKED, DEADLINE = range(6)
PLACES = 16  # slots of the last proposals' places
SLOTS = 8
# The rank's words, on a cache line of their own.
STATE, POSITION, ANSWER, NOTICE, AT = range(256, 261)


def page_path(board_path: str) -> str:
    """The page of the rank with this board."""
    return board_path + SUFFIX


def answer_word(number: int, yes: bool) -> int:
    """A rank's answer to the proposal with this number, as it is on the page."""
    return number << 1 | yes


def view(words: memoryview, rank: int, *, gone: bool) -> RankView:
    """The rank's words as a view. Its answer is read before its position, which it writes after it."""
    state, answered, at = words[STATE], words[ANSWER], words[AT]
    return RankView(rank, state, words[POSITION], at, answered >> 1, bool(answered & 1), gone)


def write(words: memoryview, word: Word) -> None:
    """Put the leader's word on the page."""
    if word.kind == WITHDRAW:
        words[WITHDRAWN] = word.number
    words[PLACES + word.number % SLOTS] = word.place
    words[NUMBER] = word.number
    if word.kind == COMMIT:
        words[COMMITTED] = word.number


class PageFile(Page):
    """A mapped page; `locked` on the rank's side."""

    MAGIC = 0x3130504F54534648  # "HFSTOP01"
    KIND = "page for an agreed stop"


class StopPages:
    """The launcher's side: this node's pages by local rank for the cycle that runs.

    A page lies next to the rank's board and is removed with it. Any thread may read while another one closes the
    pages. A page that cannot be made means that the rank takes no part, nothing else.
    Does not cover: what is written there; the nodes agree on that (`control.agreed_stop`).
    """

    def __init__(self) -> None:
        self._pages: dict[int, PageFile] = {}
        self._ranks: dict[int, int] = {}

    def open(self, boards: Mapping[int, str]) -> None:
        """Make fresh pages next to these boards, and close those of the cycle before."""
        self.close()
        for local_rank, board in boards.items():
            try:
                self._pages[local_rank] = PageFile.create(page_path(board))
            except OSError as error:
                logger.warning(
                    "local rank %d takes no part in an agreed stop: no shared memory for its page (%s)",
                    local_rank,
                    error.strerror or error,
                )

    def bind(self, local_rank: int, rank: int) -> None:
        """The rank's process has started, with this global rank."""
        self._ranks[local_rank] = rank

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._pages)

    def noticed(self) -> tuple[int, signal.Signals] | None:
        """A rank that got a signal which asks the job to stop, and that signal; None while there is none."""
        for local_rank, page in list(self._pages.items()):
            if number := page.words[NOTICE]:
                try:
                    return self._ranks.get(local_rank, local_rank), signal.Signals(number)
                except ValueError:
                    continue  # no signal: some program's own number
        return None

    def ask(self, number: int, deadline: float) -> None:
        """The job is to stop because of this signal; at `deadline` (monotonic seconds) ranks will be killed."""
        for page in list(self._pages.values()):
            page.words[DEADLINE] = 0 if math.isinf(deadline) else int(deadline * 1e9)
            page.words[ASKED] = number

    def write(self, word: Word) -> None:
        """Pass on the leader's word."""
        for page in list(self._pages.values()):
            write(page.words, word)

    def views(self, gone: Callable[[int], bool]) -> list[RankView]:
        """Where the ranks are now; `gone` reports whether the process of a local rank has ended."""
        found = []
        for local_rank, rank in sorted(self._ranks.items()):
            page = self._pages.get(local_rank)
            if page is None:
                found.append(RankView(rank, NEVER, gone=gone(local_rank)))
            else:
                found.append(view(page.words, rank, gone=gone(local_rank)))
        return found

    def close(self) -> None:
        """Let go of the pages; their files go with the boards."""
        pages, self._pages, self._ranks = self._pages, {}, {}
        for page in pages.values():
            page.close()
