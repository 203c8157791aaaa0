"""`make compare`: faults of docs/regressions.md done to torchrun, NVRx and Holdfast, and the table in docs/compare.md.

Each is installed as a user would, beside one and the same torch; `--print` changes no page. Figures beside these peers
are in `benchmarks.run`.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from benchmarks.environments import NVRX, beside, nvrx
from benchmarks.jobs import FREE_PORT, POLL, Job, command, send
from benchmarks.run import machine
from benchmarks.table import filled, table

JOB_TIMEOUT = 90.0
ROOT = Path(__file__).resolve().parents[1]
PAGE, MARKS = ROOT / "docs" / "compare.md", ("<!-- measured -->", "<!-- end -->")


@dataclass(frozen=True)
class Contender:
    """`who` is what the programs take for it; `supervises`: whether it has heartbeats, sections and limits."""

    who: str
    name: str
    python: str
    module: str
    supervises: bool = True

    @property
    def launcher(self) -> list[str]:
        """How its launcher is started."""
        return [self.python, "-m", self.module]


@cache
def contenders() -> tuple[Contender, ...]:
    """Those that can be had here; the first call installs them. Holdfast anew: the checkout may have changed."""
    ours = beside("compare-holdfast", [str(ROOT)], anew=True)
    found = [Contender("torchrun", "torchrun", ours, "torch.distributed.run", supervises=False)]
    if theirs := nvrx():
        found.append(Contender("nvrx", NVRX, theirs[0], theirs[-1]))
    return (*found, Contender("holdfast", "Holdfast", ours, "holdfast.fault_tolerance.launcher"))


@dataclass(frozen=True)
class Outcome:
    """What happened; `good` is whether it is what one wants, None where the question does not arise."""

    text: str
    good: bool | None


Outcomes = dict[str, Outcome]


class FaultyJob(Job):
    """Two ranks of programs/faulty_rank.py in a folder of their own, where they leave files."""

    def __init__(self, contender: Contender, what: str, folder: Path, options: tuple[str, ...]) -> None:
        super().__init__()
        self.folder = folder
        arguments = (contender.who, what, str(folder))
        line = command(contender.launcher, 2, "faulty_rank.py", *arguments, options=options)
        with (folder / "stderr").open("w") as stderr:
            variables = {"XDG_STATE_HOME": str(folder), "TMPDIR": str(folder)}
            self.process = self.start(line, variables, stdout=subprocess.DEVNULL, stderr=stderr, cwd=folder)

    def wait(self, seconds: float = JOB_TIMEOUT) -> int | None:
        """The launcher's exit code; None if it still runs after so long."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def until(self, *events: str) -> None:
        """Wait for the files that the ranks leave."""
        deadline = time.monotonic() + JOB_TIMEOUT
        while not all((self.folder / event).exists() for event in events):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"the job did not come to {events}: {self.log()[-2000:]}")
            time.sleep(POLL)

    def has(self, event: str) -> int:
        """How many ranks have left this word."""
        return len(list(self.folder.glob(f"{event}-*")))

    def log(self) -> str:
        """What launcher and ranks wrote to stderr."""
        return (self.folder / "stderr").read_text(errors="replace")


@contextmanager
def job(
    contender: Contender, what: str, *options: str, files: Mapping[str, str] | None = None
) -> Iterator[FaultyJob]:
    """Start it, in a folder with these files; whatever it left is ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="holdfast-compare-", ignore_cleanup_errors=True) as name:
        for file, text in (files or {}).items():
            Path(name, file).write_text(text)
        with FaultyJob(contender, what, Path(name), options) as started:
            yield started


def exit_code(contender: Contender) -> Outcome:
    """Both ranks exit with 3."""
    with job(contender, "exit_3", "--max-restarts=0") as one:
        code = one.wait()
    return Outcome(f"the launcher: {ended(code)}", code == 3)


def exception(contender: Contender) -> Outcome:
    """One rank raises; what ranks print goes to files."""
    with job(contender, "raises", "--max-restarts=0", "--redirects=3", "--log-dir=logs") as one:
        one.wait()
        log = one.log()
    told = "the answer is not 42" in log
    return Outcome(f"{len(log.splitlines())} lines, {'with' if told else 'without'} the exception", told)


def rank_killed(contender: Contender) -> Outcome:
    """A rank is killed in its first cycle; one restart is allowed."""
    with job(contender, "dies_once", "--max-restarts=1", *_options(contender)) as one:
        code, done = one.wait(), one.has("done")
    return Outcome(f"restarted, {done} of 2 ranks finish, {ended(code)}", code == 0 and done == 2)


def launcher_told(contender: Contender) -> Outcome:
    """SIGTERM to the launcher alone; the ranks want to save."""
    with job(contender, "saves", "--max-restarts=0", *_options(contender)) as one:
        one.until("ready-0", "ready-1")
        one.process.terminate()
        code, saved = one.wait(), one.has("saved")
    return Outcome(f"{saved} of 2 ranks save, {ended(code)}", saved == 2 and code == 0)


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
    return Outcome(f"all gone after {seconds:.1f} s", True)


def monitor_killed(contender: Contender) -> Outcome:
    """SIGKILL to whatever else the launcher started beside the ranks, but for the host of their store, whose loss ends
    them under every launcher."""
    if not contender.supervises:
        return Outcome("has no monitor", None)
    with job(contender, "trains", "--max-restarts=0", *_options(contender)) as one:
        one.until("ready-0", "ready-1")
        beside = [each for each in one.processes() if each.pid != one.process.pid]
        send(signal.SIGKILL, [each for each in beside if not _is_rank(each) and each.name() != "hf-store"])
        code, done = one.wait(), one.has("done")
    text = "training does not notice" if code == 0 else f"{done} of 2 ranks finish, {ended(code)}"
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
    over = code is not None
    return Outcome(f"{'over' if over else 'not over'} after {seconds:.0f} s", over)


def preempted(contender: Contender) -> Outcome:
    """SIGTERM to every process of the job at once, as Slurm sends it; the ranks want to save."""
    with job(contender, "saves", "--max-restarts=0", *_options(contender)) as one:
        one.until("ready-0", "ready-1")
        send(signal.SIGTERM, one.processes())
        code, saved = one.wait(), one.has("saved")
    return Outcome(f"{saved} of 2 ranks save, {ended(code)}", saved == 2 and code == 0)


def frozen(contender: Contender) -> Outcome:
    """Everything is stopped for longer than its limits, and continues."""
    with job(contender, "trains", "--max-restarts=0", *_options(contender)) as one:
        one.until("ready-0", "ready-1")
        every = one.processes()
        send(signal.SIGSTOP, every)
        time.sleep(12)
        send(signal.SIGCONT, every[::-1])
        code, done = one.wait(), one.has("done")
    text = "nothing happens" if code == 0 else f"{done} of 2 ranks finish, {ended(code)}"
    return Outcome(text, code == 0)


def unknown_section(contender: Contender) -> Outcome:
    """A section without a limit was opened; then a rank hangs in one that has a limit."""
    if not contender.supervises:
        return Outcome("has no limits", None)
    # The heartbeats' limit is out of the way: it is the section's that must find the hang.
    with job(contender, "section", "--max-restarts=0", *_options(contender, heartbeat=600)) as one:
        try:
            one.until("ready-0", "ready-1")
        except RuntimeError:
            if (code := one.wait()) is not None and "surprise" in one.log():
                return Outcome(f"such a section is an error in the ranks, {ended(code)}", False)
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
        code = one.wait()
        trained, named = one.has("done") > 0, "rank_hearbeat_timeout" in one.log()
    how = "the log names it" if named else "the log does not name it"
    return Outcome(f"the job trains, {how}" if trained else f"{ended(code)}, {how}", named and not trained)


def _is_rank(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "RANK" in process.environ()
    return True


def ended(code: int | None) -> str:
    """How a launcher that was waited for ended, if it did."""
    return f"still runs after {JOB_TIMEOUT:.0f} s" if code is None else f"exit code {code}"


def _options(contender: Contender, heartbeat: int = 5) -> tuple[str, ...]:
    """One rendezvous for all; where there are limits, one for heartbeats and one for the section "step"."""
    if not contender.supervises:
        return FREE_PORT
    return (
        *FREE_PORT,
        "--ft-param-initial_rank_heartbeat_timeout=60",
        f"--ft-param-rank_heartbeat_timeout={heartbeat}",
        "--ft-param-rank_section_timeouts=step:5",
        "--ft-param-rank_termination_signal=SIGTERM",
    )


FAULTS: dict[str, Callable[[Contender], Outcome]] = {
    "a rank is killed with -9, one restart is allowed": rank_killed,
    "both ranks exit with 3": exit_code,
    "a rank raises, its output goes to a file: the launcher's log": exception,
    "the launcher is killed with -9": launcher_killed,
    "the monitors are killed with -9": monitor_killed,
    "a rank fails: its child in another session": child_left,
    "a rank fails, the other ignores SIGTERM": deaf,
    "SIGTERM to the launcher alone": launcher_told,
    "SIGTERM to every process at once (preemption)": preempted,
    "everything is frozen past the limits, and thawed": frozen,
    "a section without a limit, then a hang in one with a limit": unknown_section,
    "a misspelt key in the YAML": misspelt,
}


def tried(names: Mapping[str, str], faults: Mapping[str, Outcomes]) -> str:
    """The conditions and the table. `names` by `who`, in the columns' order."""
    missing = "" if "nvrx" in names else f" {NVRX} could not be installed here, and is left out."
    signs = {True: "✓ ", False: "✗ ", None: ""}
    rows = []
    for what, outcomes in faults.items():
        found = [outcomes.get(who) for who in names]
        rows.append([what, *(signs[one.good] + one.text if one else "–" for one in found)])
    return (
        "All of them have the same torch, with the sharing of its store off "
        "(`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`; with it on, ranks on gloo do not meet again after torchrun has "
        "restarted them), and their own defaults except for limits, the rendezvous and the signal to a hung rank. "
        "The faults are from Holdfast's own list of [regressions](regressions.md): they were chosen by the project "
        f"that fixed them.{missing}\n\n{table(['what happens', *names.values()], rows)}"
    )


def main() -> None:
    """Do each fault to each contender once, print what happened, and put it on the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.compare", description=__doc__)
    parser.add_argument("--print", action="store_true", help="change no page")
    given = parser.parse_args()
    # Otherwise SIGTERM would leave the job at hand behind, perhaps a stopped one.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    found: dict[str, Outcomes] = {}
    for what, do in FAULTS.items():
        found[what] = {}
        for contender in contenders():
            print(f"{contender.name}: {what} …", file=sys.stderr, flush=True)
            try:
                found[what][contender.who] = do(contender)
            except RuntimeError as error:
                print(error, file=sys.stderr)
                found[what][contender.who] = Outcome("could not be tried: its ranks did not start", None)
    text = f"{machine(1)} {tried({each.who: each.name for each in contenders()}, found)}"
    print(text)
    if not given.print:
        PAGE.write_text(filled(PAGE.read_text(), text, *MARKS))


if __name__ == "__main__":
    main()
