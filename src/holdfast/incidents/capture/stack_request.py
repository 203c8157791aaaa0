"""Stacks and collectives from a rank itself: its helper thread first, and where that does not answer, by a signal.

The rank's side is `launcher/ranks/prologue/introspection.py`. An unarmed process would die of the signal. So before
each: the process is the one meant (pid and start time, by a handle), it runs or waits (a stopped one cannot answer),
it handles this signal and does not hold it back, and the descriptor that the signal writes to still leads to our file.
A forked child, such as a data-loader worker, inherits all of that, and is asked in the same way.

Always holds: nothing here raises, nothing waits beyond the moment that the caller names, an answer is to this question
or to a later one, and one process at a time writes its stack.
Does not cover: native stacks (`py_spy`); a program that puts a handler of its own in the place of ours: that one is
called; workers that were not forked.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.fault_tolerance.processes import kill, proc

from ..classify import is_p2p, peer_of
from ..evidence import Collective, Frame, Missing, StackSource, Thread
from ..wire import members_of

FIRST_WORD = 0.06
"""Seconds for the helper thread's first word. It needs the interpreter's lock for it, which others give back within
milliseconds unless they are native code that keeps it."""
LAST_WORD = 0.1
"""Seconds after the question until which it may still come, when the signal has brought the main thread's stack."""
WITHOUT_SIGNAL = 0.4
"""The same where no signal can bring it."""
RECORDER = 1.0
"""Seconds for the flight recorder's part, once the thread has begun to answer."""
MOST_ANSWER = 1 << 20
MOST_STACK = 1 << 24
"""Bytes in the file of stacks after which no process is signalled any more."""
POLL = 0.001
PASSES = 0.02
"""Seconds after which a process in state D is taken to stay in it."""
AFTERWARDS = 0.03
"""Seconds that a stack may come after the signal is no longer pending: another thread took it."""


@dataclass(frozen=True, slots=True)
class StackReply:
    """What a rank, or py-spy, has reported; the fields but the last are those of `RankEvidence`."""

    stacks: tuple[Thread, ...] = ()
    stacks_from: StackSource = StackSource.NONE
    no_stacks: Missing = Missing.NOTHING
    collectives: tuple[Collective, ...] = ()
    no_collectives: Missing = Missing.NOTHING
    peer: int | None = None
    notes: tuple[str, ...] = ()
    complete: bool = True
    """False while the flight recorder's part is missing."""


def request(prefix: str, pid: int, start_time: int, until: float) -> StackReply:
    """Have this process report its stacks and its flight recorder, by a signal where its helper thread does not answer.

    Args:
        prefix: The path of its board without ``.board``; empty where it has none.
        start_time: Clock ticks since boot.
        until: Monotonic seconds.
    """
    if not prefix:
        return _nothing(Missing.NOT_ARMED)
    try:
        found = proc.stat(pid)
        if found is None or found.start_time != start_time or found.state in "ZXx":
            return _nothing(Missing.ENDED)
        if found.state in "Tt":
            return _nothing(Missing.STOPPED)
        armed = read_armed(prefix)
        if armed is None or armed.pid != pid:
            return _nothing(Missing.NOT_ARMED)
        return _request(prefix, armed, start_time, until)
    except Exception as error:  # py-spy may still bring stacks
        return _nothing(Missing.FAILED, f"It could not be asked: {error!r} (please report this).")


def _nothing(why: Missing, *notes: str) -> StackReply:
    return StackReply(no_stacks=why, no_collectives=why, notes=notes)


def _request(prefix: str, armed: Armed, start_time: int, until: float) -> StackReply:
    begun = time.monotonic()
    question, silent, notes = "", Missing.NO_HELPER, list[str]()
    if armed.thread:
        question, gone = _ask(prefix)
        silent = Missing.NO_ANSWER if question else Missing.NOT_ARMED
        notes += [gone] if gone else []
    answer = _await_answer(prefix, armed.pid, question, min(until, begun + FIRST_WORD))
    stack = why_not = ""
    if answer is None:
        stack, why_not = stack_by_signal(prefix, armed, start_time, until)
    if answer is None and question:
        last = LAST_WORD if stack else WITHOUT_SIGNAL
        answer = _await_answer(prefix, armed.pid, question, min(until, begun + last))
    if answer is None and question and not _has_room(prefix):
        silent = Missing.FAILED  # which says nothing about the rank
        notes.append(
            f"Its helper thread may have had no room for an answer: {os.path.dirname(prefix)} is full."
        )
    if answer is not None:
        if not answer.complete:
            ends = min(until, time.monotonic() + RECORDER)
            answer = _await_answer(prefix, armed.pid, question, ends, complete=True) or answer
        return answer if answer.complete else replace(answer, no_collectives=Missing.TOO_LATE)
    thread = signalled_thread(stack)
    if thread is not None:
        return StackReply((thread,), StackSource.SIGNAL, no_collectives=silent, notes=tuple(notes))
    no_stacks = Missing.NO_PYTHON_FRAME if stack else Missing.NOT_SIGNALLED
    notes += [f"No stack by a signal: {why_not}."] if why_not else []
    return StackReply(no_stacks=no_stacks, no_collectives=silent, notes=tuple(notes))


# -- the helper thread -----------------------------------------------------------------------------------------


def _ask(prefix: str) -> tuple[str, str]:
    """Ask, without waiting: the question's number, or '' and why it cannot be asked."""
    try:
        handle = os.open(f"{prefix}.ask", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return "", f"Its helper thread has ended ({error.strerror})."
    try:
        if not _is_ours(handle, stat.S_IFIFO):
            return "", f"Its helper thread cannot be asked: {prefix}.ask is not what it should be."
        number = os.urandom(8)
        os.write(handle, number)  # so few bytes are written whole
        return number.hex(), ""
    except OSError as error:
        return "", f"Its helper thread cannot be asked ({error.strerror})."
    finally:
        os.close(handle)


def _await_answer(
    prefix: str, pid: int, question: str, until: float, *, complete: bool = False
) -> StackReply | None:
    """The answer once it is written, and `complete` where that is wanted; None when it is not written in time."""
    seen: tuple[int, int] | None = None
    while question:
        now = time.monotonic()
        try:
            found = os.lstat(f"{prefix}.answer")
            if (found.st_ino, found.st_mtime_ns) != seen:
                seen = found.st_ino, found.st_mtime_ns
                answer = read_answer(_private(f"{prefix}.answer", MOST_ANSWER), question, pid)
                if answer is not None and (answer.complete or not complete):
                    return answer
        except OSError:
            pass  # not yet
        if now >= until:
            return None
        time.sleep(max(0.0, min(2 * POLL, until - now)))
    return None


def _has_room(prefix: str) -> bool:
    """Whether an answer of any size can be written."""
    free = os.statvfs(os.path.dirname(prefix))
    return free.f_bavail * free.f_frsize >= MOST_ANSWER


def read_answer(text: bytes, question: str, pid: int) -> StackReply | None:
    """The answer to this question by this process; None where the text is another's, or none at all. Pure."""
    try:
        value = json.loads(text)
        if value["pid"] != pid or question not in value["questions"]:
            return None
        why, note = value.get("no_collectives", ""), str(value.get("note", ""))[:300]
        return StackReply(
            stacks=tuple(_thread(each) for each in value["threads"]),
            stacks_from=StackSource.RANK,
            collectives=tuple(one for group in value.get("groups", ()) for one in _collectives(group)),
            no_collectives=Missing(why) if why in {each.value for each in Missing} else Missing.FAILED,
            peer=next((each["peer"] for each in value["threads"] if isinstance(each.get("peer"), int)), None),
            notes=(note,) if note else (),
            complete=value["complete"] is True,
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError):
        return None


def _thread(value: dict[str, Any]) -> Thread:
    frames = tuple(Frame(str(name), str(file), int(line)) for name, file, line in value["frames"])
    daemon, tid = value.get("daemon"), value.get("tid", 0)
    return Thread(
        str(value["name"]),
        frames,
        main=value["main"] is True,
        daemon=daemon if isinstance(daemon, bool) else None,
        tid=tid if isinstance(tid, int) else 0,
    )


def _collectives(group: dict[str, Any]) -> list[Collective]:
    members = members_of(group["members"])
    found = []
    for each in group["entries"]:
        operation = str(each["operation"])
        p2p = each.get("p2p", is_p2p(operation)) is True
        found.append(
            Collective(
                int(each["sequence"]),
                operation,
                str(group["group"]),
                str(each["sizes"]),
                str(each["dtype"]),
                str(each["state"]),
                float(each["ago"]),
                members,
                p2p,
                peer_of(operation, members) if p2p else None,
                str(each.get("backend", "")),
            )
        )
    return found


# -- by a signal -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Armed:
    """A process that expects the signal, as the rank has written it to `L.armed`."""

    pid: int
    signal: int
    descriptor: int
    thread: bool


def read_armed(prefix: str) -> Armed | None:
    """What the rank has armed; None where it has not, or the file is not what it should be."""
    try:
        value = json.loads(_private(f"{prefix}.armed", 4096))
        found = Armed(
            int(value["pid"]), int(value["signal"]), int(value["descriptor"]), value["thread"] is True
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if 0 < found.signal < 65 else None


def worker_stacks(
    prefix: str, pid: int, workers: Sequence[tuple[int, int]], until: float
) -> dict[int, tuple[Frame, ...]]:
    """The Python stacks of forked children of an armed rank, by pid: one after the other, as far as time is enough.

    `workers`: pids and start times. One that does not answer is the last: it may still write later.
    """
    found: dict[int, tuple[Frame, ...]] = {}
    armed = read_armed(prefix)
    if armed is None or armed.pid != pid:
        return found
    for worker, start_time in workers:
        if time.monotonic() >= until:
            break
        ends = min(until, time.monotonic() + WITHOUT_SIGNAL)
        stack, why_not = stack_by_signal(prefix, replace(armed, pid=worker), start_time, ends)
        if (thread := signalled_thread(stack)) is not None:
            found[worker] = thread.frames
        elif why_not in (_UNANSWERED, _SILENT, _BUSY):
            break
    return found


_UNANSWERED = "it did not answer the signal in time"
_SILENT = "it answered the signal, and wrote nothing (is /dev/shm full?)"
_BUSY = "another process asks for a stack at the same moment"


def stack_by_signal(prefix: str, armed: Armed, start_time: int, until: float) -> tuple[str, str]:
    """The main thread's stack as faulthandler writes it, or why there is none. Never raises."""
    try:
        handle = os.open(f"{prefix}.stack", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return "", f"{prefix}.stack: {error.strerror}"
    try:
        if not _is_ours(handle, stat.S_IFREG) or os.fstat(handle).st_size > MOST_STACK:
            return "", f"{prefix}.stack is not what it should be"
        if not _is_alone(handle, until):
            return "", _BUSY
        with kill.verified(armed.pid, start_time) as process:
            if process is None:
                return "", "the process has ended"
            if why_not := why_no_signal(armed, handle):
                return "", why_not
            before = os.fstat(handle).st_size
            if not kill.send(process, armed.signal):
                return "", "the process has ended"
            return _written(handle, before, armed, until)
    except OSError as error:
        return "", f"it cannot be signalled: {error.strerror}"
    finally:
        os.close(handle)


def _is_alone(handle: int, until: float) -> bool:
    """Whether no other process asks for a stack that goes to this file, from now until the descriptor is closed."""
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(POLL)


def why_no_signal(armed: Armed, handle: int) -> str:
    """Why this process must not have the signal now; '' where it may."""
    state = _state(armed.pid)
    if state not in ("R", "S"):
        return f"its state is {state}, in which it cannot answer"
    masks = signals(armed.pid)
    bit = 1 << (armed.signal - 1)
    if not masks.get("SigCgt", 0) & bit:
        return "it does not handle the signal any more"
    if masks.get("SigBlk", 0) & bit:
        return "its main thread holds signals back"
    try:
        theirs = os.stat(f"/proc/{armed.pid}/fd/{armed.descriptor}")
    except OSError:
        return "it has closed the descriptor for its stacks"
    ours = os.fstat(handle)
    if (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino):
        return "it uses the descriptor for its stacks for something else"
    return ""


def _state(pid: int) -> str:
    """Its state; one that waits for a disk has a moment to come back from it, as most do."""
    ends = time.monotonic() + PASSES
    while (found := proc.stat(pid)) and found.state == "D" and time.monotonic() < ends:
        time.sleep(POLL)
    return found.state if found else "gone"


def signals(pid: int) -> dict[str, int]:
    """The masks of signals in ``/proc/<pid>/status``; empty where that cannot be read."""
    masks = ("SigPnd", "ShdPnd", "SigBlk", "SigCgt")
    return {name: int(mask, 16) for name, mask in proc.table(f"/proc/{pid}/status").items() if name in masks}


def _written(handle: int, before: int, armed: Armed, until: float) -> tuple[str, str]:
    """Complete once something is written and the signal, after that, neither pending nor held back by its handler."""
    ends = 0.0
    while True:
        began = os.fstat(handle).st_size > before
        busy = _is_busy(armed)
        now = time.monotonic()
        if began and not busy:
            return _all(handle, before, 1 << 20).decode(errors="replace"), ""
        if not busy:
            ends = ends or now + AFTERWARDS
            if now >= ends:
                return "", _SILENT
        if now >= until:
            return "", _UNANSWERED
        time.sleep(max(0.0, min(POLL, until - now)))


def _is_busy(armed: Armed) -> bool:
    """Whether the signal is pending, or held back as it is while its handler runs."""
    masks = signals(armed.pid)
    return any(masks.get(name, 0) >> (armed.signal - 1) & 1 for name in ("SigPnd", "ShdPnd", "SigBlk"))


_HEADER = re.compile(r"^(?:Stack|(?:Current )?[Tt]hread 0x.*) \(most recent call first\):\s*$")
_FRAME = re.compile(r'^\s+File (?:"(.*)"|\?\?\?), line (\d+|\?\?\?) in (.*)$')


def signalled_thread(text: str) -> Thread | None:
    """The main thread in what faulthandler wrote after one signal or more; None where it has no frame. Pure."""
    frames: list[Frame] = []
    for line in text.splitlines():
        if _HEADER.match(line) and frames:
            break  # another signal's
        if found := _FRAME.match(line):
            number = int(found[2]) if found[2].isdecimal() and len(found[2]) < 10 else 0
            frames.append(Frame(found[3], found[1] or "", number))
    return Thread("MainThread", tuple(frames), main=True) if frames else None


# -- files -----------------------------------------------------------------------------------------------------


def _private(path: str, most: int) -> bytes:
    """The content of a file of this user's, up to `most` bytes; raises OSError where it is anything else."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return b"" if not _is_ours(handle, stat.S_IFREG) else _all(handle, 0, most)
    finally:
        os.close(handle)


def _is_ours(handle: int, kind: int) -> bool:
    """Whether what is open there belongs to this user and is of this kind (`stat.S_IFREG`, `stat.S_IFIFO`)."""
    found = os.fstat(handle)
    return stat.S_IFMT(found.st_mode) == kind and found.st_uid == os.geteuid()


def _all(handle: int, start: int, most: int) -> bytes:
    parts = []
    while most > 0 and (part := os.pread(handle, most, start)):
        parts.append(part)
        start += len(part)
        most -= len(part)
    return b"".join(parts)
