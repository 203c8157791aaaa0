"""What a capture finds of a simulated job: stacks, processes, boards and recorders, as torch and the kernel show them.

Parts go missing as they do in real captures: with the reason that the capture gives.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from itertools import pairwise

from holdfast.incidents import classify
from holdfast.incidents import evidence as E
from holdfast.incidents.schema_1 import system_call
from tests.incidents.cases import INSTALLED, PYTHON, process
from tests.incidents.recorder_dumps import Groups, Recorder, collectives
from tests.incidents.simulated_ranks import CALL, COMPUTE, FAULT, LOAD, SAVE, SYNC, TICK, Job, Op, Rank

TRAIN = "/home/me/job/train.py"
C10D = f"{INSTALLED}torch/distributed/distributed_c10d.py"
LOST = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4711"
STRETCHED = 1000 * 10**9
"""Nanoseconds of a tick for the recorder, which uses the clock: a busy machine makes no difference then."""
NO_STACKS = (E.Missing.NOT_ARMED, E.Missing.TOO_LATE, E.Missing.FAILED, E.Missing.NOT_SIGNALLED)
NO_RECORDER = (E.Missing.NOT_RECORDED, E.Missing.TOO_LATE, E.Missing.FAILED)


@dataclass(frozen=True)
class Looks:
    """How a job's evidence looks."""

    has_timing: bool
    """Whether NCCL's recorder shows the beginning of a collective (`started`)."""
    boards: bool
    """Whether the program gives signs of life."""
    counts_steps: bool


def _frame(function: str, line: int, file: str = TRAIN) -> E.Frame:
    return E.Frame(function, file, line)


MAIN = (_frame("main", 90), _frame("<module>", 120))
WRAPPER = E.Frame("wrapper", f"{INSTALLED}torch/distributed/c10d_logger.py", 83)
LOADER = (
    E.Frame("select", f"{PYTHON}selectors.py", 415),
    E.Frame("wait", f"{PYTHON}multiprocessing/connection.py", 947),
    E.Frame("get", f"{PYTHON}multiprocessing/queues.py", 113),
    E.Frame("_try_get_data", f"{INSTALLED}torch/utils/data/dataloader.py", 1291),
    E.Frame("__next__", f"{INSTALLED}torch/utils/data/dataloader.py", 725),
)
SAVES = (E.Frame("save", f"{INSTALLED}torch/serialization.py", 1002),)
BACKWARD = (
    E.Frame("_engine_run_backward", f"{INSTALLED}torch/autograd/graph.py", 979),
    E.Frame("backward", f"{INSTALLED}torch/autograd/__init__.py", 395),
    E.Frame("backward", f"{INSTALLED}torch/_tensor.py", 623),
)
SYNCHRONIZE = (E.Frame("synchronize", f"{INSTALLED}torch/cuda/__init__.py", 1083),)
QUEUE = (E.Frame("wait", f"{PYTHON}threading.py", 327), E.Frame("get", f"{PYTHON}queue.py", 171))
FAULTS: dict[str, tuple[tuple[E.Frame, ...], str]] = {
    "spin": ((), "busy"),
    "sleep": ((), "sleep"),
    "lock": (QUEUE, "queue"),
    "native_lock": ((), "lock"),
    "loader": (LOADER, "loader"),
    "dataset": ((E.Frame("__getitem__", "/home/me/job/dataset.py", 45), *LOADER[3:]), "dataset"),
    "storage": (SAVES, "torch_save"),
    "disk": ((), "read"),
    "stopped": ((), ""),
    "gil": ((), "busy"),
}
"""The innermost calls, and what the kernel shows (`cases.process`)."""


def rank_evidence(
    job: Job, rank: Rank, looks: Looks, node: str, local: int, now: float, *, asked: bool, rng: random.Random
) -> E.RankEvidence:
    """Of a rank that lives."""
    frames, kernel = _doing(job, rank, looks, rng)
    fault = rank.op.name if rank.op and rank.op.kind == FAULT else "stopped" if rank.frozen else ""
    stacks, source = (E.Thread("MainThread", frames, main=True),), E.StackSource.RANK
    entries, missing = _entries(job, rank, looks, now), E.Missing.NOTHING
    if not entries:
        missing = E.Missing.NOT_RECORDED
    if not asked or fault == "stopped":
        missing = E.Missing.STOPPED if asked else E.Missing.NOT_REQUESTED
        stacks, source, entries = (), E.StackSource.NONE, ()  # type: ignore[assignment]
    elif fault == "gil":
        source, entries, missing = E.StackSource.SIGNAL, (), E.Missing.NO_ANSWER
    return E.RankEvidence(
        rank=rank.number,
        local_rank=local,
        pid=4000 + rank.number,
        node=node,
        board=_board(rank, looks, now),
        process=kernel,
        stacks=stacks,
        stacks_from=source,
        no_stacks=E.Missing.NOTHING if stacks else missing,
        collectives=entries,
        no_collectives=missing,
    )


def _doing(job: Job, rank: Rank, looks: Looks, rng: random.Random) -> tuple[tuple[E.Frame, ...], E.Process]:
    """Its main thread's calls, and what the kernel shows."""
    op = rank.op or Op(COMPUTE, 110)
    own = (_frame("step", op.line), *MAIN)
    if op.kind == FAULT:
        inner, kernel = FAULTS.get(op.name, ((), ""))
        states = {"stopped": {"state": "T"}, "disk": {"state": "D"}}.get(op.name, {})
        return (*inner, *own), process(kernel or "busy", **states, **({"cpu": 0.0} if states else {}))
    if rank.frozen:
        return own, process("all_reduce", state="T", cpu=0.0, switches=0)
    if op.kind == LOAD:
        return (*LOADER, *own), process("loader")
    if op.kind == SAVE:
        written = system_call("write /ckpt/step.pt")
        return (*SAVES, *own), process(
            "busy", system_call=written, state=rng.choice(["S", "D", "R"]), cpu=0.02
        )
    if op.kind == CALL and job.backend == "gloo":
        if op.style == "native":
            return own, process("all_reduce")
        if op.style == "backward":
            return (*BACKWARD, *own), process("all_reduce")
        name = op.name
        return (E.Frame(name, C10D, 3000), WRAPPER, *own), process("all_reduce")
    if op.kind == SYNC:
        inner = {"barrier": (E.Frame("barrier", C10D, 5356), WRAPPER), "synchronize": SYNCHRONIZE}.get(
            op.style, ()
        )
        return (*inner, *own), process("busy")
    return own, process("busy")


def _entries(job: Job, rank: Rank, looks: Looks, now: float) -> tuple[E.Collective, ...]:
    recorder = Recorder(rank.number, Groups(job.groups), job.backend)
    present, gloo = time.time_ns(), job.backend == "gloo"
    for call in rank.calls:
        if gloo and call.op.is_p2p:
            continue
        state = "completed" if call.done else "started" if call.started and looks.has_timing else "scheduled"
        more = {"time_created_ns": present - (job.now - call.entered) * STRETCHED}
        if call.op.peer is not None:
            peer = job.groups[call.op.group].index(call.op.peer)
            recorder.p2p(call.op.name, peer, state, call.op.group, **more)
        else:
            state = "scheduled" if gloo else state
            recorder.call(call.op.name, state, call.op.group, [[call.op.size]], **more)
    return tuple(
        replace(each, ago=round(now - (job.now - round(each.ago * 1e9 / STRETCHED)) * TICK, 3))
        for each in collectives(recorder)
    )


def _board(rank: Rank, looks: Looks, now: float) -> E.BoardFacts:
    start = 60.0
    signs = [(now - at * TICK, kind, name, value) for at, kind, name, value in rank.signs if looks.boards]
    agos = [ago for ago, *_ in signs if ago <= 60.0]
    open_ = tuple(E.OpenSection(name, round(now - at * TICK, 3)) for name, at in rank.sections)
    step = rank.step if looks.boards else None
    return E.BoardFacts(
        connected=looks.boards and not looks.counts_steps,
        heartbeats=0 if looks.counts_steps else len(signs),
        step=step,
        counted=looks.counts_steps,
        sections=open_ if looks.boards and not looks.counts_steps else (),
        silent=round(signs[-1][0] if signs else now + start, 3),
        age=round(now + start, 3),
        moved=bool(signs) and signs[-1][0] <= TICK,
        events=tuple(
            E.RingEvent(kind, round(ago, 3), name, value) for ago, kind, name, value in signs if ago <= 60.0
        ),
        rhythm=round(max((a - b for a, b in pairwise(agos)), default=0.0), 3),
    )


# -- ends ------------------------------------------------------------------------------------------------------


def ended(found: E.RankEvidence, how: str, ago: float) -> E.RankEvidence:
    """This rank, after its end."""
    status = {"exit": 0, "exception": 1, "lost": 1, "signal": -11, "killed": -9, "code": 3}[how]
    raised = None
    if how == "exception":
        raised = classify.raised("ValueError", "bad batch 17", "", ago)
    elif how == "lost":
        raised = classify.raised("RuntimeError", LOST, "", ago)
    return E.RankEvidence(
        found.rank,
        found.local_rank,
        found.pid,
        found.node,
        board=found.board,
        no_stacks=E.Missing.ENDED,
        no_collectives=E.Missing.ENDED,
        exit=E.Exit(status, ago=max(0.0, ago - 0.1)),
        raised=raised,
    )


def reduced(found: E.RankEvidence, what: str, rng: random.Random) -> E.RankEvidence:
    """Without a part of its evidence."""
    if what == "board":
        return replace(found, board=None)
    if what == "process":
        return replace(found, process=None)
    recorder = rng.choice(NO_RECORDER) if found.collectives else found.no_collectives
    if what == "recorder":
        return replace(found, collectives=(), no_collectives=recorder)
    if found.no_stacks is not E.Missing.NOTHING:
        return found
    why = rng.choice(NO_STACKS)
    return replace(
        found, stacks=(), stacks_from=E.StackSource.NONE, no_stacks=why, collectives=(), no_collectives=why
    )


def limited(found: E.RankEvidence, limit: float) -> E.RankEvidence:
    """It has passed its limit, if its board is silent for as long."""
    if found.board is None or found.exit or found.board.silent < limit:
        return found
    return replace(found, passed=E.PassedLimit("heartbeat", found.board.silent, limit))
