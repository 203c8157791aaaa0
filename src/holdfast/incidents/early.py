"""Structural signs that a rank hangs, before any limit is passed: samples, and the rule. Off unless asked for.

A sample is two reads of ``/proc``; threads, three reads for each, are only read of a rank whose sample is suspicious.
Nothing is disturbed, and no read takes the lock of the rank's memory map.

What always holds, since a false alarm costs a healthy job its restart:
- A rank is only accused if another local rank waits for it: all others that report are silent, and one is awake.
- One sample accuses no rank. The same must have been found for `CONFIRM` seconds in `SAMPLES` samples in a row, and of
  a stopped rank no thread may have had a context switch in between: stopped and continued in turns is not stopped.
- Nothing counts across a sample that came late, when the node may have been suspended, nor while the launcher or
  several ranks are stopped (the job is suspended), a debugger is attached (that is a person), or a rank has ended (its
  launcher sees that).

Does not cover: ranks of other nodes, a rank that is alone on its node, programs whose boards are silent anyway, ranks
that are neither stopped nor without a main thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..fault_tolerance.board import Snapshot
from ..fault_tolerance.processes import proc
from .rules.sentence import wait

PERIOD = 0.5
"""Seconds between two samples."""
LATE = 0.4
"""Seconds by which a sample may be late. Less than in `gaps`: a stop and a frozen second in a row are two."""
CONFIRM = 2.0
SAMPLES = 3
SILENT = 1.0
"""Seconds without a sign of life after which a rank may be waiting."""
EXITING = 0x4
"""PF_EXITING of the kernel's task flags (field 9 of proc(5)'s stat)."""
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ThreadCount:
    """One thread at one moment: a thread that has run since has another one, however shortly it did."""

    state: str
    ticks: int
    """Clock ticks of processor time since its start."""
    switches: int
    """Context switches since its start, voluntary or not."""
    exiting: bool = False
    """Whether the kernel is already removing it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One rank at one moment; times are monotonic seconds of the node."""

    rank: int
    """Global."""
    who: tuple[int, int]
    """Its pid and start time: which process this is."""
    state: str
    """The main thread's, a letter of proc(5); "gone" where there is no such process."""
    activity: int
    """Grows with everything that the rank writes on its board."""
    silent: float
    """Seconds since its last sign of life; since its start where there was none."""
    reports: bool
    """Whether it has ever given one: nothing follows from the silence of a program that reports nothing."""
    finished: bool = False
    traced: bool = False
    """Whether a debugger is attached. Known where its threads were read."""
    threads: Mapping[int, ThreadCount] | None = None
    """By thread id; None where they were not asked for, or could not be read."""

    @property
    def is_suspicious(self) -> bool:
        """Whether its threads may show a sign."""
        return self.state in ("T", "Z") and not self.finished

    @property
    def alive_threads(self) -> frozenset[int]:
        """Threads that outlived the main thread. One that waits for a disk may be about to end."""
        if self.state != "Z" or not self.threads:
            return frozenset()
        return frozenset(
            tid
            for tid, each in self.threads.items()
            if tid != self.who[0] and each.state == "S" and not each.exiting
        )

    @property
    def sign(self) -> str:
        """The state in which a rank may be accused; empty for any other."""
        return self.state if self.is_suspicious and (self.state == "T" or self.alive_threads) else ""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, or does so now."""
        return self.state in ("Z", "X", "x", "gone") and not self.sign


@dataclass(frozen=True, slots=True)
class Sign:
    """A structural sign that a rank will not continue by itself."""

    local_rank: int
    since: float
    """When it was first found; it may be older."""
    text: str
    """One sentence: who, what, how it is known."""


# -- the rule --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RankHistory:
    """One rank from sample to sample."""

    sample: Sample
    sign_since: float | None = None
    samples: int = 0
    left: frozenset[int] = frozenset()
    """Threads that were alive at every sample since the main thread was found to have ended."""
    awake_since: float | None = None

    def forget(self) -> None:
        """Nothing found so far confirms anything."""
        self.sign_since = self.awake_since = None
        self.samples = 0

    def add(self, now: float, new: Sample) -> None:
        """One sample more."""
        old, self.sample = self.sample, new
        awake = new.state in ("R", "S")
        self.awake_since = (self.awake_since if self.awake_since is not None else now) if awake else None
        same = new.threads is not None and new.threads == old.threads and new.activity == old.activity
        left = new.alive_threads
        continues = new.sign == old.sign and (same or bool(left & self.left))
        self.left = left & self.left if continues else left
        if not new.sign or new.threads is None or new.traced:
            self.sign_since, self.samples = None, 0
        elif continues and self.sign_since is not None:
            self.samples += 1
        else:
            self.sign_since, self.samples = now, 1


@dataclass(slots=True)
class EarlyDetection:
    """The ranks of one node. `observe` gets samples of all of them, each time at `next_sample` or soon after. Pure."""

    next_sample: float = 0.0
    """When the next samples are wanted, monotonic seconds."""
    wants_threads: frozenset[int] = frozenset()
    """Local ranks whose samples are to have their threads next time; of the others they are not needed."""
    _ranks: dict[int, RankHistory] = field(default_factory=dict)

    def observe(
        self, now: float, samples: Mapping[int, Sample], *, launcher_stopped: bool = False
    ) -> Sign | None:
        """The sign in these samples, by local rank, and the earlier ones; the same each time as long as it holds.

        `launcher_stopped`: the launcher's own process is stopped (state T).
        """
        late = self._ranks and now > self.next_sample + LATE
        for gone in self._ranks.keys() - samples.keys():
            del self._ranks[gone]
        for local_rank, sample in samples.items():
            history = self._ranks.get(local_rank)
            if history is None or history.sample.who != sample.who:
                history = self._ranks[local_rank] = RankHistory(sample)
            if late:
                history.forget()
            history.add(now, sample)
        suspicious = frozenset(key for key, each in self._ranks.items() if each.sample.is_suspicious)
        at_once = any(self._ranks[key].sample.threads is None for key in suspicious - self.wants_threads)
        self.next_sample = now if at_once else now + PERIOD
        self.wants_threads = suspicious
        if launcher_stopped or any(each.sample.has_ended for each in self._ranks.values()):
            return None
        return self._sign(now)

    def _sign(self, now: float) -> Sign | None:
        found = [(key, each) for key, each in self._ranks.items() if each.sample.sign]
        if len(found) != 1:
            return None
        local_rank, history = found[0]
        since, sample = history.sign_since, history.sample
        if since is None or history.samples < SAMPLES or now - since < CONFIRM:
            return None
        waiting = self._waiting(local_rank, since)
        if not waiting or not sample.reports or sample.silent < SILENT:
            return None
        long = f"for {now - since:.1f} s"
        if sample.state == "T":
            seen = f"been stopped (state T) {long}, in {history.samples} samples without a context switch"
        else:
            seen = f"had no main thread (state Z) {long}, while others of its threads are alive"
        which = f"Rank {sample.rank} (pid {sample.who[0]})"
        return Sign(local_rank, since, f"{which} has {seen}, and {wait(waiting)}.")

    def _waiting(self, accused: int, since: float) -> list[int]:
        """The ranks that seem to wait for this one; none where one that reports has not been silent."""
        every = [each for key, each in self._ranks.items() if key != accused]
        others = [each for each in every if each.sample.reports and not each.sample.finished]
        if any(each.sample.silent < SILENT for each in others):
            return []
        awake = [each for each in others if each.awake_since is not None and each.awake_since <= since]
        return [each.sample.rank for each in awake]


# -- samples ---------------------------------------------------------------------------------------------------


def sample(board: Snapshot, now_ns: int, *, threads: bool) -> Sample | None:
    """The rank of this board now; None where no rank was admitted to it. `threads`: read these as well."""
    who = board.identity
    if who is None:
        return None
    found = proc.stat(who.pid)
    exists = found is not None and found.start_time == who.start_time
    return Sample(
        rank=who.rank,
        who=(who.pid, who.start_time),
        state=found.state if found is not None and exists else "gone",
        activity=max(board.last_activity_ns, board.connected_ns),
        silent=max(0.0, (now_ns - (board.last_activity_ns or who.started_ns)) / SECOND),
        reports=board.connected or board.heartbeat_count > 0,
        finished=board.finished,
        # Where that cannot be read there may be a debugger.
        traced=threads and exists and proc.table(f"/proc/{who.pid}/status").get("TracerPid") != "0",
        threads=thread_counts(who.pid) if threads and exists else None,
    )


def state(pid: int) -> str:
    """The letter of a process, "gone" where there is none."""
    found = proc.stat(pid)
    return found.state if found else "gone"


def thread_counts(pid: int) -> dict[int, ThreadCount] | None:
    """Every thread of the process; None where they cannot all be read. One that ends meanwhile is left out."""
    counts = {}
    try:
        for tid in map(int, os.listdir(f"/proc/{pid}/task")):
            stat, status = proc.stat(pid, tid), proc.table(f"/proc/{pid}/task/{tid}/status")
            if stat is not None and status:
                switches = int(status["voluntary_ctxt_switches"]) + int(status["nonvoluntary_ctxt_switches"])
                exiting = bool(stat.flags & EXITING)
                counts[tid] = ThreadCount(stat.state, stat.cpu_ticks, switches, exiting)
    except (OSError, ValueError, KeyError):
        return None
    return counts
