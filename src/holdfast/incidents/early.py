"""Structural signs that a rank hangs, before any limit is passed: a rule from samples to a sign. Off unless asked for.

What always holds, since a false alarm costs a healthy job its restart:
- Nobody is accused whom no other local rank waits for: all others that speak are silent, and one at least is awake.
- Nobody is accused for one look. The same must have been seen for `HELD` seconds in `SAMPLES` looks in a row, and of a
  stopped rank no thread may have had a context switch in between: one that is stopped and continued in turns is not.
- Nothing counts across a look that came late, when the world may have stood still, nor while the launcher is stopped
  or several ranks are (somebody has suspended the job), while a debugger is attached (that is a person), or while a
  rank has ended (its launcher knows).
- That all threads of a rank stand still is told as a suspicion only, however long it lasts: a healthy rank may wait for
  one answer of a storage service for minutes.

Pure. Does not cover: ranks of other nodes, a rank that is alone on its node, programs whose boards are silent anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .early_signs import ENDED, STOPPED, UNCHANGED, Sample, Sign

PERIOD = 0.5
"""Seconds between two looks."""
LATE = 0.4
"""Seconds by which a look may be late. Less than in `gaps`: a stop and a frozen second in a row are two."""
HELD = 2.0
SAMPLES = 3
SILENT = 1.0
"""Seconds without a sign of life after which a rank may be waiting."""
STILL = 30.0
"""Seconds without any movement before a suspicion."""
RHYTHM = 5.0
"""And this many times the longest silence so far of each rank that waits."""
INTERVALS = 20
"""Silences that must be known before anything is called unusual."""
OVER = ("Z", "X", "x", "gone")


@dataclass(slots=True)
class _Course:
    """What of one rank is remembered from look to look."""

    sample: Sample
    odd_since: float | None = None
    looks: int = 0
    left: frozenset[int] = frozenset()
    """Threads that were alive at every look since the main thread was found gone."""
    still_since: float | None = None
    awake_since: float | None = None
    longest: float = 0.0
    intervals: int = 0

    def forget(self) -> None:
        """Nothing seen so far confirms anything."""
        self.odd_since = self.still_since = self.awake_since = None
        self.looks = 0

    def follow(self, now: float, new: Sample) -> None:
        """One look more."""
        old, self.sample = self.sample, new
        if new.activity != old.activity:
            self.intervals += 1
            self.longest = max(self.longest, old.silent)
        awake = new.state in ("R", "S")
        self.awake_since = (self.awake_since if self.awake_since is not None else now) if awake else None
        same = new.threads is not None and new.threads == old.threads and new.activity == old.activity
        kept = self.still_since if same and self.still_since is not None else now
        self.still_since = kept if new.threads is not None else None
        left = _alive(new)
        continues = _odd(new) == _odd(old) and (same or bool(left & self.left))
        self.left = left & self.left if continues else left
        if not _odd(new) or new.threads is None or new.traced:
            self.odd_since, self.looks = None, 0
        elif continues and self.odd_since is not None:
            self.looks += 1
        else:
            self.odd_since, self.looks = now, 1


@dataclass(slots=True)
class EarlyDetection:
    """The ranks of one node. `look` is told of all of them, each time at `next_look` or soon after."""

    next_look: float = 0.0
    """When the next samples are wanted, monotonic seconds."""
    wants_threads: frozenset[int] = frozenset()
    """Local ranks whose samples are to have their threads next time; of the others they are not needed."""
    _courses: dict[int, _Course] = field(default_factory=dict)
    _suspected: set[tuple[int, int]] = field(default_factory=set)

    def look(self, now: float, ranks: Mapping[int, Sample], *, launcher_stopped: bool = False) -> Sign | None:
        """What these samples, by local rank and with the earlier ones, say. A certain sign is told at each look as
        long as it holds, a suspicion once.

        `launcher_stopped`: the launcher's own process is (state T).
        """
        late = self._courses and now > self.next_look + LATE
        for gone in self._courses.keys() - ranks.keys():
            del self._courses[gone]
        for local_rank, sample in ranks.items():
            known = self._courses.get(local_rank)
            if known is None or known.sample.who != sample.who:
                known = self._courses[local_rank] = _Course(sample)
            if late:
                known.forget()
            known.follow(now, sample)
        self._plan(now)
        if launcher_stopped or any(_over(course.sample) for course in self._courses.values()):
            return None
        return self._certain(now) or self._suspicion(now)

    def _plan(self, now: float) -> None:
        """Threads are read of a rank that looks odd, and of all when one has been silent for unusually long."""
        courses = self._courses
        odd = {key for key, course in courses.items() if _looks_odd(course.sample)}
        unusual = [course for course in courses.values() if _unusually_silent(course)]
        wanted = frozenset(courses) if unusual and len(unusual) == len(_others(courses)) else frozenset(odd)
        at_once = any(courses[key].sample.threads is None for key in odd - self.wants_threads)
        self.next_look = now if at_once else now + PERIOD
        self.wants_threads = wanted

    def _certain(self, now: float) -> Sign | None:
        odd = [(key, course) for key, course in self._courses.items() if _odd(course.sample)]
        if len(odd) != 1:
            return None
        local_rank, course = odd[0]
        since = course.odd_since
        if since is None or course.looks < SAMPLES or now - since < HELD or not course.sample.speaks:
            return None
        waiting = _waiting(self._courses, local_rank, since)
        if not waiting or course.sample.silent < SILENT:
            return None
        kind = STOPPED if course.sample.state == "T" else ENDED
        return Sign(local_rank, kind, since, _text(kind, course, now, waiting))

    def _suspicion(self, now: float) -> Sign | None:
        """One rank of which nothing moves, and all others silent for longer than ever, of which something does."""
        courses = self._courses
        still = [
            (key, course)
            for key, course in courses.items()
            if course.still_since is not None and now - course.still_since >= STILL / 2
        ]
        if len(still) != 1 or still[0][1].sample.state != "S" or still[0][1].sample.traced:
            return None
        local_rank, course = still[0]
        others = [each for key, each in _others(courses).items() if key != local_rank]
        if not others or not all(_unusually_silent(each) for each in (course, *others)):
            return None
        if course.sample.who in self._suspected or any(each.sample.threads is None for each in others):
            return None
        self._suspected.add(course.sample.who)
        since = course.still_since
        assert since is not None
        waiting = [each.sample.rank for each in others]
        return Sign(local_rank, UNCHANGED, since, _text(UNCHANGED, course, now, waiting), certain=False)


def _looks_odd(sample: Sample) -> bool:
    """Whether its threads will tell more."""
    return sample.state in ("T", "Z") and not sample.finished


def _odd(sample: Sample) -> str:
    """The state in which a rank may be accused; empty for any other."""
    if not _looks_odd(sample):
        return ""
    return "" if sample.state == "Z" and not _alive(sample) else sample.state


def _alive(sample: Sample) -> frozenset[int]:
    """Threads beside a main thread that is gone. One that only waits for a disk may be on its way out."""
    if sample.state != "Z" or not sample.threads:
        return frozenset()
    return frozenset(
        tid
        for tid, each in sample.threads.items()
        if tid != sample.who[0] and each.state == "S" and not each.exiting
    )


def _over(sample: Sample) -> bool:
    return sample.state in OVER and not _odd(sample)


def _others(courses: Mapping[int, _Course]) -> dict[int, _Course]:
    """Those whose silence says something."""
    return {key: each for key, each in courses.items() if each.sample.speaks and not each.sample.finished}


def _waiting(courses: Mapping[int, _Course], accused: int, since: float) -> list[int]:
    """The ranks that wait, as it seems, for this one; none where one that speaks has not been silent."""
    others = [each for key, each in _others(courses).items() if key != accused]
    if any(each.sample.silent < SILENT for each in others):
        return []
    return [each.sample.rank for each in others if each.awake_since is not None and each.awake_since <= since]


def _unusually_silent(course: _Course) -> bool:
    usual = max(STILL, RHYTHM * course.longest)
    sample = course.sample
    return sample.speaks and not sample.finished and course.intervals >= INTERVALS and sample.silent > usual


def _text(kind: str, course: _Course, now: float, waiting: list[int]) -> str:
    rank, pid = course.sample.rank, course.sample.who[0]
    named = f"rank{'s' if len(waiting) > 1 else ''} {', '.join(map(str, waiting[:8]))}"
    waits = f"{named}{' and others' if len(waiting) > 8 else ''} {'wait' if len(waiting) > 1 else 'waits'}"
    if kind == STOPPED:
        seen = f"has been stopped (state T) for {now - (course.odd_since or now):.1f} s"
        return f"Rank {rank} (pid {pid}) {seen}, seen in {course.looks} looks with no context switch, and {waits}."
    if kind == ENDED:
        seen = f"has had no main thread (state Z) for {now - (course.odd_since or now):.1f} s"
        return f"Rank {rank} (pid {pid}) {seen}, while others of its threads live, and {waits}."
    still = now - (course.still_since or now)
    return f"No thread of rank {rank} (pid {pid}) has run for {still:.0f} s, and {waits} for longer than ever before."
