"""Where a rank is, by its main thread's stack and its system call. Pure.

Always holds: of a stack the innermost frame that says something decides, and the data loader or a checkpoint around it
decide what it is for; what ends in the program's own code is told by the kernel.
Does not cover: a process that cannot run, and threads beside the main thread (`doing.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..evidence import Frame, Process, RankEvidence
from . import frames as F
from . import kernel as K
from .sections import CHECKPOINT, DATA, is_checkpoint_call, purpose
from .wording import called, worker_states

COLLECTIVE, MEETING, PARTING = F.COLLECTIVE, F.MEETING, F.PARTING
"""It waits for its peers: in a collective, to meet them, to part from them. No kinds of a verdict."""
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Doing:
    """Where a rank is. `kind` is a verdict's kind, or one of the words above."""

    kind: str
    text: str = ""
    """As the end of "it …": `sleeps in step() at train.py:88`."""
    clear: bool = False
    """Whether the evidence allows nothing else that we know of."""
    operation: str = ""
    """Of a rank that waits for its peers: `all_reduce`."""
    place: str = ""
    """Where the program's own code is, to compare ranks by."""

    @property
    def waits_for_peers(self) -> bool:
        return self.kind in (COLLECTIVE, MEETING, PARTING)


def from_stack(rank: RankEvidence, stack: tuple[Frame, ...]) -> Doing:
    places = [F.place_of(frame) for frame in stack]
    if not stack or F.LEAVING in places:
        how = f", in {called(stack[0])}" if stack else ": no Python frame is left"
        return Doing("shutdown", f"is at its exit{how}", clear=True)
    own = next((called(frame) for frame, place in zip(stack, places, strict=True) if place == F.OWN), "")
    inner = next((place for place in places if place != F.LIBRARY), F.LIBRARY)
    if inner == F.BACKWARD:
        return _backward(rank, own)
    if inner in (COLLECTIVE, MEETING, PARTING):
        kind = next((p for p in (PARTING, MEETING) if p in _run_of(places)), inner)
        operation = _operation(stack, places)
        return Doing(
            kind, f"waits in {operation} at {own}" if own else f"waits in {operation}", True, operation, own
        )
    return _outside(rank, stack, places, own)


def _run_of(places: list[str]) -> list[str]:
    """The places up to the program's own code."""
    return places[: places.index(F.OWN)] if F.OWN in places else places


def _operation(stack: tuple[Frame, ...], places: list[str]) -> str:
    """What the program called: the outermost of torch's functions, without the wrappers around it."""
    names = [
        F.function_of(frame)
        for frame, place in zip(stack, places, strict=True)
        if place in (COLLECTIVE, MEETING, PARTING)
    ]
    public = [name for name in _first_calls(names) if not name.startswith("_")]
    return (public or names)[-1]


def _first_calls(names: list[str]) -> list[str]:
    return [name for name in names if name not in ("wrapper", "inner", "forward", "next_rendezvous")]


def _backward(rank: RankEvidence, own: str) -> Doing:
    """Backward computes, and waits only for the gradients of its peers."""
    process = rank.process
    if process is not None and K.computing(process):
        return Doing("user_code", f"computes gradients in backward at {own}", False, place=own)
    waits = process is None or K.waits_in(process) in (K.LOCKED, K.POLLS, K.UNKNOWN)
    return Doing(COLLECTIVE, f"waits in backward at {own}", waits and process is not None, "backward", own)


def _outside(rank: RankEvidence, stack: tuple[Frame, ...], places: list[str], own: str) -> Doing:
    at = own or called(stack[0])
    innermost = called(stack[0])
    inside = f"{innermost}, from {own}" if own and innermost != own else at
    section = purpose(rank.board)
    run = _run_of(places)
    if F.LOADER in places or section == DATA:
        workers = worker_states(rank.process)
        speaking = (f for f, place in zip(stack, places, strict=True) if place in (F.OWN, F.LOADER))
        read = called(next(speaking, stack[0]))
        inside = f"{read}, from {own}" if own and read != own else read
        return Doing("data_loading", f"waits for data in {inside}{workers}", F.LOADER in places, place=own)
    if F.CHECKPOINT in places:
        return Doing("checkpoint_io", f"is at a checkpoint's storage in {inside}", True, place=own)
    for place, text in (
        (F.CHILD, "waits for its child"),
        (F.NETWORK, "waits for another service"),
        (F.LOCK, "waits for a lock"),
    ):
        if place in run:
            return Doing(place, f"{text} in {inside}", True, place=own)
    if F.EVENTS in run:
        return Doing("user_code", f"waits in its event loop in {inside}", False, place=own)
    found = from_kernel(rank, at)
    if found.kind == "data_loading" and any(is_checkpoint_call(F.function_of(frame)) for frame in stack[:4]):
        return Doing("checkpoint_io", found.text, found.clear, place=own)
    if F.IMPORT in places and found.kind in ("user_code", UNKNOWN, "data_loading"):
        return Doing("startup", f"is still importing, in {at}", True, place=own)
    return replace(found, place=own)


def from_kernel(rank: RankEvidence, at: str | None) -> Doing:
    """By the system call; `at` is the program's own code where a stack shows it."""
    process, section = rank.process, purpose(rank.board)
    word = K.waits_in(process) if process is not None else K.UNKNOWN
    where = f" in {at}" if at else ""
    seen = at is not None
    free = (
        seen and rank.stacks_from == "the rank itself"
    )  # else it may keep Python's interpreter lock as well
    if section == DATA and not seen and word != K.UNKNOWN:
        return Doing("data_loading", f"is in its data section{where}{worker_states(process)}")
    if word in (K.READS, K.WRITES):
        return _file(process, section, word, where)
    table = {
        K.COMPUTES: ("user_code", "computes", free),
        K.SLEEPS: ("user_code", "sleeps", free),
        K.FILE_LOCK: ("lock", f"waits for a file lock ({process.system_call if process else ''})", True),
        K.CHILD: ("child", "waits for its child", True),
        K.NETWORK: ("network", "waits for a connection", seen),
        K.PIPE: ("user_code", "waits at a pipe or a terminal", False),
        K.POLLS: ("network" if seen else UNKNOWN, "waits for a descriptor (poll)", False),
        K.LOCKED: ("lock" if seen else UNKNOWN, "waits for a lock, or natively for a peer (futex)", False),
    }
    if word in table:
        kind, text, clear = table[word]
        return Doing(kind, f"{text}{where}", clear, place=at or "")
    if section == CHECKPOINT:
        return Doing("checkpoint_io", f"is in its checkpoint section{where}", place=at or "")
    if section == DATA:
        return Doing("data_loading", f"is in its data section{where}", place=at or "")
    return (
        Doing("user_code", f"is in {at}", False, place=at) if at else Doing(UNKNOWN, "is at an unknown place")
    )


def _file(process: Process | None, section: str, word: str, where: str) -> Doing:
    call = f" ({process.system_call})" if process and process.system_call else ""
    if section == CHECKPOINT or word == K.WRITES:
        return Doing("checkpoint_io", f"waits for the storage{call}{where}", section == CHECKPOINT)
    return Doing("data_loading", f"waits for a file{call}{where}", False)
