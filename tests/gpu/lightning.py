"""The bundled Lightning callbacks on a GPU: a hang, a kill and a preemption, and the weights of an undisturbed run."""

from __future__ import annotations

from collections.abc import Iterator

from .check import NOT_POSSIBLE, Check, Place, Row, row
from .job import Job

SURVIVES = "a hang and a kill: the job trains again after each"
PREEMPTED = "SIGTERM: saves and ends with exit code 0"
EXACT = "resumes with the weights of an undisturbed training"
STEPS, STOP = 60, 6


def lightning(place: Place) -> Iterator[Row]:
    """Two jobs: the first is preempted in its third cycle."""
    from importlib.util import find_spec

    package = next((name for name in ("lightning", "pytorch_lightning") if find_spec(name)), "")
    if not package:
        for name in (SURVIVES, PREEMPTED, EXACT):
            yield Row(name, NOT_POSSIBLE, said="Lightning is not installed")
        return
    limits = (f"--ft-rank-heartbeat-timeout={place.pick(5, 2)}", "--ft-initial-rank-heartbeat-timeout=100")
    options = ("--max-restarts=2", "--ft-warm-start=on", f"--ft-preload={package}", *limits)
    arguments = ("lightning_train.py", str(place.folder / "checkpoints"), str(STEPS))
    reached = []
    with Job(place, "disturbed", *arguments, options=options) as job:
        for mark in job.marks("step"):
            reached.append((mark["cycle"], mark["step"]))
            if mark["cycle"] == 2 and mark["step"] >= STOP:
                job.process.terminate()
                break
        code = job.end()
    causes = [record["cause"] for record in job.journal("incident")]
    yield row(
        SURVIVES,
        len(causes) == 2 and bool(reached) and reached[-1][0] == 2,
        f"incidents: {causes}; the last step: {reached[-1:]}; {job.said()[-300:]}",
        incidents=", ".join(causes),
        trains_again_s=", ".join(f"{record['seconds']:.2f}" for record in job.journal("resume")),
    )
    signals = [record["signal"] for record in job.journal("preemption")]
    last = max(mark["step"] for mark in job.seen) if job.seen else -1
    yield row(
        PREEMPTED,
        code == 0 and signals == ["SIGTERM"],
        f"exit code {code}; {job.said()[-300:]}",
        at_step=last,
    )
    variables = {"CHECK_RESUMED": "yes"}
    with Job(
        place, "resumed", *arguments, options=("--ft-warm-start=off", *limits), variables=variables
    ) as job:
        trained = list(job.marks("trained"))
        code = job.end()
    exact = bool(trained) and trained[0]["weights"] == trained[0]["undisturbed"] and code == 0
    yield row(EXACT, exact, f"exit code {code}; {str(trained)[:200]} {job.said()[-300:]}", steps=STEPS)


CHECKS = [Check("lightning", "Lightning", 110, (SURVIVES, PREEMPTED, EXACT), lightning)]
