"""Exchanges and judgement off the training thread: a thread that makes one report after another.

Windows are numbered, the same on all ranks, and each round begins with an agreement on the newest window that all ranks
have; older ones are left out everywhere. So no rank waits: reports lag behind by one round at most.

What always holds: at most one exchange is under way; at most `MOST_WAITING` windows are kept; neither `close` nor the
end of the interpreter waits for a rank that died; an error in the thread is logged once and ends the reports.
Does not cover: ranks that hand over different numbers of windows. They are compared by number.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.prefixed_log import Once

from .channel import TIMEOUT, GivenUp, OwnGroup
from .log_texts import log_ended

T = TypeVar("T")
R = TypeVar("R")

MOST_WAITING = 8
"""Windows of this rank that wait. A rank that is further ahead of another than this forgets the oldest."""
CLOSING = 5.0
"""Seconds that `close` gives the windows that wait, and a second more to the thread itself."""
_ENDING = 1.0

log = logging.getLogger("holdfast.straggler")


class Background(Generic[T]):
    """The thread, and the windows that wait for it. It begins with the first window."""

    def __init__(self, channel: OwnGroup) -> None:
        self._channel = channel
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._waiting: dict[int, Callable[[], T | None]] = {}
        self._number = 0
        self._busy = False
        self._ended = False
        self._closing = False
        self._newest: T | None = None
        self._thread: threading.Thread | None = None
        self._once = Once(log)

    def hand_over(self, make: Callable[[], T | None]) -> None:
        """Let `make` exchange and judge one window in the thread. All ranks hand theirs over in the same order."""
        with self._changed:
            if self._ended or self._closing:
                return
            self._number += 1
            self._waiting[self._number] = make
            while len(self._waiting) > MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]
            self._changed.notify_all()
            if self._thread is not None:
                return
            try:
                self._begin()
                return
            # No thread to be had: a limit of processes, or the interpreter ends.
            except RuntimeError as error:
                self.end(error)
        # The others wait for this rank: they get an error, and do not wait for 30 minutes.
        self._leave()

    def newest(self) -> T | None:
        """The newest result that was not returned yet; older ones are not returned any more."""
        with self._changed:
            newest, self._newest = self._newest, None
        return newest

    def ask(self, question: Callable[[], R]) -> R | None:
        """Use the channel on the calling thread, at the same point on all ranks: they wait for each other.

        It waits until nothing waits and nothing is under way; ranks that handed over equally many windows are then
        equally far. None once reports have ended. Never raises: if the question fails, they end.
        """
        with self._changed:
            settled = self._changed.wait_for(
                lambda: self._ended or not (self._waiting or self._busy), timeout=TIMEOUT
            )
            if self._ended:
                return None
        try:
            if not settled:
                raise TimeoutError(f"a report took longer than {TIMEOUT:g} s")
            return question()
        except Exception as error:
            self.end(error)
            return None

    def end(self, error: BaseException) -> None:
        """Make no more reports, because of this error. It is logged once."""
        with self._changed:
            if self._ended:
                return
            self._ended = True
            self._waiting.clear()
            self._changed.notify_all()
        log_ended(error)

    def close(self, seconds: float = CLOSING) -> None:
        """Finish what waits within so many seconds, then give up. Called on all ranks; may be called twice."""
        if os.getpid() != self._process:
            return  # after a fork there is no thread, the group is the parent's, and the lock may be held forever
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        atexit.unregister(self._exit)
        thread.join(seconds)
        if thread.is_alive():
            log.warning("the straggler report under way was given up after %g s: shutting down", seconds)
            self._channel.give_up()
            thread.join(_ENDING)

    def _begin(self) -> None:
        thread = threading.Thread(target=self._run, name="holdfast-straggler-reports", daemon=True)
        thread.start()
        self._thread = thread  # only now: one that did not start cannot be joined
        atexit.register(self._exit)

    def _leave(self) -> None:
        """Close the channel, which no thread uses. It is native code of torch's, on the training thread."""
        try:
            self._channel.close()
        except Exception as error:
            log.debug("the channel of straggler reports was not closed: %r", error)

    def _exit(self) -> None:
        """The interpreter ends without `close`. A thread that came back to it later would crash the process."""
        self._channel.give_up()
        self.close(_ENDING)

    def _run(self) -> None:
        try:
            while self._round():
                pass
        except GivenUp:
            return
        except BaseException as error:
            self.end(error)
        # After an error too: ranks that are in the middle of this exchange are not kept waiting for this one.
        self._channel.close()

    def _round(self) -> bool:
        """One agreement, and one result if there is a window that all ranks have; False when it is time to end."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._closing or self._ended)
            if not self._waiting:
                return False
            self._busy = True
            offered = dict(self._waiting)  # one that is agreed on is made, even if it is forgotten meanwhile
        newest, minus_oldest = self._channel.least([float(max(offered)), -float(min(offered))])
        with self._changed:
            for number in [number for number in self._waiting if number <= newest]:
                del self._waiting[number]
        if newest < -minus_oldest:
            return True  # some rank no longer has it
        if (left_out := int(newest) - min(offered)) > 0:
            text = "straggler reports are asked for faster than ranks can exchange them: %d left out, for the newest"
            self._once(logging.INFO, text, left_out)
        result = offered[int(newest)]()
        if result is not None:
            with self._changed:
                self._newest = result
        return True
