"""What one rank does, from its process, its stack, its system call, its sections and its children. Pure.

Always holds: what makes a process unable to run (stopped, dead, in the kernel) goes before what its stack shows.
Does not cover: whether it should be there; that is the others' to tell (`hang.py`).
"""

from __future__ import annotations

from dataclasses import replace

from ..evidence import RankEvidence
from . import kernel as K
from .whereabouts import UNKNOWN, Doing, from_kernel, from_stack


def doing(rank: RankEvidence, others_answer: bool = False) -> Doing:
    """What this rank does. `others_answer`: other ranks have given their stacks by a thread of their own."""
    found = _unable(rank)
    if found is None:
        found = _from_evidence(rank)
        found = _held_lock(rank, found, others_answer) or found
    done = rank.board is not None and rank.board.finished
    if done and found.kind in ("user_code", "lock", "child", UNKNOWN):
        text = f"has said that it is done and does not end: it {found.text}"
        return replace(found, kind="shutdown", text=text)
    return found


def _unable(rank: RankEvidence) -> Doing | None:
    process = rank.process
    if process is None:
        return None
    state = process.state[:1]
    if process.state == "gone" or state in ("Z", "X"):
        return Doing("exit", "has ended, and nobody has said how", clear=False)
    if state in ("T", "t"):
        by = "by a debugger or tracer" if state == "t" else "by a signal (SIGSTOP or its like)"
        return Doing("stopped", f"is stopped {by}: state {state}", clear=True)
    if state == "D" and not (process.sampled_over > 0 and K.main_thread_ran(process)):
        at = process.system_call or process.wait_channel
        where = f" in {at}" if at else ""
        files = f", with {process.network_files[0]} open" if process.network_files and not at else ""
        return Doing("uninterruptible", f"sits in the kernel, state D{where}{files}", clear=K.idle(process))
    return None


def _from_evidence(rank: RankEvidence) -> Doing:
    main = next((thread.frames for thread in rank.stacks if thread.main), None)
    if main is None and rank.stacks_from == "the rank itself":
        main = ()  # it has told all threads, and the main thread has no Python frame any more
    if main is not None:
        return from_stack(rank, main)
    if "no Python frame" in rank.no_stacks:
        return Doing("shutdown", "runs no Python any more, as at the end of its exit")
    return from_kernel(rank, None)


def _held_lock(rank: RankEvidence, found: Doing, others_answer: bool) -> Doing | None:
    """A rank whose own thread does not answer; that of others tells that the machine has time for it."""
    said = any(word in rank.no_collectives for word in ("GIL", "interpreter lock"))
    if not said or rank.stacks_from == "the rank itself" or found.kind == "shutdown":
        return None
    where = f"; its main thread {found.text}" if found.kind != UNKNOWN else ""
    text = f"does not answer, so a thread holds Python's interpreter lock{where}"
    return Doing("gil", text, others_answer, place=found.place)
