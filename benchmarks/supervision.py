"""What supervision costs and how soon it acts: heartbeats, hangs, the launcher's start and end, memory, Lightning.

The peer is NVRx 0.4.1 under its own launcher, or torchrun. Each figure has its function, of `runs` runs, `peer` or not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from fractions import Fraction
from functools import partial
from subprocess import DEVNULL, PIPE

import psutil

from benchmarks import jobs
from benchmarks.environments import NVRX, nvrx
from benchmarks.jobs import FREE_PORT, HOLDFAST, TORCHRUN, command
from benchmarks.restart import reserve, until_all_wait
from benchmarks.table import Row, median

MIB = 1 << 20
WATCHED = 20.0
"""Seconds over which CPU time is taken."""
HANG_LIMIT = 6.0
"""Seconds; above what a rank needs between two heartbeats in programs/hang_rank.py."""


def heartbeat(runs: int, peer: bool) -> list[Row]:
    """What a heartbeat and a section edge cost the training."""
    theirs = nvrx() if peer else None
    seen = jobs.by_turns(
        runs,
        idle=partial(heartbeat_costs, HOLDFAST, "holdfast", "idle"),
        stopped=partial(heartbeat_costs, HOLDFAST, "holdfast", "stopped"),
        busy=partial(heartbeat_costs, HOLDFAST, "holdfast", "busy"),
        # Not `stopped`: its rank would block in the first heartbeat.
        peer_idle=theirs and partial(heartbeat_costs, theirs, "nvrx", "idle"),
        peer_busy=theirs and partial(heartbeat_costs, theirs, "nvrx", "busy"),
    )

    def row(what: str, situation: str, call: str, kind: str, limit: float) -> Row:
        ours = [one[call][kind] for one in seen[situation]]
        peers = [one[call][kind] for one in seen.get(f"peer_{situation}", ())]
        return Row(
            what, "µs", ours, peers, NVRX, limit, Fraction(1, 40) if kind == "median" and peers else None
        )

    return [
        row("heartbeat, median", "idle", "heartbeat", "median", 1.0),
        row("heartbeat, p99", "idle", "heartbeat", "p99", 5.0),
        row("section start or end, median", "idle", "edge", "median", 1.5),
        row("heartbeat with the monitor stopped, median", "stopped", "heartbeat", "median", 1.0),
        row("heartbeat with all cores busy, mean", "busy", "heartbeat", "mean", 5.0),
    ]


def heartbeat_costs(launcher: list[str], who: str, situation: str) -> dict[str, dict[str, float]]:
    """Microseconds of one run with one rank: heartbeat and edge, each median, p99 and mean."""
    limits = ("initial_rank_heartbeat", "rank_heartbeat", "rank_out_of_section")
    options = [
        *(f"--ft-param-{name}_timeout=600" for name in limits),
        "--ft-param-rank_section_timeouts=step:600",
    ]
    line = command(launcher, 1, "heartbeat_rank.py", who, situation, options=[*FREE_PORT, *options])
    figures: dict[str, dict[str, float]] = jobs.figures(line, "heartbeat")
    return figures


def optimizer_steps(runs: int, peer: bool) -> list[Row]:
    """What it costs a program that does not import Holdfast to have its optimizer's steps counted; no peer does it."""
    seen = [jobs.figures(command(HOLDFAST, 1, "optimizer_steps_rank.py"), "more") for _ in range(runs)]
    more, first = ([one[name] for one in seen] for name in ("more", "first"))
    note = f"next to the {median(one['plain'] for one in seen) / 1e3:.0f} µs of the smallest SGD step"
    return [
        Row("counting an optimizer step, median", "µs", [ns / 1e3 for ns in more], limit=1, note=note),
        Row("the first optimizer step that is counted, more", "ms", [ns / 1e6 for ns in first]),
    ]


def hang_detection(runs: int, peer: bool) -> list[Row]:
    """How long after its limit a hang is found, and the script runs again; default check interval."""
    theirs, kinds = nvrx() if peer else None, ("section", "heartbeat")
    seen = jobs.by_turns(
        runs,
        **{kind: partial(hang_delays, HOLDFAST, "holdfast", kind) for kind in kinds},
        **{f"peer_{kind}": theirs and partial(hang_delays, theirs, "nvrx", kind) for kind in kinds},
    )
    return [
        Row(
            f"hang ({kind}) to {what}, beyond the limit",
            "s",
            [one[which] for one in seen[kind]],
            [one[which] for one in seen[f"peer_{kind}"]],
            NVRX,
            limit,
        )
        for which, (what, limit) in enumerate((("termination signal", 0.1), ("restarted script", 0.5)))
        for kind in kinds
    ]


def hang_delays(launcher: list[str], who: str, kind: str) -> tuple[float, float]:
    """Seconds beyond the limit: until the rank is asked to end, until the script runs again."""
    options = (
        "--max-restarts=1",
        *FREE_PORT,
        "--ft-param-initial_rank_heartbeat_timeout=600",
        f"--ft-param-rank_heartbeat_timeout={HANG_LIMIT}",
        f"--ft-param-rank_section_timeouts=step:{HANG_LIMIT}",
        "--ft-param-rank_out_of_section_timeout=600",
        "--ft-param-rank_termination_signal=SIGTERM",
    )
    out, err, *_ = jobs.finish(command(launcher, 1, "hang_rank.py", who, kind, options=options))
    told = [json.loads(line) for line in out.splitlines() if line.startswith('{"moment"')]
    moments = {one["moment"]: one["at"] for one in told}
    if "back" not in moments:
        raise RuntimeError(f"{who}: the hang ({kind}) was not found:\n{err[-2000:]}")
    passed = moments["hangs"] + HANG_LIMIT
    return moments["signal"] - passed, moments["back"] - passed


def launch(runs: int, peer: bool) -> list[Row]:
    """From the launcher's start to the script's first line, from the last rank's end to the launcher's, log lines."""
    seen = jobs.by_turns(
        runs, torchrun=partial(start_and_end, TORCHRUN), ours=partial(start_and_end, HOLDFAST)
    )
    (start, end, lines), (their_start, their_end, their_lines) = (
        zip(*seen[who], strict=True) for who in ("ours", "torchrun")
    )
    what = "start to the script's first line, 2 ranks"
    return [
        Row(what, "s", start, their_start, "torchrun", ratio=0.4),
        Row("last rank done to the launcher's exit", "s", end, their_end, "torchrun", 0.25),
        Row("log lines without trouble, most", "lines", [max(lines)], [max(their_lines)], "torchrun", 2),
    ]


def start_and_end(launcher: list[str]) -> tuple[float, float, int]:
    """Two ranks: seconds to the first line, seconds from the last line to the exit, lines on stderr."""
    stdout, stderr, began, ended = jobs.finish(command(launcher, 2, "first_line.py"))
    times = [float(line) for line in stdout.split()]
    return min(times) - began, ended - max(times), len(stderr.splitlines())


def footprint(runs: int, peer: bool) -> list[Row]:
    """Memory (PSS) and CPU of everything that is not a rank. One run: it does not depend on the machine's speed."""
    four, _, _ = memory_and_cpu(HOLDFAST, 4, "holdfast")
    eight, _, busy = memory_and_cpu(HOLDFAST, 8, "holdfast", watched=WATCHED)
    _, store, _ = memory_and_cpu(HOLDFAST, 4, "meet")
    theirs, _, _ = memory_and_cpu(TORCHRUN, 4)
    return [
        Row("launcher and monitor at 4 ranks, PSS", "MiB", [four], [theirs], "torchrun", 60),
        Row("host of the store of 4 ranks that use torch.distributed, PSS", "MiB", [store]),
        Row("growth for each further rank, PSS", "MiB", [(eight - four) / 4], limit=1),
        Row("CPU of the monitor at 8 ranks", "%", [busy * 100], limit=0.2),
    ]


def memory_and_cpu(
    launcher: list[str], ranks: int, *args: str, watched: float = 0.0
) -> tuple[float, float, float]:
    """MiB of the launcher and its helpers, MiB of the host of the ranks' store, and the helpers' share of one CPU."""
    with jobs.Job(grace=60.0) as job:
        process = job.start(command(launcher, ranks, "beat.py", *args), stdout=PIPE, stderr=DEVNULL)
        for _ in range(ranks):
            while (line := process.stdout.readline()).strip() != "ready":
                if not line:
                    raise RuntimeError("the launcher ended before its ranks were ready")
        # All but the ranks, which have the program's command line. Zygote and standbys have figures of their own. A
        # host that was forked has a name, and the command line of a rank.
        spared = {one.pid for some in reserve(process.pid) for one in some}
        parent, *children = (each for each in jobs.below(process.pid) if each.pid not in spared)
        hosts = [one for one in children if "store" in one.name() or "store_host" in " ".join(one.cmdline())]
        helpers = [one for one in children if one not in hosts and "beat.py" not in " ".join(one.cmdline())]
        memory, store = _pss([parent, *helpers]), _pss(hosts)
        before, began = _cpu(helpers), time.monotonic()
        time.sleep(watched)
        return memory, store, (_cpu(helpers) - before) / (time.monotonic() - began)


def standbys(runs: int, peer: bool) -> list[Row]:
    """What the standbys of a warm start and their zygote cost while they wait, at 8 ranks. One run, as `footprint`."""
    ranks = 8
    with jobs.Job(grace=60.0) as job:
        process = job.start(
            command(HOLDFAST, ranks, "all_reduce.py", "1000000"), stdout=DEVNULL, stderr=DEVNULL
        )
        until_all_wait(process.pid, ranks)
        zygotes, waiting = reserve(process.pid)
        zygote, others = _pss(zygotes), _pss(waiting)
        before = _cpu([*zygotes, *waiting])
        time.sleep(WATCHED)
        busy = 100 * (_cpu([*zygotes, *waiting]) - before) / WATCHED
    what = f"zygote and {ranks} standbys at {ranks} ranks"
    note = f"zygote {zygote:.0f}, standbys {others:.0f}"
    return [
        Row(f"{what}, PSS", "MiB", [zygote + others], note=note),
        Row(f"{what}, CPU", "%", [busy], limit=0.1),
    ]


def _pss(processes: Iterable[psutil.Process]) -> float:
    return sum(float(one.memory_full_info().pss) for one in processes) / MIB


def _cpu(processes: Iterable[psutil.Process]) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in processes)


def lightning_callbacks(runs: int, peer: bool) -> list[Row]:
    """What the four Lightning callbacks together cost in each training step of 2 ms, under the launcher.

    The peer are four empty callbacks: what Lightning itself takes for four that do nothing. Steps with and without the
    callbacks take turns; each turn is compared with its own steps without. The median over all turns of five processes:
    where in memory things lie, which differs between processes, is worth as much as what is measured.
    """
    limits = ("--ft-rank-section-timeouts=setup:600,step:600,checkpointing:600",)
    line = command(HOLDFAST, 1, "lightning_rank.py", str(runs), options=limits)
    seen = [jobs.figures(line, "without") for _ in range(5)]

    def more(kind: str) -> list[float]:
        return [1e6 * (a - b) for one in seen for a, b in zip(one[kind], one["without"], strict=True)]

    what = "four Lightning callbacks, more for a step"
    return [Row(what, "µs", more("with"), more("empty"), "four empty callbacks", 100)]
