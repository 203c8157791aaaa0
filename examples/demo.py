"""`make demo`: a small model is trained undisturbed, then through a hang and a kill -9, and ends the same.

Both runs train examples/char_transformer on two ranks. The second is started by ft_launcher, with faults injected by
holdfast.testing. What always holds: everything is written in one private temporary directory, which is removed at the
end; Ctrl-C ends what runs and leaves nothing behind; the exit code is 0 only when both runs ended with equal weights.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO

from holdfast.cli import main as holdfast
from holdfast.journal.incidents import Incident, incidents
from holdfast.journal.reader import read_run

TRAIN = Path(__file__).resolve().parent / "char_transformer" / "train.py"
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FAULTS = "stop@step=27,point=data_loading,rank=1,cycle=0 ; kill@step=58,rank=0,cycle=1"
LIMITS = "setup:60,step:10,data_loading:3,checkpointing:30"
# SIGTERM first: a Python that has only just been started answers SIGINT with a traceback. SIGINT then means "at once".
# Seconds to wait after each signal.
STOP_SIGNALS = ((signal.SIGTERM, 5.0), (signal.SIGINT, 15.0), (signal.SIGKILL, 5.0))


@dataclass(frozen=True)
class Run:
    """What became of a training run."""

    name: str
    seconds: float
    result: dict[str, Any]


class Stopped(BaseException):
    """A request to end the demo: Ctrl-C, SIGTERM or a closed terminal."""

    def __init__(self, number: int) -> None:
        self.number = number


def main() -> int:
    for number in STOPS:
        signal.signal(number, _stop)
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as name:
            return demo(Path(name))
    except Stopped as stopped:
        print(f"\nstopped by {signal.Signals(stopped.number).name}; nothing is left behind")
        return 128 + stopped.number


def demo(directory: Path) -> int:
    (directory / "tmp").mkdir()
    say("1. Undisturbed, under plain torchrun")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    undisturbed = train("undisturbed", launcher, directory, {}, quiet=True)
    say("2. Under ft_launcher: rank 1 will hang while it loads data, later rank 0 will be killed with -9")
    launcher = ["-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node=2", "--max-restarts=3"]
    launcher += ["--ft-run-dir", str(directory / "journal"), "--ft-rank-section-timeouts", LIMITS]
    disturbed = train("hang and kill", launcher, directory, {"HOLDFAST_FAULT": FAULTS})
    journal = str(directory / "journal")
    code = summary(undisturbed, disturbed, incidents(read_run(journal)))
    say("Where the time of the second run went")
    print("$ holdfast goodput $DIR/journal", flush=True)
    holdfast(["goodput", journal])
    return code


def train(
    name: str, launcher: list[str], directory: Path, extra: dict[str, str], *, quiet: bool = False
) -> Run:
    """Runs the example to its end, with the launcher's own output. Ends the demo if it fails.

    quiet: stderr is shown only after a failure. On Ctrl-C torchrun writes a traceback there, which is not needed.
    """
    checkpoints = directory / name.replace(" ", "-")
    command = [*launcher, str(TRAIN), "--dir", str(checkpoints)]
    shown = "".join(f"{key}={shlex.quote(value)} " for key, value in extra.items())
    print(f"$ {shown}python {shlex.join(command)}".replace(str(directory), "$DIR"), flush=True)
    # torch writes to the temporary directory too, and does not always tidy up. One thread each: ranks share the cores.
    environ = {**os.environ, "TMPDIR": str(directory / "tmp"), "OMP_NUM_THREADS": "1", **extra}
    started = time.monotonic()
    with (directory / "stderr").open("w+") as stderr:
        with running([sys.executable, *command], environ, stderr if quiet else None) as process:
            code = process.wait()
        if code:
            stderr.seek(0)
            sys.stderr.write(stderr.read())
    if code:
        sys.exit(f"demo: the run {name!r} failed with exit code {code}; its output is above")
    return Run(name, time.monotonic() - started, json.loads((checkpoints / "result.json").read_text()))


@contextlib.contextmanager
def running(
    command: list[str], environ: dict[str, str], stderr: TextIO | None
) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher that does not outlive the block, nor this process."""
    # Who wants the demo to end is heard when the process is there and known: else it would be left behind.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    # In a session of its own: Ctrl-C reaches it once, from us, not from the terminal as well.
    process = subprocess.Popen(
        command, env=environ, stderr=stderr, start_new_session=True, preexec_fn=_die_with_parent
    )
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield process
    finally:
        for number, patience in STOP_SIGNALS:
            if process.poll() is None:
                process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired, Stopped):  # again: the next signal
                    process.wait(patience)


def summary(undisturbed: Run, disturbed: Run, found: list[Incident]) -> int:
    say("Summary")
    for run in (undisturbed, disturbed):
        loss = run.result["test_loss"]
        print(f"  {run.name:14}{run.result['steps']} steps, final loss {loss:.6f}, {run.seconds:5.1f} s")
    for incident in found:
        clock = time.strftime("%H:%M:%S", time.localtime(incident.t))
        print(f"  {clock}  {incident.kind}, rank {incident.rank}, pid {incident.pid}: {incident.what}")
        print(f"            {lost(incident)}")
    return verdict(undisturbed, disturbed, found)


def lost(incident: Incident) -> str:
    if incident.lost_seconds is None:
        return f"training did not resume: {incident.outcome}"
    return (
        f"{incident.outcome}, {incident.lost_seconds:.2f} s lost: detected after {incident.unnoticed_seconds:.2f} s, "
        f"training again {incident.resume_seconds:.2f} s later"
    )


def verdict(undisturbed: Run, disturbed: Run, found: list[Incident]) -> int:
    problems = []
    if disturbed.result != undisturbed.result:
        problems.append("the two runs did not end with the same weights")
    if [incident.kind for incident in found] != ["hang", "crash"]:
        problems.append("the journal does not tell of one hang and one crash")
    if problems:
        print(f"  FAILED: {' and '.join(problems)}.")
        return 1
    print("  Both runs ended with the same weights, bit for bit.")
    return 0


def say(title: str) -> None:
    print(f"\n== {title}", flush=True)


def _stop(number: int, frame: object) -> NoReturn:
    raise Stopped(number)


def _die_with_parent() -> None:
    # Should this process be killed, the launcher is asked to end, and with it everything it started.
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


if __name__ == "__main__":
    sys.exit(main())
