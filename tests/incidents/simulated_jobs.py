"""Simulated jobs of which the truth is known.

A job is a program of steps and runs until nothing moves (simulated_ranks). Its evidence is what a capture would have
found. The rules were not consulted for any of it.
Does not cover: streams of one GPU that overlap, and broadcasts whose source does not wait.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from holdfast.incidents import classify
from holdfast.incidents import evidence as E
from holdfast.incidents.evidence import CRASH, DIAGNOSE, ELSEWHERE, HANG, Case, NodeEvidence, RankEvidence
from holdfast.incidents.schema_1 import system_call
from holdfast.incidents.verdict import Verdict
from tests.incidents.cases import INSTALLED, PYTHON, process
from tests.incidents.recorder_dumps import Groups, Recorder, collectives
from tests.incidents.simulated_ranks import (
    CALL,
    COMPUTE,
    FAULT,
    FOREVER,
    LOAD,
    SAVE,
    SYNC,
    TICK,
    Job,
    Op,
    Rank,
    program,
    some_layout,
    some_style,
)

LIMIT = 30.0
STEPS = 6
DIFFERENT = frozenset({"missing_collective", "mismatched_collective"})
KINDS = {
    "spin": {"user_code"},
    "sleep": {"user_code"},
    "lock": {"lock"},
    "native_lock": {"lock"},
    "loader": {"data_loading"},
    "dataset": {"data_loading"},
    "storage": {"checkpoint_io"},
    "disk": {"uninterruptible"},
    "stopped": {"stopped"},
    "gil": {"gil"},
    "skipped": DIFFERENT,
    "other_operation": DIFFERENT,
    "other_size": DIFFERENT,
    "no_send": DIFFERENT,
    "gpu": {"missing_collective", "user_code"},
    "early_exit": {"early_exit"},
    "exception": {"exception"},
    "signal": {"signal"},
    "lost_node": {"node_lost"},
}
"""The faults, and the kinds of verdict that are right."""


@dataclass(frozen=True)
class Truth:
    """What is wrong, in fact."""

    fault: str
    rank: int | None
    """None: no rank of the evidence."""
    kinds: frozenset[str] = frozenset()
    is_complete: bool = True
    """Whether nothing of the evidence is missing."""
    is_determined: bool = True
    """Whether the evidence of all ranks would tell a perfect judge the rank."""


def simulated(seed: int) -> tuple[Case, Truth] | None:
    """A job with a fault; None where this fault is not possible in this job."""
    rng = random.Random(seed)
    fault = list(KINDS)[seed % len(KINDS)]
    job, looks = _job(rng)
    culprit = rng.choice(job.ranks)
    if not _insert(fault, job, culprit, rng):
        return None
    if fault == "stopped":
        job.run(rng.randint(5, 60))
        culprit.frozen = True
    job.run()
    over = [rank for rank in job.ranks if rank.op is None and rank.is_idle]
    if len(over) == len(job.ranks):
        return None  # a collective that was left out was not missed
    for rank in over:
        rank.ended = job.now
    nodes = _nodes(job, rng)
    if fault == "lost_node" and len(nodes) == 1:
        return None
    found = _captured(fault, job, culprit, nodes, looks, rng)
    truth = Truth(
        fault,
        culprit.number,
        frozenset(KINDS[fault]),
        is_determined=_is_determined(fault, job, culprit, looks),
    )
    return _incomplete(found, truth, rng) if rng.random() < 0.4 else (found, truth)


def _job(rng: random.Random) -> tuple[Job, Looks]:
    layout, style, backend = some_layout(rng), some_style(rng), rng.choice(["nccl", "nccl", "gloo"])
    programs = [program(rank, layout, style, STEPS, rng) for rank in range(layout.world)]
    looks = Looks(rng.random() < 0.5, boards=rng.random() < 0.9, counts_steps=not style.heartbeats)
    return Job(layout, backend, programs, ahead=rng.choice([6, 20, 1000])), looks


# -- faults ----------------------------------------------------------------------------------------------------


def _insert(fault: str, job: Job, culprit: Rank, rng: random.Random) -> bool:
    """Make the culprit's program wrong, or have it end or block in it."""
    ops, step = culprit.ops, rng.randint(1, 3)
    wanted: Callable[[Op], bool] = {
        "loader": lambda op: op.kind == LOAD,
        "dataset": lambda op: op.kind == LOAD,
        "storage": lambda op: op.kind == SAVE,
        "skipped": lambda op: op.kind == CALL and not op.is_p2p and len(job.groups[op.group]) > 2,
        "other_operation": lambda op: op.kind == CALL and not op.is_p2p,
        "other_size": lambda op: op.kind == CALL and op.name.startswith("all_"),
        "no_send": lambda op: op.name == "send",
        "gpu": lambda op: op.kind == COMPUTE and job.backend == "nccl",
        "lost_node": lambda op: job.layout.world >= 4,
    }.get(fault, lambda op: True)
    places = [at for at, op in enumerate(ops) if op.step == step and wanted(op)]
    places = places or [at for at, op in enumerate(ops) if op.step > 0 and wanted(op)]
    if not places:
        return False
    at = rng.choice(places)
    op = ops[at]
    if fault in ("skipped", "no_send"):
        del ops[at]
    elif fault == "other_operation":
        ops[at] = replace(op, name="broadcast" if op.name != "broadcast" else "all_reduce", line=op.line + 1)
    elif fault == "other_size":
        ops[at] = replace(op, size=op.size + 8)
    elif fault == "gpu":
        ops[at] = replace(op, ticks=FOREVER)
    elif fault == "early_exit":
        ops[at] = replace(op, kind=FAULT, name="exit")
    elif fault in ("exception", "signal", "lost_node"):
        ops[at] = replace(op, kind=FAULT, name="crash")
    elif fault != "stopped":
        line = op.line if op.kind in (LOAD, SAVE) else 40
        ops[at] = replace(op, kind=FAULT, name=fault, line=line)
    return True


def _is_determined(fault: str, job: Job, culprit: Rank, looks: Looks) -> bool:
    """Two ranks that differ may both be wrong; gloo records no sends; a GPU's place needs its recorder's times."""
    if fault in ("skipped", "other_operation", "other_size"):
        return job.layout.stages == 1 and job.layout.tensor == 1 and job.layout.world > 2
    if fault == "no_send":
        return False
    if fault == "gpu":
        return looks.has_timing
    return True


# -- captures --------------------------------------------------------------------------------------------------


def _nodes(job: Job, rng: random.Random) -> list[list[int]]:
    world = job.layout.world
    counts = [each for each in (1, 1, 2, 4) if world % each == 0 and (world // each > 1 or each == 1)]
    size = world // rng.choice(counts)
    return [list(range(first, first + size)) for first in range(0, world, size)]


def _captured(
    fault: str, job: Job, culprit: Rank, nodes: list[list[int]], looks: Looks, rng: random.Random
) -> Case:
    """After the limit of the rank that was silent first, after a crash, or on request."""
    is_crash = fault in ("exception", "signal")
    began = (culprit.ended or job.now) * TICK
    if is_crash:
        now, trigger = began + rng.uniform(0.2, 0.6), CRASH
    else:
        silent_since = min((rank.signs[-1][0] if rank.signs else 0) for rank in job.ranks) * TICK
        trigger = DIAGNOSE if rng.random() < 0.15 else HANG
        now = max(silent_since + LIMIT + rng.uniform(0.1, 1.0), job.now * TICK + 1.0)
    found, first = (
        [],
        next(each for each in nodes if culprit.number in each) if is_crash else rng.choice(nodes),
    )
    if fault == "lost_node":
        lost = next(each for each in nodes if culprit.number in each)
        first = next((each for each in nodes if each is not lost), lost)
    for at, numbers in enumerate(nodes):
        later = 0.0 if numbers is first else rng.uniform(0.05, 0.3)
        kind = trigger if numbers is first or trigger == DIAGNOSE else ELSEWHERE
        ranks = [
            _rank(fault, job, job.ranks[each], looks, f"n{at}", local, now + later, rng)
            for local, each in enumerate(numbers)
        ]
        found.append(_node(kind, at, len(nodes), job.layout.world, ranks, now + later, rng))
    if fault == "lost_node":
        gone = f"n{nodes.index(lost)}"
        return Case(tuple(replace(each, lost_nodes=(gone,)) for each in found if each.node != gone))
    return Case(tuple(found))


def _rank(
    fault: str, job: Job, rank: Rank, looks: Looks, node: str, local: int, now: float, rng: random.Random
) -> RankEvidence:
    """One rank's evidence, its end included; a gloo peer of a process that ended may have lost its connection."""
    is_crash = fault in ("exception", "signal")
    found = rank_evidence(job, rank, looks, node, local, now, asked=not is_crash, rng=rng)
    if rank.ended is not None:
        how = fault if is_crash else "signal" if fault == "lost_node" else "exit"
        if rank.op is None:
            how = "exit"
        return ended(found, how, now - rank.ended * TICK)
    waits = rank.op is not None and rank.op.kind == CALL and job.backend == "gloo"
    if is_crash and waits and rng.random() < 0.5:
        ago = rng.uniform(0.0, 0.15)
        return ended(found, "lost", ago)
    return found


def _node(
    trigger: str, at: int, nodes: int, world: int, ranks: list[RankEvidence], now: float, rng: random.Random
) -> NodeEvidence:
    offset, aligned = rng.uniform(-3.0, 3.0), rng.random() < 0.8
    accused = None
    if trigger == HANG:
        ranks = [limited(each, LIMIT) for each in ranks]
        silent = [each for each in ranks if each.passed and each.board]
        silent.sort(key=lambda each: -(each.board.silent if each.board else 0.0))
        accused = silent[0].rank if silent else None
    elif trigger == CRASH:
        accused = next((each.rank for each in ranks if each.exit), None)
    return NodeEvidence(
        f"n{at}",
        trigger,
        node_rank=at,
        nodes=nodes,
        world_size=world,
        at=1e9 + now + offset,
        cycle_start=1e9 + offset if aligned else 0.0,
        mono=500.0 + now,
        took=0.1,
        accused=accused,
        ranks=tuple(ranks),
    )


def _incomplete(case: Case, truth: Truth, rng: random.Random) -> tuple[Case, Truth]:
    """Without a part of some ranks, or without a node."""
    truth = replace(truth, is_complete=False)
    if len(case.nodes) > 1 and rng.random() < 0.3:
        gone = rng.choice(case.nodes)
        if any(each.rank == truth.rank for each in gone.ranks):
            truth = replace(truth, rank=None, kinds=frozenset({"elsewhere"}))
        return Case(tuple(each for each in case.nodes if each is not gone)), truth
    what, share = rng.choice(["board", "recorder", "stacks", "process"]), rng.choice([0.0, 0.3, 1.0])
    victim = rng.choice(case.ranks).rank
    nodes = [
        replace(
            node,
            ranks=tuple(
                reduced(each, what, rng) if each.rank == victim or rng.random() < share else each
                for each in node.ranks
            ),
        )
        for node in case.nodes
    ]
    return Case(tuple(nodes)), truth


# -- healthy jobs ----------------------------------------------------------------------------------------------


def healthy(seed: int) -> Iterator[tuple[Case, int]]:
    """A healthy job on request at several moments, and how many steps its ranks had done by then."""
    rng = random.Random(seed)
    job, looks = _job(rng)
    nodes, counted = _nodes(job, rng), 0
    while job.run(job.now + rng.randint(1, 30)):
        found = []
        for at, numbers in enumerate(nodes):
            job.run(job.now + rng.randint(0, 2))  # nodes are not captured at one moment
            now = job.now * TICK
            ranks = [
                rank_evidence(job, job.ranks[each], looks, f"n{at}", local, now, asked=True, rng=rng)
                for local, each in enumerate(numbers)
            ]
            ranks = [reduced(each, "board", rng) if rng.random() < 0.02 else each for each in ranks]
            found.append(_node(DIAGNOSE, at, len(nodes), job.layout.world, ranks, now, rng))
        steps = sum((rank.step or 0) for rank in job.ranks)
        yield Case(tuple(found)), steps - counted
        counted = steps


def outcome(verdict: Verdict, truth: Truth) -> str:
    """`found`, `missed`, or `wrong` with its confidence."""
    if verdict.rank is not None and verdict.rank != truth.rank:
        return f"wrong {verdict.confidence}"
    if truth.rank is None:
        return "found"
    if truth.fault == "lost_node":
        return "found" if verdict.kind in truth.kinds else "missed"
    return "found" if verdict.rank == truth.rank else "missed"


# -- what a capture finds of a job: stacks, processes, boards and recorders, as torch and the kernel show them

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
