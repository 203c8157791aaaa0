"""The pages on which this node's ranks are asked where to stop (`holdfast.fault_tolerance.stop`), cycle by cycle.

A page lies beside the rank's board and is removed with it. What always holds: any thread may look while another one
closes the pages. A page that cannot be made means that the rank takes no part, nothing else.
Does not cover: what is written there; the nodes agree on that (`control.agreed_stop`).
"""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Callable, Mapping

from ...errors import BoardError
from ...stop import page as P
from ...stop.rules import NEVER, RankView, Word

logger = logging.getLogger("holdfast.launcher")


class StopPages:
    """Pages by local rank for the cycle that runs."""

    def __init__(self) -> None:
        self._pages: dict[int, P.PageFile] = {}
        self._ranks: dict[int, int] = {}

    def open(self, boards: Mapping[int, str]) -> None:
        """Make fresh pages beside these boards; those of the cycle before are let go of."""
        self.close()
        for local_rank, board in boards.items():
            try:
                self._pages[local_rank] = P.PageFile.create(P.page_path(board))
            except (OSError, BoardError) as error:
                logger.warning(
                    "local rank %d takes no part in an agreed stop: no shared memory for its page (%s)",
                    local_rank,
                    getattr(error, "strerror", None) or error,
                )

    def admit(self, local_rank: int, rank: int) -> None:
        """The rank's process has started: under this number it is spoken of."""
        self._ranks[local_rank] = rank

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._pages)

    def noticed(self) -> tuple[int, signal.Signals] | None:
        """A rank that got a signal which asks the job to stop, and that signal; None while there is none."""
        for local_rank, page in list(self._pages.items()):
            if number := page.words[P.NOTICE]:
                try:
                    return self._ranks.get(local_rank, local_rank), signal.Signals(number)
                except ValueError:
                    continue  # no signal: some program's own number
        return None

    def tell(self, number: int, deadline: float) -> None:
        """The job is to stop because of this signal; at `deadline` (monotonic seconds) ranks will be killed."""
        for page in list(self._pages.values()):
            page.words[P.DEADLINE] = 0 if math.isinf(deadline) else int(deadline * 1e9)
            page.words[P.ASKED] = number

    def write(self, word: Word) -> None:
        """Pass on what the leader says."""
        for page in list(self._pages.values()):
            P.write(page.words, word)

    def views(self, gone: Callable[[int], bool]) -> list[RankView]:
        """Where the ranks are now; `gone` says of a local rank whether its process has ended."""
        found = []
        for local_rank, rank in sorted(self._ranks.items()):
            page = self._pages.get(local_rank)
            if page is None:
                found.append(RankView(rank, NEVER, gone=gone(local_rank)))
            else:
                found.append(P.view(page.words, rank, gone=gone(local_rank)))
        return found

    def close(self) -> None:
        """Let go of the pages; their files go with the boards."""
        pages, self._pages, self._ranks = self._pages, {}, {}
        for page in pages.values():
            page.close()
