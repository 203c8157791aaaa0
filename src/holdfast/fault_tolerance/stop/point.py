"""The rank's side of an agreed stop: at each boundary it asks whether all ranks of the job stop here.

Usually that is one read of a word of the page and one store. Only while the launchers agree on a place, and the rank
has come to it, does the rank wait; it waits for the launchers' word (continue, or stop), never for another rank.
What always holds: nothing here raises, or blocks while no stop was asked for. A forked child (a data loader's worker)
inherits the object, not the page: no other process sees its writes.

Does not cover: ranks that do not come to the same boundaries in the same order (training is data-parallel); two
`StopPoint` objects in use at once in one process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from holdfast.prefixed_log import log as _log

from ..board.mapped import detach_in_child, private_words
from ..board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from ..errors import BoardError
from . import page as P
from .rules import ENDED, GO, STOP, TAKES_PART, WAIT, at_boundary

POLL = 0.001  # seconds between two reads while waiting
SIGN_OF_LIFE = 1.0  # seconds between two calls of `waiting`

_logged: set[str] = set()


class StopPoint:
    """Where this rank may be asked to stop. Make one with `find`.

    `waiting` is called about once a second while `passes` waits (for a heartbeat, say); what it raises is passed on.
    """

    __slots__ = ("__weakref__", "_file", "_settled", "_stopped", "_words", "waiting")

    def __init__(self, file: P.PageFile) -> None:
        self._file: P.PageFile | None = file
        self._words = file.words
        self._settled = 0  # the number of the last proposal that needs no more attention
        self._stopped = False
        self.waiting: Callable[[], None] | None = None
        detach_in_child(self)

    @classmethod
    def find(cls) -> StopPoint | None:
        """This rank's, by the environment that ft_launcher gives it; None without one. Never raises.

        A page that cannot be used (damaged, or another process of this rank uses it) is warned about once.
        """
        board = os.environ.get(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR)
        if not board:
            return None
        try:
            return cls(P.PageFile(P.page_path(board), locked=True))
        except FileNotFoundError:
            return None  # no launcher: a `RankMonitorServer`. Or no memory, which the launcher has logged
        except (BoardError, OSError, ValueError) as error:
            why = str(error)
            if why not in _logged:
                _logged.add(why)
                _log.warning("this process (pid %d) takes part in no agreed stop: %s", os.getpid(), why)
            return None

    def begin(self) -> None:
        """This rank takes part from now on: training begins, its positions count from 0."""
        words = self._words
        words[P.POSITION] = words[P.AT] = 0
        self._settled = words[P.WITHDRAWN]
        self._stopped = words[P.COMMITTED] != 0  # also in another training of the same process
        words[P.STATE] = TAKES_PART

    def end(self) -> None:
        """It no longer does: training is over. Lets go of the page; safe to call twice, and at any time. The state is
        kept; `passes` returns False. Another training in this process makes an object of its own."""
        file, self._file = self._file, None
        words = self._words
        kept = private_words(P.SIZE)
        kept[:] = words
        self._words, self._settled, self._stopped = kept, kept[P.NUMBER], False
        if file is not None:
            words[P.STATE] = ENDED
            file.close()

    def notice(self, number: int) -> None:
        """This rank got the signal with this number, which asks the job to stop. For a handler set with `signal`:
        the launcher sees it within a second and stops the whole job. What comes before `begin` counts as well."""
        self._words[P.NOTICE] = number

    @property
    def wanted(self) -> bool:
        """Whether a stop was asked for: by a signal to a launcher of the job, or to a rank that noticed it."""
        words = self._words
        return bool(words[P.ASKED] or words[P.NOTICE])

    @property
    def given_up(self) -> bool:
        """Whether a stop was asked for, but there is no agreement and will be none (a rank of the job does not take
        part): `passes` continues as usual, and the program may stop by means of its own."""
        words = self._words
        return bool(words[P.WITHDRAWN] and words[P.WITHDRAWN] == words[P.NUMBER])

    @property
    def deadline(self) -> float | None:
        """When the launcher kills what is left (its --term-timeout), in seconds of `time.monotonic`.

        None until a stop was asked for, and with a launcher that waits forever."""
        found: int = self._words[P.DEADLINE]
        return found / 1e9 if found else None

    def passes(self, position: int) -> bool:
        """Report that this rank is at a boundary (`position`). Call it at every boundary.

        False: continue. True: all ranks of the job stop here; so it is from then on. Positions must rise.
        Returns at once (about 0.2 µs) unless the job is being stopped. While the launchers agree, a rank that has come
        to the place waits until they have.
        """
        words = self._words
        if words[P.NUMBER] == self._settled:
            words[P.POSITION] = position
            return False
        began = time.monotonic()
        while (then := self._look(position)) == WAIT:
            began = self._wait(began)
        return then == STOP

    def _look(self, position: int) -> str:
        """Answer the current proposal: GO, WAIT or STOP."""
        words = self._words
        number, place = _proposal(words)
        if self._stopped:
            return STOP
        if words[P.WITHDRAWN] >= number:
            self._settled = number
        else:
            committed = words[P.COMMITTED] == number
            yes, then = at_boundary(words[P.POSITION], position, place, committed=committed)
            words[P.AT] = position
            words[P.ANSWER] = P.answer_word(number, yes)
            if not yes:
                self._settled = number  # the next one will be farther
            if then == STOP:
                self._stopped, self._settled = True, -1  # from now on always
            if then != GO:
                return then
        words[P.POSITION] = position
        return GO

    def _wait(self, since: float) -> float:
        time.sleep(POLL)
        now = time.monotonic()
        if self.waiting is None or now - since < SIGN_OF_LIFE:
            return since
        self.waiting()
        return now

    def _after_fork_in_child(self) -> None:
        self._words = private_words(P.SIZE)
        self._settled, self._stopped = 0, False
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _proposal(words: memoryview) -> tuple[int, int]:
    """The current proposal: its number and its place."""
    while True:
        number = words[P.NUMBER]
        place = words[P.PLACES + number % P.SLOTS]
        if words[P.NUMBER] == number:
            return number, place
