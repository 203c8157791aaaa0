"""The evidence of all local ranks of a node, taken side by side and in time.

First what waits for nobody, of all ranks: boards and two samples of ``/proc``. What may wait is left to daemon
threads, one for each rank; those that are not done at the end are left behind, and what they bring later is dropped.
Always holds: :func:`gather` never raises, and returns at the moment it was given (a few milliseconds later at most,
on a busy machine). Where no thread can be started it returns at once with what waits for nobody.
Does not cover: how a rank ended and what it wrote; the launcher knows that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from ...fault_tolerance.board import Snapshot
from ..evidence import BoardFacts, Process, RankEvidence
from .board_facts import board_facts
from .local_rank import LocalRank as LocalRank
from .rank_look import SPIES, RankLook

PAUSE = 0.05
"""Seconds between the two samples."""
_MOST_OF_THE_TIME = 0.5
"""Share of the time that is left which the pause may take."""
_stuck: dict[int, threading.Thread] = {}
"""Threads that were left behind, by the process they wait for: no second one waits for the same."""


def gather(
    locals_: Sequence[LocalRank], until: float, *, ask: bool, may_signal: bool, pause: float = PAUSE
) -> tuple[RankEvidence, ...]:
    """One for each rank, in their order, at `until` (monotonic seconds) at the latest, with what there is.

    `ask` has the ranks tell their stacks, which interrupts them; `may_signal` allows a signal for that, to ranks that
    are armed for it. `pause` is in seconds; 0 takes one sample only.
    """
    now_ns = time.monotonic_ns()
    boards = [_snapshot(who) for who in locals_]
    looks = [RankLook(who) for who in locals_]
    for look in looks:
        _safely(look, look.first_sample)
    living = [look for look in looks if look.lives]
    closer = [_thread(look, look.look_closer, look.subject.pid) for look in living]
    _move(living, until, pause)
    if ask and living:
        spies = threading.Semaphore(SPIES)
        _wait([_asking(look, until, may_signal, spies) for look in living], until)
    _wait(closer, until)
    return tuple(_evidence(look, before, now_ns, ask) for look, before in zip(looks, boards, strict=True))


def _move(looks: Sequence[RankLook], until: float, pause: float) -> None:
    """The second sample, after the pause; none where there is no time for it."""
    if pause <= 0 or not looks:
        return
    time.sleep(max(min(pause, (until - time.monotonic()) * _MOST_OF_THE_TIME), 0.0))
    for look in looks:
        if time.monotonic() < until:
            _safely(look, look.second_sample)


def _asking(
    look: RankLook, until: float, may_signal: bool, spies: threading.Semaphore
) -> threading.Thread | None:
    return _thread(look, lambda: look.ask(until, may_signal, spies), -look.subject.pid)


def _thread(look: RankLook, work: Callable[[], None], key: int) -> threading.Thread | None:
    """Does the work in a thread; None, and a note, where that cannot be."""
    earlier = _stuck.get(key)
    if earlier is not None and earlier.is_alive():
        look.notes.append(
            "An earlier look at it still waits in the kernel; it was not looked at as closely again."
        )
        return None
    thread = threading.Thread(target=_safely, args=(look, work), daemon=True, name=f"holdfast-evidence-{key}")
    try:
        thread.start()
    except RuntimeError as error:
        look.notes.append(f"It was not looked at closely: no thread can be started here ({error}).")
        return None
    _stuck[key] = thread
    return thread


def _wait(threads: Sequence[threading.Thread | None], until: float) -> None:
    for thread in threads:
        if thread is not None:
            thread.join(max(until - time.monotonic(), 0.0))
    for key in [key for key, thread in _stuck.items() if not thread.is_alive()]:
        del _stuck[key]


def _safely(look: RankLook, work: Callable[[], None]) -> None:
    """Our own mistake must not cost the other parts."""
    try:
        work()
    except Exception as error:
        look.notes.append(f"A part of its evidence could not be taken: {error!r} (please report this).")


def _snapshot(who: LocalRank) -> Snapshot | None:
    try:
        return who.board.snapshot() if who.board is not None else None
    except Exception:  # closed meanwhile, or scribbled over
        return None


def _board(look: RankLook, before: Snapshot | None, now_ns: int) -> BoardFacts | None:
    board, now = look.who.board, _snapshot(look.who)
    if board is None or now is None:
        return None
    try:
        return board_facts(now, board.events(), now_ns, before)
    except Exception as error:
        look.notes.append(f"Its board cannot be read: {error!r}.")
        return None


def _evidence(look: RankLook, before: Snapshot | None, now_ns: int, ask: bool) -> RankEvidence:
    who, told = look.who, look.told  # once: a thread that is late may replace it
    try:
        process: Process | None = look.process()
    except Exception as error:
        process = None
        look.notes.append(f"Its process cannot be described: {error!r} (please report this).")
    return RankEvidence(
        rank=who.rank,
        local_rank=who.local_rank,
        pid=who.pid,
        node=who.node,
        board=_board(look, before, now_ns),
        process=process,
        stacks=told.stacks,
        stacks_from=told.stacks_from,
        no_stacks=told.no_stacks or ("" if told.stacks else _why_nothing(look, ask)),
        collectives=told.collectives,
        no_collectives=told.no_collectives or ("" if told.collectives else _why_nothing(look, ask)),
        notes=tuple(look.notes),
    )


def _why_nothing(look: RankLook, ask: bool) -> str:
    if not look.lives:
        return "its process has ended"
    return "it did not answer in time" if ask else "ranks are not interrupted where nobody hangs"
