"""The bundled Lightning callbacks on a GPU: a hang, a kill, a preemption, and an exact resume."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from .gpu_check import NOT_POSSIBLE, Check, Row, by_mode, row
from .gpu_job import Job

SURVIVES = "the job restarts after a hang and after a kill"
PREEMPTED = "SIGTERM: it saves and exits with code 0"
EXACT = "it resumes to the weights of an undisturbed training"
STEPS, STOP = 60, 6


def run(folder: Path) -> Iterator[Row]:
    """The first job is preempted in its third cycle; the second job resumes."""
    package = next(filter(find_spec, ("lightning", "pytorch_lightning")), "")
    if not package:
        yield from (
            Row(name, NOT_POSSIBLE, reason="Lightning is not installed")
            for name in (SURVIVES, PREEMPTED, EXACT)
        )
        return
    timeouts = (f"--ft-rank-heartbeat-timeout={by_mode(10, 4)}", "--ft-initial-rank-heartbeat-timeout=100")
    warm = ("--max-restarts=2", "--ft-warm-start=on", f"--ft-preload={package}", *timeouts)
    arguments = ("gpu_lightning_train.py", str(folder / "checkpoints"), str(STEPS))
    with Job(folder, "disturbed", *arguments, options=warm) as job:
        for mark in job.read("step"):
            if mark["cycle"] == 2 and mark["step"] >= STOP:
                job.process.terminate()
                break
        code = job.wait()
    kinds = [record["cause"] for record in job.journal("incident")]
    cycles = sorted({mark["cycle"] for mark in job.marks})
    resumed = ", ".join(f"{record['seconds']:.2f}" for record in job.journal("resume"))
    reason = f"incidents: {kinds}, cycles: {cycles}; {job.errors()}"
    yield row(
        SURVIVES,
        len(kinds) == 2 and cycles == [0, 1, 2],
        reason,
        incidents=", ".join(kinds),
        resumed_s=resumed,
    )
    signals = [record["signal"] for record in job.journal("preemption")]
    last = max((mark["step"] for mark in job.marks), default=-1)
    yield row(PREEMPTED, (code, signals) == (0, ["SIGTERM"]), f"exit code {code}; {job.errors()}", step=last)
    with Job(folder, "resumed", *arguments, "--resumed", options=("--ft-warm-start=off", *timeouts)) as job:
        trained = list(job.read("trained"))
        code = job.wait()
    is_exact = code == 0 and len(trained) == 1 and trained[0]["weights"] == trained[0]["undisturbed"]
    yield row(EXACT, is_exact, f"exit code {code}; {str(trained)[:200]} {job.errors()}", steps=STEPS)


CHECKS = [Check("lightning", 120, (SURVIVES, PREEMPTED, EXACT), run)]
