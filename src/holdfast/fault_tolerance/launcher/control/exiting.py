"""How ranks ended, SIGKILL for those that are late, and ranks that are at their end and whose process stays: each of
these is reported, and some are ended when their time is over.

docs/launcher.md, "Ranks that do not end", has the rules. When a `checkpointing` section is closed, both clocks start
again. Before a rank is ended, the driver describes what keeps its process.
Does not cover: ranks of which no end is known (no Python, a Python below a shell, no board) while others run; the last
ranks that keep a processor busy; a finished rank that even SIGKILL does not end, which keeps the job.
"""

from __future__ import annotations

import signal

from holdfast.incidents.classify import DYING, DYING_WITH_GPU

from ..exit_codes import FAILED, Outcome
from . import messages as m
from .messages import NEVER, Action, Board, Log, journal
from .node import Node, Rank, Settle
from .records import LEFT

REPORT_AFTER = 60.0
"""Seconds after which a rank whose process stays after a good end, or a last one that does nothing, is reported."""
REPORT_SAVING_AFTER = 600.0
"""The same of a finished rank whose section `checkpointing` is open: a save in the background may take its time."""
LOG_AFTER = 1.0
"""Seconds after an exception in which most processes end, so that no line is needed."""
DESCRIBED = 1.0
"""Seconds for the description of what keeps a process."""
INTERRUPT_GRACE = 5.0
"""Seconds after SIGINT in which Python ends, else SIGKILL follows."""
SLOW = 10.0
"""Seconds after SIGKILL after which a rank that is still ending is logged."""
UNINTERRUPTIBLE = 10.0
"""Seconds in state D, after SIGKILL, after which a process is not waited for."""


# -- ranks that end -------------------------------------------------------------------------------------------


def record_exit(node: Node, event: m.RankExited, now: float) -> Rank:
    """A rank has ended."""
    rank = node.ranks[event.local]
    rank.status, rank.is_stuck = event.status, False
    if (rank.has_raised or event.has_raised) and event.status < 0:
        rank.status = FAILED  # an exception was ending it when the signal did
    if rank.interrupted_at is not None and -event.status in (signal.SIGINT, signal.SIGKILL):
        rank.status = 0  # its script had finished
    if not rank.has_raised:
        rank.cause, rank.text, rank.has_raised = event.cause, event.text, event.has_raised
        rank.failure = event.failure
        rank.began = now - event.ago
    return rank


def kill_late(node: Node, deadlines: dict[int, float], began: float, why: str, now: float) -> list[Action]:
    """SIGKILL the ranks whose deadline has passed, and find those that outlive it."""
    actions: list[Action] = []
    for rank in node.running:
        if rank.killed_at is None and now >= deadlines[rank.local]:
            rank.killed_at = now
            actions.append(m.KillRank(rank.local, now - began, why))
        elif rank.killed_at is not None and now - rank.killed_at >= SLOW and not rank.is_logged:
            rank.is_logged = True
            why = "(it gives its memory back, or a debugger holds it): waiting for it"
            text = f"rank {rank.number} was sent SIGKILL {SLOW:.0f} s ago and is still ending {why}"
            actions.append(Log(text))
        if rank.killed_at is None or rank.local not in node.tick.blocked:
            rank.blocked_since = None
        elif rank.blocked_since is None:
            rank.blocked_since = now
        rank.is_stuck = rank.blocked_since is not None and now - rank.blocked_since >= UNINTERRUPTIBLE
    return actions


def exit_code(failed: list[Rank]) -> int:
    """The failing ranks' own code where they agree (128+n for signal n), else 1.

    Ranks that only lost a peer count if all did. A hung rank that ended with 0 has failed.
    """
    codes = {rank.exit_code for rank in failed if not rank.only_lost_peer}
    codes = codes or {rank.exit_code for rank in failed}
    return (codes.pop() if len(codes) == 1 else 0) or Outcome.RANKS_DISAGREE.code


def failed_ranks(node: Node) -> list[Rank]:
    """The ranks that failed or are about to, the first one first.

    This order names no culprit: that is the judge's, from the evidence of all nodes, seconds later. The exit code and
    the next cycle record cannot wait for it, and need the exit of the rank that failed first. Of a rank that only lost
    a peer the exception may be earlier than the end of that peer (`DYING`).
    """
    failed = [rank for rank in node.ranks.values() if rank.has_failed]
    doubt = DYING_WITH_GPU if any(rank.status == -signal.SIGKILL for rank in failed) else DYING
    return sorted(failed, key=lambda rank: rank.began + doubt * rank.only_lost_peer)


# -- ranks whose process stays ------------------------------------------------------------------------------------


def ends_at(node: Node, rank: Rank) -> float:
    """When this rank's time to end after an exception is over; infinite where none ended its main thread."""
    board = node.board(rank.local)
    if board.ended_for is None or not board.has_raised or board.is_saving:
        return NEVER
    return node.ticked_at - board.ended_for + node.settings.exit_timeout


def watch_exits(node: Node, now: float) -> list[Action]:
    """Report and end the ranks whose processes stay. One that saves a checkpoint is not ended."""
    raised: list[tuple[Rank, float]] = []
    finished: list[tuple[Rank, float]] = []
    for rank in node.running:
        board = node.board(rank.local)
        if board.ended_for is not None and rank.killed_at is None:
            waited = now - node.ticked_at + board.ended_for
            if not board.has_raised:
                finished.append((rank, waited))
            else:
                raised.append((rank, -1.0 if board.is_saving else waited))
    actions = _after_exceptions(node, raised, now)
    for rank, waited in finished:
        actions += _after_good_end(node, rank, waited, now)
    return [*actions, *_last_ones(node, now)]


def _after_exceptions(node: Node, raised: list[tuple[Rank, float]], now: float) -> list[Action]:
    limit = node.settings.exit_timeout
    actions: list[Action] = []
    for rank, waited in raised:
        is_saving = node.board(rank.local).is_saving
        if rank.text and not rank.is_exit_logged and (is_saving or waited >= min(LOG_AFTER, limit)):
            rank.is_exit_logged = True
            then = f": it is killed if it is still there {limit:g} s after the exception (--ft-exit-timeout)"
            if is_saving or limit == NEVER:
                then = ": its section 'checkpointing' is open" if is_saving else ""
            who = f"rank {rank.number} (pid {rank.pid})"
            actions.append(Log(f"{who} failed: {rank.text}. Its process has not ended{then}"))
    late = [(rank, waited) for rank, waited in raised if waited >= limit]
    if limit:
        actions += [action for rank, _ in late for action in _describe(rank, now)]
        if not all(_is_described(rank, now) for rank, _ in late):
            return actions
    why = f"did not end within --ft-exit-timeout {limit:g} s of its exception"
    for rank, waited in late:
        rank.killed_at, rank.has_raised = now, True
        rank.text = rank.text or "an uncaught exception"
        actions.append(m.KillRank(rank.local, waited, why))
    if late:
        node.phase = Settle()  # whether or not SIGKILL ends them
    return actions


def _after_good_end(node: Node, rank: Rank, waited: float, now: float) -> list[Action]:
    limit = node.settings.finished_timeout
    if rank.interrupted_at is not None:
        if now - rank.interrupted_at < INTERRUPT_GRACE:
            return []
        rank.killed_at = now
        why = "has finished its script, did not end at SIGINT, and counts as successful"
        return [m.KillRank(rank.local, waited, why)]
    if node.board(rank.local).is_saving:
        return _describe(rank, now) if waited >= REPORT_SAVING_AFTER else []
    if waited < min(REPORT_AFTER, limit):
        return []
    if not _is_described(rank, now) or waited < limit:
        return _describe(rank, now)
    rank.interrupted_at = now
    why = f"has finished its script and did not end within --ft-finished-timeout {limit:g} s"
    return [m.KillRank(rank.local, waited, why, signal.SIGINT)]


def _last_ones(node: Node, now: float) -> list[Action]:
    """The ranks that run on and do nothing, where all others of the job have ended with 0."""
    ended = [rank.began for rank in node.ranks.values() if rank.status == 0]
    if node.progress.quiet_since is None or now - max([node.progress.quiet_since, *ended]) < REPORT_AFTER:
        return []
    left = [(rank, node.board(rank.local)) for rank in node.running]
    if any(board.is_saving or _silent(board) < REPORT_AFTER for _, board in left):
        return []
    others = {*node.membership.names} - {node.name}
    if others and not {*node.view.log(node.key("done")), *node.view.log(LEFT)} >= others:
        for key in (node.key("done"), LEFT):
            node.watch(key, max(1.0, node.quick))
        return []
    if not ended and not others:
        return []
    return [action for rank, board in left if board.ended_for is None for action in _describe(rank, now)]


def _silent(board: Board) -> float:
    """Seconds since its last sign of life; infinite where there can be none."""
    return NEVER if board.idle_for is None else board.idle_for


def _describe(rank: Rank, now: float) -> list[Action]:
    if rank.described_at is not None:
        return []
    rank.described_at = now
    return [m.DescribeExit(rank.local)]


def _is_described(rank: Rank, now: float) -> bool:
    if rank.described_at is None:
        return False
    return rank.kept_by is not None or now - rank.described_at >= 2 * DESCRIBED


def record_description(node: Node, event: m.ExitDescribed, now: float) -> list[Action]:
    """What keeps the process of a rank: for the log, the journal, and the reason of the restart or a report."""
    if event.cycle != node.record.cycle:
        return []
    rank = node.ranks[event.local]
    if not rank.is_running or rank.kept_by is not None:
        return []
    rank.kept_by = event.kept_by
    board = node.board(rank.local)
    who = f"rank {rank.number} (pid {rank.pid})"
    if board.ended_for is None:
        seconds = now - (node.progress.quiet_since or now)
        why = f"{who} has done nothing for {seconds:.0f} s, and all others have ended with exit code 0"
    else:
        what = "its exception" if board.has_raised else "its script finished"
        seconds = board.ended_for + now - node.ticked_at
        why = f"{who} has not ended {seconds:.0f} s after {what}"
        if board.is_saving:
            why += ", and its section 'checkpointing' is open"
    text = f"{why}: {event.kept_by}"
    if board.has_raised:
        rank.text = f"{rank.text or 'an uncaught exception'}; its process did not end: {event.kept_by}"
    elif board.ended_for is not None and not board.is_saving and node.settings.finished_timeout == NEVER:
        text += ". Set --ft-finished-timeout to end such processes"
    values = {"rank": rank.number, "pid": rank.pid, "seconds": round(seconds, 3), "kept_by": event.kept_by}
    values |= {"has_raised": board.has_raised, "has_finished": board.ended_for is not None}
    actions = [Log(text), journal("exit_delayed", cycle=node.record.cycle, **values)]
    if board.has_raised or any(_is_awaited(each, now) for each in node.running):
        return actions
    return [*actions, m.ReportExits(why)]


def _is_awaited(rank: Rank, now: float) -> bool:
    """Whether its description is under way: then one report is made of both."""
    return rank.described_at is not None and not _is_described(rank, now)
