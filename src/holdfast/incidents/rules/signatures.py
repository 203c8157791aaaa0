"""The activity of one rank: one ordered table, the first signature that fits decides. Pure.

The state of the process comes first (stopped, ended, in the kernel), then the flight recorder, then whether a thread
holds the GIL, then the stack, then the system call. A stack that ends in the program's own line is explained by the
kernel.
Does not cover: whether a rank should be there. Only the others show that (`graph`, `blame`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...fault_tolerance.board.values import CHECKPOINTING
from ..evidence import (
    BoardFacts,
    Frame,
    Missing,
    Process,
    RankEvidence,
    StackSource,
    SystemCall,
    Target,
    Thread,
)
from ..verdict import Activity, Kind, Strength
from . import recorder
from .kernel_waits import Wait, kernel_wait, uses_a_processor, wait_of_channel
from .places import Place, function_of, is_own, place_of
from .sentence import called, child_states, rate, short, worker_states

WEAK, STRONG, PROOF = Strength.WEAK, Strength.STRONG, Strength.PROOF
RHYTHM = 3.0  # a rank moves that is silent for less than this many of its own longest intervals
SHORT_SILENCE = 1.0  # seconds; a shorter silence means nothing
SHOWN = 3  # threads that are described; of more there is a number


def activity(rank: RankEvidence, *, others_answer: bool = False) -> Activity:
    """What this rank is doing. `others_answer`: helper threads of other ranks have answered."""
    found = (
        _of_process(rank)
        or _pending(rank)
        or _holds_gil(rank, others_answer)
        or _of_stack(rank)
        or _of_kernel(rank, "")
    )
    is_finished = rank.board is not None and rank.board.finished
    if is_finished and found.kind in (Kind.USER_CODE, Kind.LOCK, Kind.CHILD, Kind.UNKNOWN):
        text = f"has ended its script and not exited: it {found.text}"
        found = replace(found, kind=Kind.SHUTDOWN, text=text)
    process = rank.process
    if process and process.read and process.read_over and _may_read(found, process):
        found = replace(found, text=f"{found.text}; it reads {rate(process.read, process.read_over)}")
    return replace(found, rank=rank.rank, moves=moves(rank))


def _may_read(found: Activity, process: Process) -> bool:
    """Whether what the process reads belongs to this activity."""
    return found.kind == Kind.CHECKPOINT_IO or kernel_wait(process) in (Wait.READ, Wait.FIFO, Wait.PIPE)


def moves(rank: RankEvidence, *, suspected: bool = False) -> bool:
    """Whether the board shows progress: it changed, or (unsuspected) it is silent for no longer than usual."""
    board = rank.board
    if board is None or rank.raised is not None or (rank.exit is not None and not rank.exit.asked):
        return False
    usual = max(SHORT_SILENCE, RHYTHM * board.rhythm)
    return board.moved or (not suspected and rank.passed is None and board.silent <= usual)


def main_stack(rank: RankEvidence) -> tuple[Frame, ...] | None:
    """The main thread's calls, the innermost first; empty: it runs no Python any more. None: not known."""
    stack = next((thread.frames for thread in rank.stacks if thread.main), None)
    return () if stack is None and rank.stacks_from is StackSource.RANK else stack


# -- signatures, in their order --------------------------------------------------------------------------------


def _of_process(rank: RankEvidence) -> Activity | None:
    """A process that has ended, is stopped, or is blocked in the kernel."""
    process, number = rank.process, rank.rank
    if process is None:
        return None
    state = process.state[:1]
    if process.state == "gone" or state in ("Z", "X"):
        if rank.board is not None and rank.board.finished:
            return Activity(number, Kind.FINISHED, "has ended after it reported that it was finished", PROOF)
        running = [each for each in process.threads if each.tid != rank.pid and each.state[:1] not in "ZX"]
        if running:
            text = f"has ended its main thread alone, and {len(running)} of its other threads run on"
            return Activity(number, Kind.EXIT, text, WEAK)
        return Activity(number, Kind.EXIT, "has ended, and its exit code is not recorded", WEAK)
    if state in ("T", "t"):
        by = "a debugger or tracer" if state == "t" else "a signal (SIGSTOP or its like)"
        return Activity(number, Kind.STOPPED, f"is stopped by {by}: state {state}", PROOF)
    was_sampled_twice = process.sampled_over > 0
    if state != "D" or (was_sampled_twice and _main_thread_ran(process)):
        return None
    strength = STRONG if was_sampled_twice else WEAK
    if process.system_call.name in STARTS:
        text = f"waits in the kernel for a process that it is just starting ({process.system_call})"
        return Activity(number, Kind.CHILD, text, strength, _own_call(main_stack(rank) or ()))
    at = str(process.system_call) or process.wait_channel
    where = f" in {at}" if at else f", with {process.network_files[0]} open" if process.network_files else ""
    text = f"is blocked in the kernel (state D){where}"
    return Activity(number, Kind.UNINTERRUPTIBLE, text, strength)


STARTS = ("vfork", "clone", "clone3")
"""System calls in which a process may wait, in state D, until its new child runs a program."""
_OTHER_WAITS = (Kind.DATA_LOADING, Kind.CHILD, Kind.NETWORK)
"""What a main thread can wait for while the GPU waits; a lock or a copy from the GPU may itself wait for the GPU."""


def _pending(rank: RankEvidence) -> Activity | None:
    """What it has enqueued and is not completed, unless its main thread waits for something else meanwhile."""
    pending, other = recorder.oldest_pending(rank.collectives), _of_stack(rank)
    waits_elsewhere = other is not None and other.kind in _OTHER_WAITS and other.strength is STRONG
    if not pending or (waits_elsewhere and not is_computing(rank)):
        return None
    entry = max(pending.values(), key=lambda each: each.ago)
    place = _own_call(main_stack(rank) or ())
    name, at = recorder.operation(entry), f" at {place}" if place else ""
    return Activity(
        rank.rank, Kind.IN_COLLECTIVE, f"waits in {name}{at}", PROOF, place, name, entry.group, entry.sequence
    )


def _holds_gil(rank: RankEvidence, others_answer: bool) -> Activity | None:
    is_silent = Missing.NO_ANSWER in (rank.no_collectives, rank.no_stacks)
    # At the end of Python neither its threads nor its signal handlers answer any more.
    has_no_python = rank.board is not None and rank.board.finished and not rank.stacks
    if not is_silent or has_no_python or rank.stacks_from is StackSource.RANK:
        return None
    found = _of_stack(rank) or _of_kernel(rank, "")
    if found.kind == Kind.SHUTDOWN:
        return None
    where = f"; its main thread {found.text}" if found.kind != Kind.UNKNOWN else ""
    text = f"does not answer, so a thread holds Python's interpreter lock (GIL){where}"
    return Activity(rank.rank, Kind.GIL, text, STRONG if others_answer else WEAK, found.place)


# -- the stack -------------------------------------------------------------------------------------------------


def _of_stack(rank: RankEvidence) -> Activity | None:
    """The innermost call that means something decides; a data loader or a checkpoint around it gives the purpose."""
    stack = main_stack(rank)
    if stack is None:
        if rank.no_stacks is not Missing.NO_PYTHON_FRAME:
            return None
        return Activity(rank.rank, Kind.SHUTDOWN, "runs no Python any more, as at the end of its exit", WEAK)
    found = [place_of(frame) for frame in stack]
    if not stack or Place.EXIT in found:
        is_ending = rank.process is not None and uses_a_processor(rank.process)  # it may be about to end
        strength = WEAK if is_ending else STRONG
        return Activity(rank.rank, Kind.SHUTDOWN, f"is at its exit{_kept_by(rank, stack, found)}", strength)
    own = _own_call(stack)
    inner = _innermost(found)
    if inner == Place.BACKWARD:
        return _in_backward(rank, own)
    if inner in _PEERS:
        outers = (Place.TEARDOWN, Place.RENDEZVOUS, Place.STORE)
        outer = next((place for place in outers if place in _before_own(found)), inner)
        operation = _operation(stack, found)
        at = f" at {own}" if own else ""
        return Activity(rank.rank, _PEERS[outer], f"waits in {operation}{at}", STRONG, own, operation)
    return _outside(rank, stack, found, own)


def _kept_by(rank: RankEvidence, stack: Sequence[Frame], found: Sequence[Place]) -> str:
    """What keeps a process at its exit: Python joins the threads that are not daemons, then calls the exit handlers."""
    children = rank.process.children if rank.process else ()
    if Place.CHILD in found and children:
        return f": it waits for its child process {children[0].pid} ({short(children[0].command)})"
    joined = [each for each in rank.stacks if each.daemon is False and not each.main and each.frames]
    if stack and joined:
        threads = (
            f"thread {each.name!r}, which is in {_own_call(each.frames) or called(each.frames[0])}"
            for each in joined[:SHOWN]
        )
        more = f" and {len(joined) - SHOWN} more" if len(joined) > SHOWN else ""
        return f": it waits for {', '.join(threads)}{more}"
    return f", in {called(stack[0])}" if stack else ": no Python frame is left"


_PEERS = {
    Place.COLLECTIVE: Kind.IN_COLLECTIVE,
    Place.P2P: Kind.IN_COLLECTIVE,
    Place.STORE: Kind.RENDEZVOUS,
    Place.RENDEZVOUS: Kind.RENDEZVOUS,
    Place.TEARDOWN: Kind.TEARDOWN,
}


def _operation(stack: Sequence[Frame], found: Sequence[Place]) -> str:
    """The function that the program called: the outermost of torch's, without wrappers."""
    names = [function_of(frame) for frame, place in zip(stack, found, strict=True) if place in _PEERS]
    calls = [name for name in names if name not in ("wrapper", "inner", "forward", "next_rendezvous")]
    return ([name for name in calls if not name.startswith("_")] or names)[-1]


def _before_own(found: Sequence[Place]) -> Sequence[Place]:
    """The places of the calls below the program's own innermost one."""
    return found[: found.index(Place.OWN)] if Place.OWN in found else found


def _own_call(stack: Sequence[Frame]) -> str:
    return next((called(frame) for frame in stack if is_own(frame)), "")


def _in_backward(rank: RankEvidence, own: str) -> Activity:
    """Autograd runs the program's hooks on threads of its own, which Python did not start."""
    for thread in rank.stacks:
        if not thread.main and _is_hook(thread):
            found = _of_only_thread(_as_main(replace(rank, process=None), thread))
            return replace(found, text=f"{found.text} (autograd's thread)", strength=STRONG)
    process = rank.process
    if process is not None and uses_a_processor(process):
        return Activity(rank.rank, Kind.USER_CODE, f"computes gradients in backward at {own}", WEAK, own)
    waits = process is not None and kernel_wait(process) in (Wait.FUTEX, Wait.POLL, Wait.UNKNOWN)
    strength = STRONG if waits else WEAK
    return Activity(rank.rank, Kind.IN_COLLECTIVE, f"waits in backward at {own}", strength, own, "backward")


def _is_hook(thread: Thread) -> bool:
    """Whether a thread that Python did not start runs the program's own code, and does not wait for work."""
    if not any(map(is_own, thread.frames)) or _is_idle(thread):
        return False
    return function_of(thread.frames[-1]) not in ("_bootstrap", "_bootstrap_inner", "run")


def _is_idle(thread: Thread) -> bool:
    """Whether it waits for work, as a background thread of the program does."""
    return _innermost(map(place_of, thread.frames)) in (Place.LOCK, Place.EVENTS)


def _serves(thread: Thread) -> bool:
    """Whether it accepts or answers requests of other processes."""
    return any(
        frame.file.endswith("socketserver.py") or function_of(frame) == "accept" for frame in thread.frames
    )


def _innermost(places: Iterable[Place]) -> Place:
    return next((place for place in places if place is not Place.LIBRARY), Place.LIBRARY)


def _outside(rank: RankEvidence, stack: Sequence[Frame], found: Sequence[Place], own: str) -> Activity:
    """The main thread is in none of torch's waits for peers."""
    innermost = called(stack[0])
    inside = f"{innermost}, from {own}" if own and innermost != own else own or innermost
    before_own = _before_own(found)
    if Place.LOADER in found:
        calls = [f for f, place in zip(stack, found, strict=True) if place in (Place.OWN, Place.LOADER)]
        call = called(calls[0])
        inside = f"{call}, from {own}" if own and call != own else call
        text = f"waits for data in {inside}{worker_states(rank.process)}"
        return Activity(rank.rank, Kind.DATA_LOADING, text, STRONG, own)
    if Place.CHECKPOINT in found:
        text = f"waits for a checkpoint's storage in {inside}"
        return Activity(rank.rank, Kind.CHECKPOINT_IO, text, STRONG, own)
    for place, kind, text in _BLOCKING:
        if place in before_own:
            if kind == Kind.CHILD and rank.process and rank.process.system_call.peer:
                kind, text = Kind.NETWORK, "waits for another service"
            state = child_states(rank.process, "child process") if kind == Kind.CHILD else ""
            return _with_purpose(rank, Activity(rank.rank, kind, f"{text} in {inside}{state}", STRONG, own))
    if Place.EVENTS in before_own:
        kind, awaited, state = Kind.USER_CODE, "", ""
        if rank.process and (peer := rank.process.system_call.peer):
            kind, awaited = Kind.NETWORK, f" for {peer}"
        elif _loop_waits_for_child(rank):
            kind, awaited = Kind.CHILD, " for its child process"
            state = child_states(rank.process, "child process")
        return Activity(rank.rank, kind, f"waits in its event loop{awaited} in {inside}{state}", WEAK, own)
    if Place.GPU in before_own:
        text = f"waits for its GPU in {inside}"
        return Activity(rank.rank, Kind.IN_COLLECTIVE, text, WEAK, own, "the GPU's work")
    activity = _of_kernel(rank, own or innermost)
    if Place.LOGGING in before_own and activity.kind == Kind.CHECKPOINT_IO:
        activity = replace(activity, kind=Kind.USER_CODE)
    if Place.IMPORT in found and activity.kind in (Kind.USER_CODE, Kind.UNKNOWN):
        return Activity(rank.rank, Kind.STARTUP, f"is still importing, in {own or innermost}", STRONG, own)
    return _with_purpose(rank, replace(activity, place=own))


def _loop_waits_for_child(rank: RankEvidence) -> bool:
    """Whether asyncio's event loop watches a child, by a descriptor or, before Python 3.12, by a thread."""
    by_descriptor = rank.process is not None and rank.process.system_call.target is Target.PROCESS
    calls = (function_of(frame) for thread in rank.stacks for frame in thread.frames)
    return by_descriptor or "_do_waitpid" in calls


_BLOCKING = (
    (Place.CHILD, Kind.CHILD, "waits for its child process"),
    (Place.NETWORK, Kind.NETWORK, "waits for another service"),
    (Place.LOCK, Kind.LOCK, "waits for a lock"),
)


def _with_purpose(rank: RankEvidence, found: Activity) -> Activity:
    """What a main thread waits for that waits for a lock: a thread of its own, or a child process."""
    if found.kind != Kind.LOCK:
        return found
    working = [thread for thread in rank.stacks if not thread.main and not _is_idle(thread)]
    return (
        _for_storage(rank, found, working)
        or _for_a_thread(rank, found, working)
        or _for_a_child(rank, found)
        or found
    )


def _for_storage(rank: RankEvidence, found: Activity, working: Sequence[Thread]) -> Activity | None:
    """A thread saves a checkpoint or loads data."""
    kernel = {thread.tid: thread for thread in rank.process.threads} if rank.process else {}
    for thread in working:
        places = [place_of(frame) for frame in thread.frames]
        seen = kernel.get(thread.tid) if thread.tid and _is_saving(rank.board) else None
        in_file = seen is not None and (
            seen.state == "D" or wait_of_channel(seen.wait_channel) in (Wait.READ, Wait.WRITE, Wait.PIPE)
        )
        if Place.CHECKPOINT in places or in_file or Place.LOADER in places:
            kind = Kind.DATA_LOADING if Place.LOADER in places else Kind.CHECKPOINT_IO
            text = f"{found.text}; its thread {short(thread.name, 30)!r} is in {called(thread.frames[0])}"
            return replace(found, kind=kind, text=text)
    return None


def _for_a_thread(rank: RankEvidence, found: Activity, working: Sequence[Thread]) -> Activity | None:
    """The only thread that works for a future; else, less certain, the only one that works in the same module."""
    stack, is_future = main_stack(rank) or (), _waits_for_a_future(rank)
    if is_future:
        partners = [thread for thread in working if _has_call(thread, "concurrent/futures/thread.py")]
    elif Place.LOCK in map(place_of, stack):
        module = next((frame.file for frame in stack if is_own(frame)), "")
        same_module = (thread for thread in working if any(frame.file == module for frame in thread.frames))
        partners = [thread for thread in same_module if not _serves(thread)]
    else:
        return None
    if len(partners) != 1:
        return None
    alone = _as_main(rank, partners[0])
    done = _of_only_thread(alone)
    text = f"{found.text}; its thread {short(partners[0].name, 30)!r} {done.text}"
    is_seen = alone.process is not None and kernel_wait(alone.process) is not Wait.UNKNOWN
    if done.kind == Kind.USER_CODE and not is_seen:
        return replace(found, text=text)  # only its place is known
    return replace(done, text=text, place=found.place, strength=done.strength if is_future else WEAK)


def _for_a_child(rank: RankEvidence, found: Activity) -> Activity | None:
    """A child that is stopped, or the children of a pool of processes."""
    children = rank.process.children if rank.process else ()
    stopped = [each for each in children if each.state[:1] in ("T", "t")]
    if stopped:
        text = f"{found.text}; its child process {stopped[0].pid} is stopped (state {stopped[0].state})"
        return replace(found, kind=Kind.CHILD, text=text)
    has_pool = any(_has_call(thread, "concurrent/futures/process.py") for thread in rank.stacks)
    if children and has_pool and _waits_for_a_future(rank):
        text = f"{found.text} of a pool of processes{child_states(rank.process, 'child process')}"
        return replace(found, kind=Kind.CHILD, text=text)
    return None


def _waits_for_a_future(rank: RankEvidence) -> bool:
    return any("concurrent/futures/" in frame.file for frame in main_stack(rank) or ())


def _has_call(thread: Thread, file: str) -> bool:
    """Whether it is in a function `run` of this file, as the threads of a pool are."""
    return any(frame.file.endswith(file) and function_of(frame) == "run" for frame in thread.frames)


def _as_main(rank: RankEvidence, thread: Thread) -> RankEvidence:
    """The rank as if this were its only thread. Without `process`, the kernel's facts of it are not known."""
    process = rank.process
    seen = next((each for each in process.threads if each.tid == thread.tid), None) if process else None
    if process is not None and seen is not None:
        process = replace(process, state=seen.state, cpu=seen.cpu, wait_channel=seen.wait_channel)
        process = replace(process, system_call=SystemCall(), threads=(seen,))
    else:
        process = None
    return replace(rank, process=process, stacks=(replace(thread, main=True),))


def _of_only_thread(alone: RankEvidence) -> Activity:
    """By its stack and the kernel's function in which it sleeps."""
    return _of_process(alone) or _of_stack(alone) or _of_kernel(alone, "")


def _is_saving(board: BoardFacts | None) -> bool:
    """Whether the innermost open section is the documented one for checkpoints."""
    return board is not None and board.sections[-1:] != () and board.sections[-1].name == CHECKPOINTING


# -- the kernel ------------------------------------------------------------------------------------------------


def _of_kernel(rank: RankEvidence, at: str) -> Activity:
    """By the system call; `at` is the innermost Python call, '' where no stack shows it.

    A file may hold data, a checkpoint or a log: only the stack or the documented section shows which.
    """
    process = rank.process
    wait = kernel_wait(process) if process is not None else Wait.UNKNOWN
    where = f" in {at}" if at else ""
    call = f" ({process.system_call})" if process and process.system_call.name else ""
    own = Kind.USER_CODE if at else Kind.UNKNOWN
    by_rank = STRONG if at and rank.stacks_from is StackSource.RANK else WEAK
    kind, text, strength = {
        Wait.COMPUTES: (Kind.USER_CODE, "computes", by_rank),
        Wait.SLEEPS: (Kind.USER_CODE, "sleeps", by_rank),
        Wait.FILE_LOCK: (Kind.LOCK, f"waits for a file lock{call}", STRONG),
        Wait.CHILD: (Kind.CHILD, "waits for its child process", STRONG),
        Wait.CONNECTION: (Kind.NETWORK, f"waits for a connection{call}", STRONG if at else WEAK),
        Wait.PIPE: (Kind.USER_CODE, f"waits at a pipe or a terminal{call}", WEAK),
        Wait.FIFO: (Kind.USER_CODE, f"waits for a process at the other end of a FIFO{call}", WEAK),
        Wait.POLL: (Kind.NETWORK if at else Kind.UNKNOWN, "waits for a descriptor (poll)", WEAK),
        Wait.FUTEX: (Kind.LOCK if at else own, "waits for a lock, or natively for a peer (futex)", WEAK),
        Wait.READ: (own, f"waits for a file{call}", WEAK),
        Wait.WRITE: (own, f"is blocked in a write{call}", WEAK),
        Wait.UNKNOWN: (own, "is" if at else "is at an unknown place", WEAK),
    }[wait]
    if _is_saving(rank.board) and wait in (Wait.READ, Wait.WRITE, Wait.FIFO, Wait.UNKNOWN):
        kind, text, strength = Kind.CHECKPOINT_IO, f"waits for the storage of its checkpoint{call}", STRONG
        if wait is Wait.UNKNOWN:
            text, strength = "is in its section 'checkpointing'", WEAK
    state = child_states(process, "child process") if wait is Wait.CHILD else ""
    return Activity(rank.rank, kind, f"{text}{where}{state}", strength, at)


def waits_natively(rank: RankEvidence) -> bool:
    """Whether its main thread is in a native wait that a lock, a condition or a peer may end."""
    return rank.process is not None and kernel_wait(rank.process) in (Wait.FUTEX, Wait.POLL)


def is_computing(rank: RankEvidence) -> bool:
    """Whether the process uses a processor, as a wait for a GPU does too."""
    return rank.process is not None and kernel_wait(rank.process) is Wait.COMPUTES


def _main_thread_ran(process: Process) -> bool:
    """Whether the main thread ran between two samples: torch's own threads wake up all the time."""
    main = process.threads[0] if process.threads else process
    return main.cpu > 0 or main.switches > 0
