"""Faults of the list of regressions (docs/regressions.md), done to each contender: what becomes of the job."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from .contenders import Contender
from .job import job

SUPERVISED = (
    "--rdzv-backend=c10d",
    "--rdzv-endpoint=localhost:0",
    "--ft-param-initial_rank_heartbeat_timeout=60",
    "--ft-param-rank_heartbeat_timeout=5",
    "--ft-param-rank_section_timeouts=step:5",
    "--ft-param-rank_termination_signal=SIGTERM",
)


NO_LIMITS = "has no limits"


@dataclass(frozen=True)
class Outcome:
    """What happened; `good` is whether it is what one wants, None where the question does not arise."""

    text: str
    good: bool | None


Outcomes = dict[str, Outcome]


def exit_code(contender: Contender) -> Outcome:
    """Both ranks exit with 3."""
    with job(contender, "exit_3", "--max-restarts=0") as one:
        code = one.wait()
    return Outcome(f"the launcher exits with {code}", code == 3)


def exception(contender: Contender) -> Outcome:
    """One rank raises; what ranks print goes to files."""
    with job(contender, "raises", "--max-restarts=0", "--redirects=3", "--log-dir=logs") as one:
        one.wait()
        log = one.log()
    told = "the answer is not 42" in log
    return Outcome(f"{len(log.splitlines())} lines, {'with' if told else 'without'} the exception", told)


def launcher_killed(contender: Contender) -> Outcome:
    """SIGKILL to the launcher."""
    with job(contender, "stays", *_options(contender)) as one:
        one.until("ready-0", "ready-1")
        one.process.kill()
        one.process.wait()
        killed = time.monotonic()
        while (left := one.processes()) and time.monotonic() < killed + 5:
            time.sleep(0.02)
        seconds = time.monotonic() - killed
    if left:
        return Outcome(f"{len(left)} processes live on after 5 s", False)
    return Outcome(f"all gone after {seconds:.1f} s", seconds <= 2)


def monitor_killed(contender: Contender) -> Outcome:
    """SIGKILL to whatever else the launcher started beside the ranks."""
    if not contender.supervises:
        return Outcome("has no monitor", None)
    with job(contender, "trains", "--max-restarts=0", *_options(contender)) as one:
        one.until("ready-0", "ready-1")
        for process in one.processes():
            if process.pid != one.process.pid and "RANK" not in process.environ():
                process.kill()
        code, done = one.wait(), one.has("done")
    text = "training does not notice" if code == 0 else f"{2 - done} of 2 ranks fail, exit code {code}"
    return Outcome(text, code == 0)


def child_left(contender: Contender) -> Outcome:
    """A rank fails; its child in a session of its own lives."""
    with job(contender, "child", "--max-restarts=0") as one:
        one.wait()
        left = any("sleep" in process.name() for process in one.processes())
    return Outcome("lives on" if left else "ended", not left)


def deaf(contender: Contender) -> Outcome:
    """A rank fails, and the other ignores SIGTERM."""
    with job(contender, "deaf", "--max-restarts=0") as one:
        one.until("ready-0")
        began = time.monotonic()
        code = one.wait()
        seconds = time.monotonic() - began
    return Outcome(f"over after {seconds:.0f} s" if code is not None else "never over", seconds <= 10)


def preempted(contender: Contender) -> Outcome:
    """SIGTERM to every process of the job at once, as Slurm sends it; the ranks want to save."""
    with job(contender, "saves", "--max-restarts=0", *_options(contender)) as one:
        one.until("ready-0", "ready-1")
        for process in one.processes():
            process.send_signal(signal.SIGTERM)
        code, saved = one.wait(), one.has("saved")
    return Outcome(f"{saved} of 2 ranks save, exit code {code}", saved == 2 and code == 0)


def frozen(contender: Contender) -> Outcome:
    """Everything is stopped for longer than its limits, and goes on."""
    with job(contender, "trains", "--max-restarts=0", *_options(contender)) as one:
        one.until("ready-0", "ready-1")
        every = one.processes()
        for process in every:
            process.suspend()
        time.sleep(12)
        for process in reversed(every):
            process.resume()
        code = one.wait()
    return Outcome("nothing happens" if code == 0 else f"the job is ended, exit code {code}", code == 0)


def unknown_section(contender: Contender) -> Outcome:
    """A section without a limit was opened; then a rank hangs in one that has a limit."""
    if not contender.supervises:
        return Outcome(NO_LIMITS, None)
    with job(contender, "section", "--max-restarts=0", *_options(contender)) as one:
        try:
            one.until("ready-0", "ready-1")
        except RuntimeError:
            if (code := one.wait()) is not None and "surprise" in one.log():
                return Outcome(f"the section's end raises in the ranks, exit code {code}", False)
            raise
        began = time.monotonic()
        code = one.wait(30)
        seconds = time.monotonic() - began
    found = code is not None
    return Outcome(
        f"the hang is found after {seconds:.0f} s" if found else "the hang is not found in 30 s", found
    )


def misspelt(contender: Contender) -> Outcome:
    """The YAML file with the limits has a misspelt key."""
    if not contender.supervises:
        return Outcome("has no such file", None)
    files = {"limits.yaml": "fault_tolerance:\n  rank_hearbeat_timeout: 5\n"}
    with job(contender, "trains", "--fault-tol-cfg-path=limits.yaml", files=files) as one:
        one.wait()
        trained = one.has("done") > 0
    return Outcome("ignored" if trained else "an error before training", not trained)


def _options(contender: Contender) -> tuple[str, ...]:
    return SUPERVISED if contender.supervises else ()


FAULTS: dict[str, Callable[[Contender], Outcome]] = {
    "both ranks exit with 3": exit_code,
    "a rank raises, its output goes to a file: the launcher's log": exception,
    "the launcher is killed with -9": launcher_killed,
    "the monitors are killed with -9": monitor_killed,
    "a rank fails: its child in another session": child_left,
    "a rank fails, the other ignores SIGTERM": deaf,
    "SIGTERM to every process at once (preemption)": preempted,
    "everything is frozen past the limits, and thawed": frozen,
    "a section without a limit, then a hang in one with a limit": unknown_section,
    "a misspelt key in the YAML": misspelt,
}
