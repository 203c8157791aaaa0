"""Makes a rank report where it is: a signal dumps its main thread's stack, and a helper thread answers questions with
the Python stacks of all threads and, for each process group, the entries of torch's flight recorder that matter.

In the folder of the rank's board `L.board` it leaves `L.armed` (which process, signal and descriptor; whether the
thread runs), `L.stack` (what the signal writes), `L.ask` (a FIFO; a question is eight bytes) and `L.answer` (JSON of
less than 256 KB). The other side is `holdfast.incidents.capture.stack_request`. An answer holds the interpreter's lock
while the stacks are walked and while torch prints its recorder, some milliseconds. Everything of torch here is private
and may be missing or different: then the answer has a reason instead.
What always holds: nothing here raises, nothing is done before a question, a signal that the program handles is never
taken, a forked child never answers, and the helper thread takes no signal. It imports nothing of Holdfast.
``HOLDFAST_WITNESS=off`` switches all of it off.
Does not cover: a program that handles the same real-time signal later; native stacks; gloo's `isend` and `irecv`, which
torch does not record and whose `wait()` has no Python frame.
"""

import _signal  # type: ignore[import-not-found]
import _thread
import os
import sys

TYPE_CHECKING = False  # `typing` would be an import more in every rank
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

VARIABLE = "HOLDFAST_WITNESS"
BOARD = "FT_RANK_MONITOR_IPC_SOCKET"
SUFFIX = ".board"
MODULE = "torch.distributed.distributed_c10d"
FIRST_SIGNAL = 45
"""SIGRTMIN+11, or the next one that is free: debuggers, profilers and libraries take the first and the last ones."""
HIGH = 900, 200, 60
"""Our descriptors are not below the first of these that is possible: the script's own have the numbers that they would
have without us."""
QUESTION = 8
LEAVES = 0.5
"""Seconds to wait for the thread when a client goes."""
REMEMBERED = 16
"""An answer names this many of the last questions, so that each of several concurrent askers finds its own."""

MOST = 250_000
INNER, OUTER = 40, 24
"""Frames of a stack: its innermost and its outermost ones."""
THREADS, ENTRIES, PAIRED, MOST_OF_A_GROUP, GROUPS, MEMBERS = 64, 16, 4, 64, 32, 1024
"""Entries of a group: 16 collectives, and 4 for each direction between two ranks."""
RECORD = 256
"""Words of glibc's record of a thread; it has more."""
RECORDERS = "_dump_fr_trace_json", "_dump_nccl_trace_json"
"""gloo's and other backends', NCCL's."""


def arm(environ: "Any", after_import: "Any") -> "Any":
    """In the prologue: the signal from now on, the thread once the program has a process group. Earlier it would be
    the one reason for which Python warns of a fork beside threads. Returns what starts the thread at once."""
    try:
        prefix = _prefix(environ)
        if prefix:
            found = _Introspection(prefix)
            found.arm()
            if MODULE in sys.modules:
                _with_first_group(sys.modules[MODULE], found.start)
            else:
                after_import(MODULE, lambda module: _with_first_group(module, found.start))
            return found.start
    except Exception:
        pass  # the rank cannot be asked; it trains all the same
    return lambda: None


def connect(environ: "Any") -> "Any":
    """When a client connects: the thread, and what the prologue has not done. Returns what undoes all of it when that
    client goes, None in a rank of the launcher's: such a one can be asked to its end."""
    try:
        prefix = _prefix(environ)
        if prefix:
            found = _Introspection(prefix)
            alone = found.armed() is None
            if alone:
                found.arm()
            found.start()
            return found.end if alone else None
    except Exception:
        pass
    return None


def _prefix(environ: "Any") -> str:
    path = environ.get(BOARD, "")
    if not path or environ.get(VARIABLE, "").lower() in ("off", "0"):
        return ""
    path = os.path.realpath(path)  # a `RankMonitorServer` gives its rank a link
    return path[: -len(SUFFIX)] if path.endswith(SUFFIX) else ""


def _with_first_group(module: "Any", start: "Any") -> None:
    """Start when torch has its first process group; leaves no trace afterwards. At once where this is another torch."""
    inner = getattr(module, "_update_default_pg", None)
    if inner is None or module._world.default_pg is not None:
        start()
        return

    def once(*args: "Any", **more: "Any") -> "Any":
        if module._update_default_pg is once:
            module._update_default_pg = inner
        try:
            return inner(*args, **more)
        finally:
            start()

    module._update_default_pg = once


class _Introspection:
    """What one rank has armed. There may be two of these in a process, of which only the files know each other."""

    def __init__(self, prefix: str) -> None:
        self._prefix, self._owner = prefix, os.getpid()
        self._leaves: Any = False
        self._helper = 0
        self._gone = _thread.allocate_lock()  # held while the thread runs
        self._ask = self._stack = self._signal = -1

    def armed(self) -> "Any":
        """What this process has armed already: signal, descriptor, whether the thread runs."""
        import json

        try:
            with open(f"{self._prefix}.armed") as file:
                said = json.load(file)
            return (
                (said["signal"], said["descriptor"], said["thread"]) if said["pid"] == self._owner else None
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def arm(self) -> None:
        """Let the signal dump the main thread's stack. All threads' would be unsafe while they run."""
        signum = self._signal = _free_signal()
        descriptor = self._stack = _file_of(f"{self._prefix}.stack", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        known = "faulthandler" in sys.modules
        import faulthandler

        # Python gives the signal back when it ends; should one still come then, it shall not be the rank's death.
        # A function that does nothing: to ignore it would be inherited by the programs that are started from here.
        _take(signum)
        _ours.add(signum)
        faulthandler.register(signum, file=descriptor, all_threads=False, chain=False)
        if not known:
            sys.modules.pop("faulthandler", None)
        self._say(signum, descriptor, False)

    def start(self) -> None:
        """Start the thread, if this process has none yet. Never raises."""
        try:
            armed = self.armed()
            if os.getpid() != self._owner or armed is None or armed[2]:
                return
            path = f"{self._prefix}.ask"
            if os.path.lexists(path):  # an earlier process of the same rank has left it
                os.unlink(path)
            os.mkfifo(path, 0o600)
            # For writing as well: so there is always a writer, and a read waits.
            descriptor = self._ask = _file_of(path, os.O_RDWR)
            self._gone.acquire()
            before = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
            try:
                _thread.start_new_thread(self._answer, (descriptor, _identity(descriptor)))
            finally:
                _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
            self._say(armed[0], armed[1], True)
        except Exception:
            pass

    def end(self) -> None:
        """Undo it. The signal stays harmless: it may have been sent at this very moment. Never raises."""
        try:
            if os.getpid() != self._owner or sys.is_finalizing() or self._signal < 0:
                return
            os.unlink(f"{self._prefix}.armed")
            import faulthandler

            faulthandler.unregister(self._signal)
            identity = _identity(self._stack)
            if identity == _identity(f"{self._prefix}.stack"):
                os.close(self._stack)
            if self._gone.locked() and _identity(self._ask) == _identity(f"{self._prefix}.ask"):
                self._leaves = True
                os.write(self._ask, bytes(QUESTION))
                if _thread.get_ident() != self._helper:  # not where it collects garbage
                    self._gone.acquire(timeout=LEAVES)
        except Exception:
            pass

    def _say(self, signum: int, descriptor: int, thread: bool) -> None:
        text = f'"pid": {self._owner}, "signal": {signum}, "descriptor": {descriptor}, "thread": {str(thread).lower()}'
        self._put("armed", f"{{{text}}}")

    def _put(self, what: str, text: str) -> None:
        aside = f"{self._prefix}.{what}.new"
        try:
            with open(
                os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w"
            ) as file:
                file.write(text)
            os.replace(aside, f"{self._prefix}.{what}")
        except OSError:
            if os.path.lexists(aside):
                os.unlink(aside)  # no room: it must not hold what there is
            raise

    def _answer(self, descriptor: int, identity: "Any") -> None:
        self._helper = _thread.get_ident()
        try:
            self._answer_all(descriptor, identity)
            if _identity(descriptor) == identity:
                os.close(descriptor)
        except Exception:
            pass
        self._gone.release()

    def _answer_all(self, descriptor: int, identity: "Any") -> None:
        asked: list[str] = []
        while not self._leaves and os.getpid() == self._owner:
            try:
                # The program may have closed it, and have opened something else under its number. That it does so
                # between this check and the read, some microseconds, is not covered.
                if _identity(descriptor) != identity:
                    return
                got = os.read(descriptor, QUESTION * REMEMBERED)
            except OSError:
                return
            if self._leaves:
                return
            asked = [*asked, *(got[at : at + QUESTION].hex() for at in range(0, len(got), QUESTION))]
            asked = asked[-REMEMBERED:]
            try:
                for answer in answers(asked):
                    self._put("answer", answer)
            except Exception:
                pass  # there is no room for it: who asked does not wait long


def _free_signal() -> int:
    """Raises LookupError where there is none."""
    taken = 0
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(("SigBlk:", "SigIgn:", "SigCgt:")):
                taken |= int(line.split()[1], 16)
    for signum in range(FIRST_SIGNAL, _signal.SIGRTMAX):
        free = signum in _ours or not taken >> (signum - 1) & 1
        if free and _signal.getsignal(signum) == _signal.SIG_DFL:
            return signum
    raise LookupError("every real-time signal is taken")


def _file_of(path: str, flags: int) -> int:
    """Open it, with a high number that no program started from here inherits."""
    low = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    for least in HIGH:
        high = _libc().fcntl(low, 1030, least)  # F_DUPFD_CLOEXEC; the module fcntl would be an import more
        if high >= 0:
            os.close(low)
            return high  # type: ignore[no-any-return]
    return low


_ours: "set[int]" = set()  # signals that are handled because of us


def _identity(file: "int | str") -> "tuple[int, int]":
    """Of a file, by its descriptor or path."""
    found = os.stat(file)
    return found.st_dev, found.st_ino


def _libc() -> "Any":
    import ctypes

    return ctypes.CDLL(None)


def _take(signum: int) -> None:
    import ctypes

    libc = _libc()
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signum, ctypes.cast(libc.abs, ctypes.c_void_p))


# -- the answer --------------------------------------------------------------------------------------------------


def answers(asked: "list[str]") -> "Iterator[str]":
    """The answer to these questions: first the stacks at once, then with the flight recorder as well."""
    import json  # imported already when a stack is requested; not yet when a rank starts
    import time

    answer: dict[str, Any] = {"questions": asked, "pid": os.getpid(), "complete": False}
    answer["threads"] = threads()
    yield json.dumps(answer)
    begun = time.monotonic()
    groups, why, note = collectives()
    answer.update(complete=True, groups=groups, no_collectives=why, note=note, took=time.monotonic() - begun)
    text = json.dumps(answer)
    if len(text) > MOST:
        answer["groups"] = [
            {**group, "members": [], "entries": _decisive(group["entries"], PAIRED)} for group in groups
        ]
        text = json.dumps(answer)
    if len(text) > MOST:
        note = "There are too many process groups for one answer."
        answer.update(groups=[], no_collectives="not_recorded", note=note)
        text = json.dumps(answer)
    yield text


def threads() -> "list[dict[str, Any]]":
    """Every Python thread but this one, the main thread first; the innermost frame first."""
    threading: Any = sys.modules.get("threading")
    known = dict(getattr(threading, "_active", {}))  # not enumerate(): it takes a lock
    main = getattr(getattr(threading, "_main_thread", None), "ident", None)
    frames = sys._current_frames()
    # Of threads that run Python now: `known` may have one whose memory is gone.
    tids = {ident: getattr(known[ident], "_native_id", 0) or 0 for ident in frames if ident in known}
    tids[_thread.get_ident()] = _thread.get_native_id()
    found = []
    for ident, frame in frames.items():
        if ident != _thread.get_ident():
            thread = known.get(ident)
            tid = tids.get(ident) or _tid(ident, tids)
            is_main = ident == main or (main is None and tid == os.getpid())
            name = getattr(thread, "_name", "") or _name(tid) or f"thread {ident}"
            found.append(
                {
                    "name": "MainThread" if is_main else str(name)[:100],
                    "main": is_main,
                    "daemon": bool(getattr(thread, "_daemonic", True)),
                    "tid": tid,
                    "frames": _frames(frame),
                    "peer": _peer(frame) if is_main else None,
                }
            )
    if main is None and len(found) == 1:
        found[0].update(name="MainThread", main=True, tid=os.getpid())
    found.sort(key=lambda thread: not thread["main"])
    return found[:THREADS]


def _peer(frame: "Any") -> "int | None":
    """The global rank with which this stack is in `torch.distributed.send` or `recv`, by the arguments of that call."""
    while frame is not None and not (
        frame.f_code.co_name in ("send", "recv") and frame.f_globals.get("__name__") == MODULE
    ):
        frame = frame.f_back
    if frame is None:
        return None
    try:
        side, values = "dst" if frame.f_code.co_name == "send" else "src", frame.f_locals
        peer = values.get(side)
        if peer is None:
            world = frame.f_globals["_world"]
            ranks = world.pg_group_ranks[values.get("group") or world.default_pg]
            peer = next((rank for rank, own in ranks.items() if own == values.get(f"group_{side}")), None)
        return peer if isinstance(peer, int) else None
    except Exception:
        return None  # of another torch


def _tid(ident: int, known: "dict[int, int]") -> int:
    """The kernel's number of a thread that Python has not started, such as autograd's; 0 where it is not found.

    An ident is the address of glibc's record of the thread. Where that has the number is seen from the threads of
    which both are known. Such a thread has a frame and cannot end while this one has the interpreter's lock.
    """
    try:
        if "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""):
            return 0
        import ctypes

        words = {each: (ctypes.c_int * RECORD).from_address(each) for each in (ident, *known)}
        pairs = [(words[each], tid) for each, tid in known.items() if tid]
        places = [at for at in range(RECORD) if all(record[at] == tid for record, tid in pairs)]
        tid = words[ident][places[0]] if len(places) == 1 else 0
        return tid if tid > 0 and os.path.exists(f"/proc/self/task/{tid}") else 0
    except (OSError, ValueError):
        return 0


def _name(tid: int) -> str:
    try:
        with open(f"/proc/self/task/{tid}/comm") as file:
            return file.read().strip() if tid else ""
    except OSError:
        return ""


def _frames(frame: "Any") -> "list[list[Any]]":
    """Of a deep stack both ends: where it is, and how the program came there."""
    every = []
    while frame is not None:
        every.append(frame)
        frame = frame.f_back
    frames: list[list[Any]] = []
    for each in every if len(every) <= INNER + OUTER else every[:INNER] + every[-OUTER:]:
        name = getattr(each.f_code, "co_qualname", each.f_code.co_name)
        frames.append([name[:200], each.f_code.co_filename[-500:], each.f_lineno or 0])
    return frames


def collectives() -> "tuple[list[dict[str, Any]], str, str]":
    """The entries that matter, by process group; why there are none, or not all: a code of `Missing`, and in words."""
    import json

    try:
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        if c10d is None or c10d._world.default_pg is None:
            return [], "no_group", ""
        found = []
        without = []
        for dump in _recorders():
            made, uncounted = _groups(json.loads(dump()), _members(c10d))
            found += made
            without += uncounted
    except Exception as error:
        return [], "failed", f"torch's flight recorder cannot be read: {type(error).__name__}: {error}"[:300]
    if without:
        groups = ", ".join(without[:4])
        why = f"Collectives of {groups} are not comparable between ranks: torch counts sends and receives with them."
        return found, "not_recorded", why
    if not found:
        return [], "not_recorded", "torch's flight recorder is empty, or off (TORCH_FR_BUFFER_SIZE=0)."
    return found, "", ""


def _recorders() -> "list[Any]":
    native = sys.modules["torch"]._C._distributed_c10d
    found = [getattr(native, name) for name in RECORDERS if hasattr(native, name)]
    if not found:
        raise LookupError("this torch has none that can be read")
    return found


def _members(c10d: "Any") -> "dict[str, list[int]]":
    """Global ranks by the group's name, in the group's order, where torch still has the group."""
    try:
        world = c10d._world
        names = list(world.pg_names.items())
        ranks = [(str(name), world.pg_group_ranks.get(group, {})) for group, name in names]
        return {name: sorted(numbers, key=numbers.get) for name, numbers in ranks}
    except Exception:
        return {}


def _groups(
    dump: "dict[str, Any]", members: "dict[str, list[int]]"
) -> "tuple[list[dict[str, Any]], list[str]]":
    """Entries by process group, those with the newest entry first; and groups whose numbers mean nothing elsewhere.

    A send and a receive have numbers of their own, by the pair of ranks and the direction.
    """
    import time

    entries = dump.get("entries") or []
    whole = min((entry.get("record_id", 1) for entry in entries), default=0) == 0
    by_group: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in entries:
        name, what = (*entry.get("process_group", ()), "", "")[:2]
        by_group.setdefault((str(name), str(what)), []).append(entry)
    now, found, uncounted = time.time_ns(), [], []
    latest = sorted(by_group.items(), key=lambda item: -item[1][-1].get("time_created_ns", 0))[:GROUPS]
    for (name, what), of_group in latest:
        streams: dict[str, list[dict[str, Any]]] = {}
        for entry in _uncoalesced(of_group):
            streams.setdefault(_operation(entry) if entry.get("is_p2p") else "", []).append(entry)
        said = []
        for stream, of_stream in sorted(
            streams.items(), key=lambda item: (item[0] != "", -item[1][-1].get("time_created_ns", 0))
        ):
            numbers = _numbers(of_stream, whole, bool(stream))
            if numbers is None:
                uncounted.append(_title(name, what))
                continue
            made = [_entry(number, entry, now) for number, entry in zip(numbers, of_stream, strict=True)]
            said += _decisive(made, PAIRED if stream else ENTRIES)
        runs = _runs(members.get(name, []))
        if said:
            said = said[:MOST_OF_A_GROUP]
            found.append(
                {
                    "group": _title(name, what),
                    "members": runs if len(runs) <= MEMBERS else [],
                    "entries": said,
                }
            )
    return found, uncounted


def _uncoalesced(entries: "list[dict[str, Any]]") -> "list[dict[str, Any]]":
    """NCCL's batches: torch keeps the state in an entry `coalesced` after their parts, which have its number.

    Sends and receives of a batch get that state; a batch of collectives is one collective.
    """

    def batch(entry: "dict[str, Any]") -> "tuple[bool, Any]":
        p2p = bool(entry.get("is_p2p"))
        return p2p, entry.get("p2p_seq_id" if p2p else "collective_seq_id")

    found: list[dict[str, Any]] = []
    for entry in entries:
        first = len(found)
        if _operation(entry).endswith("coalesced"):
            while first and batch(found[first - 1]) == batch(entry):
                first -= 1
        state = {"state": entry.get("state", ""), "retired": entry.get("retired")}
        parts = [{**part, **state} for part in found[first:]]
        if parts and not entry.get("is_p2p"):
            names = ",".join(_operation(part) for part in parts)[:200]
            parts = [{**entry, "profiling_name": f"{entry.get('profiling_name', '')}[{names}]"}]
        found[first:] = parts or [entry]
    return found


def _numbers(entries: "list[dict[str, Any]]", whole: bool, p2p: bool) -> "list[int] | None":
    """Sequence numbers that mean the same on every rank of the group. gloo's count what a rank has sent and received
    as well, without recording it; NCCL's of sends and receives count all peers. Then only counting from the group's
    first entry helps, while that is known."""
    given = [int(entry["p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"]) for entry in entries]
    if not p2p and not all(entry.get("profiling_name", "").startswith("gloo:") for entry in entries):
        return given
    if whole:
        return list(range(1, len(entries) + 1))
    return given if p2p or given == list(range(given[0], given[0] + len(given))) else None


def _decisive(entries: "list[dict[str, Any]]", most: int) -> "list[dict[str, Any]]":
    """The oldest ones that are not completed, the newest that is, and the newest of all."""
    kept = [entry for entry in entries if entry["state"] != "completed"][: most // 2]
    completed = [entry for entry in entries if entry["state"] == "completed"]
    kept += completed[-1:]
    taken = {id(entry) for entry in kept}
    newest = [entry for entry in entries if id(entry) not in taken][-(most - len(taken)) :]
    taken.update(id(entry) for entry in newest)
    return [entry for entry in entries if id(entry) in taken]


def _runs(numbers: "list[int]") -> "list[list[int]]":
    """As `[first, count, step]` of each run: thousands of ranks take no room."""
    runs: list[list[int]] = []
    for number in numbers:
        last = runs[-1] if runs else None
        if last is not None and last[1] == 1:
            last[1:] = [2, number - last[0]]
        elif last is not None and number == last[0] + last[1] * last[2]:
            last[1] += 1
        else:
            runs.append([number, 1, 1])
    return runs


def _title(name: str, what: str) -> str:
    if what == "default_pg":
        return what
    return name if what in ("", "undefined") else f"{what} ({name})"


def _operation(entry: "dict[str, Any]") -> str:
    name = str(entry.get("profiling_name", ""))
    return name.partition(":")[2] or name


def _entry(number: int, entry: "dict[str, Any]", now: int) -> "dict[str, Any]":
    import json

    state = str(entry.get("state", ""))
    if entry.get("retired") and state == "scheduled":
        state = "completed"  # gloo does not say more
    return {
        "sequence": number,
        "operation": _operation(entry),
        "sizes": json.dumps(entry.get("input_sizes", []))[:200],
        "dtype": ", ".join(dict.fromkeys(entry.get("input_dtypes", [])))[:60],
        "state": state,
        "ago": max(0.0, (now - entry.get("time_created_ns", now)) / 1e9),
        "p2p": bool(entry.get("is_p2p")),
        "backend": str(entry.get("profiling_name", "")).rpartition(":")[0][:20],
    }
