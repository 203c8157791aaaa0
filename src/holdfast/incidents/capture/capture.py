"""A node's part of an incident: the evidence of all local ranks, taken in time, and kept on tmpfs.

Used by the monitor after a hang, by the launcher after a crash or when another node reports trouble, and by
`holdfast diagnose`. First what waits for nothing, of all ranks: boards and ``/proc``, the accused rank first. What may
wait is left to daemon threads; those that are not done at the end are left behind, and their results are dropped.

Always holds: :func:`gather` never raises, and returns at the moment it was given (a few milliseconds later at most,
on a busy machine). Where no thread can be started it returns at once with what waits for nothing.
Does not cover: how a rank ended and what it wrote, which the launcher adds; the disk that has the run directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial

from ..evidence import Case, NodeEvidence, RankEvidence, TriggerKind
from ..verdict import LOW, Judgement, Kind, Verdict
from ..wire import fragment, node_of
from .context import NodeContext, Trigger
from .rank_probe import SPIES, LocalRank, RankProbe

PAUSE = 0.05
"""Seconds between the two samples."""
READING = 0.5
"""The same where a rank waits for bytes: a file server sends them in blocks, and a shorter time may see none."""
_FOR_SAMPLES = 0.6
"""Share of the time that is left in which threads and children are sampled first."""
_MOST_OF_THE_TIME = 0.5
"""Share of the time that is left which the pause may take."""


def capture(
    ranks: Sequence[LocalRank],
    context: NodeContext,
    trigger: Trigger,
    until: float,
    *,
    ask: bool,
    pause: float = PAUSE,
) -> NodeEvidence:
    """Evidence on these ranks, at about `until` (monotonic seconds) at the latest; the rest is as for `gather`."""
    began = time.monotonic()
    found = gather(ranks, until, ask=ask, pause=pause, first=trigger.accused)
    passed = trigger.passed or {}
    return replace(
        without_evidence(context, trigger.kind),
        mono=began,
        took=round(time.monotonic() - began, 4),
        accused=trigger.accused,
        ranks=tuple(replace(each, passed=passed.get(each.rank, each.passed)) for each in found),
    )


def without_evidence(context: NodeContext, trigger: TriggerKind) -> NodeEvidence:
    """A node before anything was taken: which part of which job it is, now."""
    return NodeEvidence(trigger=trigger, at=time.time(), mono=time.monotonic(), **asdict(context))


def judged(case: Case) -> Judgement:
    """What follows from the evidence; an error in the rules must not prevent action, so this never raises."""
    try:
        from ..rules import judge

        return judge(case)
    except Exception as error:
        sentence = f"The evidence could not be judged: {error!r} (please report this)."
        return Judgement(Verdict(Kind.UNKNOWN, sentence, LOW))


# -- all local ranks, in time ----------------------------------------------------------------------------------

_stuck: dict[int, threading.Thread] = {}
"""Threads that were left behind, by the process they wait for: no second one waits for the same."""


def gather(
    ranks: Sequence[LocalRank],
    until: float,
    *,
    ask: bool,
    pause: float = PAUSE,
    first: int | None = None,
) -> tuple[RankEvidence, ...]:
    """One for each rank, in their order, at `until` (monotonic seconds) at the latest, with what there is.

    Args:
        until: Monotonic seconds.
        ask: Whether ranks are asked for their stacks, by a signal where they are armed for it.
        pause: Seconds between two samples; 0 takes one sample only.
        first: The rank that matters most; it gets its share of the time before the others.
    """
    probes = [RankProbe(who) for who in ranks]
    in_order = sorted(probes, key=lambda probe: probe.who.rank != first)
    for probe in in_order:
        _safely(probe, probe.first_sample)
    alive = [probe for probe in in_order if probe.is_alive]
    threads = []
    if pause > 0 and any(probe.waits_for_bytes for probe in alive):
        pause = max(pause, READING)
    now = time.monotonic()
    ends = now + (until - now) * _FOR_SAMPLES
    for number, probe in enumerate(alive):
        left = max(ends - time.monotonic(), 0.0)
        # An equal share for each rank, and more for the one that is accused.
        share = max(0.5 if probe.who.rank == first else 0.0, 1 / (len(alive) - number))
        _safely(probe, partial(probe.add_threads, time.monotonic() + left * share, counters=pause > 0))
        if time.monotonic() < until:
            others = [each.pid for each in alive if each is not probe]
            closer = partial(probe.probe_closer, until, pause, others)
            threads.append(_thread(probe, closer, probe.pid))
    if pause > 0 and alive:
        time.sleep(max(min(pause, (until - time.monotonic()) * _MOST_OF_THE_TIME), 0.0))
        for probe in alive:
            if time.monotonic() < until:
                _safely(probe, partial(probe.second_sample, until))
    if ask:
        spies = threading.Semaphore(SPIES)
        for probe in alive:
            threads.append(_thread(probe, partial(probe.ask, until, spies), -probe.pid))
    for thread in threads:
        if thread is not None:
            thread.join(max(until - time.monotonic(), 0.0))
    for key in [key for key, thread in _stuck.items() if not thread.is_alive()]:
        del _stuck[key]
    return tuple(probe.evidence(asked=ask) for probe in probes)


def _thread(probe: RankProbe, work: Callable[[], None], key: int) -> threading.Thread | None:
    """Do the work in a thread; None, and a note, where that cannot be."""
    earlier = _stuck.get(key)
    if earlier is not None and earlier.is_alive():
        probe.notes.append("Process details were skipped: an earlier read of /proc is still blocked.")
        return None
    thread = threading.Thread(
        target=_safely, args=(probe, work), daemon=True, name=f"holdfast-evidence-{key}"
    )
    try:
        thread.start()
    except RuntimeError as error:
        probe.notes.append(f"Process details were skipped: no thread can be started here ({error}).")
        return None
    _stuck[key] = thread
    return thread


def _safely(probe: RankProbe, work: Callable[[], None]) -> None:
    """Our own mistake must not cost the other parts."""
    try:
        work()
    except Exception as error:
        probe.notes.append(f"A part of its evidence could not be taken: {error!r} (please report this).")


# -- on tmpfs, from the monitor to the launcher ----------------------------------------------------------------


def spill(evidence: NodeEvidence, folder: str) -> str:
    """Write it into this private folder; returns the file, which is 0600 and new.

    Where that folder is full or gone, the file goes to the temporary directory, and secrets are taken out before.
    Returns '' where neither takes it.
    """
    path = os.path.join(folder, f"evidence-{os.getpid()}-{time.monotonic_ns()}.json")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return _written(os.open(path, flags, 0o600), path, evidence)
    except OSError:
        pass
    try:
        import tempfile  # rarely needed, and slow to import

        from ..report.redaction import redacted

        evidence = redacted(evidence, os.environ)
        return _written(*tempfile.mkstemp(prefix="holdfast-evidence-", suffix=".json"), evidence)
    except Exception:
        return ""  # nothing is written that still has secrets


def _written(handle: int, path: str, evidence: NodeEvidence) -> str:
    try:
        with open(handle, "wb") as file:
            file.write(json.dumps(fragment(evidence)).encode())
        return path
    except BaseException:
        _remove(path)
        raise


def load_spill(path: str) -> NodeEvidence:
    """What :func:`spill` wrote; the file is removed. Raises OSError or ValueError."""
    with open(path, encoding="utf-8") as file:
        value = json.load(file)
    _remove(path)
    return node_of(value)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
