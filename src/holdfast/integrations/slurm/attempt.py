"""The beginning and the end of an attempt, called by the batch script inside the job; and which job may train.

A job *claims* a run directory in a small file that outlives the runs of the job. The claim is looked at and taken under
a lock, and counts as long as Slurm knows its job as pending or running.

What always holds: an attempt is in the ledger before anything of it is started, and its end before anything follows
from it, or in memory where the disk is full; a job that was cancelled is never requeued; giving up is not exit code 0.
Two jobs never both have the claim, nor a job and a `holdfast autoresume`: jobs look for a keeper (`run_dir.hold`) under
that lock, keepers for a claim.

Does not cover: what follows from an end (`autoresume.policy`). A batch script that is killed before it has called
`ended` (the machine is dead, Slurm's KillWait is over): the next attempt notes what is known then. Filesystems without
locks; there the ledger is all there is, and a warning reports it.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from ...autoresume import ledger as records
from ...autoresume.ledger import Attempt, Chain
from ...autoresume.outcome import (
    INTERRUPTED_CODE,
    SIGKILL_CODE,
    Account,
    Ending,
    Evidence,
    Kind,
    Scheduler,
    ending_of,
)
from ...autoresume.policy import FAILURES, GAVE_UP_CODE, Decision, Limits, State, decide, nodes_to_exclude
from ...autoresume.run_dir import (
    SLURM_JOB,
    SLURM_LOCK,
    Held,
    LedgerFile,
    Standing,
    Unlockable,
    flag_exists,
    flag_path,
    hold,
    read_account,
    say,
    settle_flag,
    take_lock,
)
from ...checkpoints.atomic import whole_file
from ...fault_tolerance.errors import HoldfastError
from . import job as slurm
from .job import BY_SOMEBODY, Place, SlurmError, Word, node_name, word_of
from .script import DONE

PATIENCE = 60.0
"""Seconds to wait for a process that reads the claim just now."""

UNWRITTEN = "The training continues; runs of the job of which the ledger tells nothing count as failures when one fails"
"""What follows from a full disk: each of our processes lives for a moment, and forgets what it could not write."""


class Refused(HoldfastError):
    """Another job trains there. The message is one line: which, and what to do."""


@contextmanager
def claim_looked_at(run_dir: str) -> Iterator[None]:
    """No other process takes the claim inside this block."""
    until = time.monotonic() + PATIENCE
    held = None
    while held is None:
        try:
            held = take_lock(run_dir, SLURM_LOCK)
        except Held:
            if time.monotonic() > until:
                raise Refused(f"another process has held {run_dir}/{SLURM_LOCK} for {PATIENCE:g} s") from None
            time.sleep(0.1)
        except Unlockable as error:
            say(f"warning: no lock ({error}): make sure that no other job trains in {run_dir}")
            break
    try:
        yield
    finally:
        if held is not None:
            held.close()


def claimed_by(run_dir: str) -> str:
    """The job that has the claim; empty where none does."""
    try:
        with open(os.path.join(run_dir, SLURM_JOB)) as file:
            told = json.load(file)
        return str(told["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def refuse_others(run_dir: str, mine: str = "") -> None:
    """Raises `Refused` if another job than `mine` has the claim and lives, or it is unknown whether it does."""
    owner = claimed_by(run_dir)
    if not owner or owner == mine:
        return
    try:
        job = slurm.job(owner)
    except SlurmError as error:
        raise Refused(
            f"job {owner} has trained in {run_dir}, and whether it still does is not known ({error}). If it is over: "
            f"rm {shlex.quote(os.path.join(run_dir, SLURM_JOB))}"
        ) from None
    if job.alive:
        raise Refused(
            f"job {owner} trains in {run_dir} already ({job.state}). Wait for it, end it (scancel {owner}), or use "
            "another run directory"
        )


def refuse_jobs(run_dir: str) -> None:
    """For a `holdfast autoresume` that holds its lock: raises `Refused` where a job trains, or will."""
    # Who makes the lock's file after this sees that ours is held.
    if os.path.lexists(os.path.join(run_dir, SLURM_LOCK)) or claimed_by(run_dir):
        with claim_looked_at(run_dir):
            refuse_others(run_dir)


def claim(run_dir: str, job: str) -> None:
    """Take the claim. Raises OSError with the file's name."""
    path = os.path.join(run_dir, SLURM_JOB)
    try:
        with whole_file(path) as unfinished:
            unfinished.write_text(json.dumps({"job": job}))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def keep_claim(run_dir: str, job: str) -> None:
    """The claim for a job that is about to train. A disk that does not take it is warned of, and no reason not to."""
    if claimed_by(run_dir) == job:
        return
    try:
        claim(run_dir, job)
    except OSError as error:
        why = f"{error.filename} cannot be written: {error.strerror}"
        say(f"warning: {why}. Make sure that no other job trains in {run_dir}")


# -- the attempt


class _Cancelled(Exception):
    """The job was cancelled before it could be requeued; Slurm's words."""


class Keeper:
    """Keeps the ledger of a run directory for one attempt."""

    def __init__(
        self, run_dir: str, place: Place, limits: Limits, *, exclude_after: int, notice: float
    ) -> None:
        self._run_dir, self._place, self._limits = run_dir, place, limits
        self._exclude_after, self._notice = exclude_after, notice
        self._file = LedgerFile(run_dir, UNWRITTEN)
        self._file.read()
        self._flag = flag_path(os.environ, run_dir)
        self._keeper = f"{records.JOB}{place.job}"
        known = {attempt.job for attempt in self._file.ledger.attempts if attempt.kind is not None}
        self._untold = sum(run not in known for run in place.runs_before)
        """Earlier runs of the job whose ends are not in the ledger."""
        self._accounts: dict[int, Account] = {}

    @property
    def number(self) -> int:
        """That of the attempt which has begun."""
        return self._file.ledger.next_number - 1

    # Its beginning

    def begins(self) -> int:
        """0: continue; DONE: the training is finished; else the chain is over, and this is its exit code.

        Raises `Refused`, `Taken`, `ConfigError`.
        """
        place = self._place
        with claim_looked_at(self._run_dir):
            refuse_others(self._run_dir, place.job)
            with hold(self._run_dir):
                pass
            keep_claim(self._run_dir, place.job)
        self._end_what_is_open()
        done = self._settle_flag()
        if done is not None:
            return done
        chain = self._file.ledger.chain
        if chain is None or chain.ended:
            self._begin_chain()
        elif chain.attempts:
            decision = decide(chain, self._limits)
            if not decision.goes_on:
                return self._over(decision) or DONE
        if refusal := self._cannot_go_on():
            return self._over(Decision(State.GAVE_UP, refusal, exit_code=GAVE_UP_CODE))
        attempt = self._begin_attempt(time.time())
        say(f"attempt {attempt.number} begins: run {place.restarts} of job {place.job} on {place.nodes}")
        return 0

    def _begin_attempt(self, began: float) -> Attempt:
        attempt = Attempt(self._file.ledger.next_number, began, host=self._place.nodes, job=self._place.run)
        self._file.append(records.attempt_begins(began, attempt))
        return attempt

    def _cannot_go_on(self) -> str:
        """Why no attempt could follow this one; found out now, not after hours."""
        job = self._place.job
        try:
            if slurm.job(job).requeueable:
                return ""
        except SlurmError as error:
            say(f"warning: {error}")
            return ""
        return (
            f"gave up: job {job} may not be requeued (--no-requeue, SBATCH_NO_REQUEUE or the site), so nothing was "
            f"started. Submit it again without that"
        )

    def _end_what_is_open(self) -> None:
        """What the latest attempt's own job could not note, and the chain of a job that is gone."""
        attempt = self._file.ledger.open_attempt
        if attempt is not None:
            word, node = self._unseen(attempt)
            self._close(attempt, self._evidence(attempt, None, word, node), seen=False)
        chain = self._file.ledger.chain
        if chain is not None and not chain.ended and chain.host != self._keeper:
            why = f"{chain.host} has ended and left no reason: was it cancelled?"
            self._file.append(records.chain_ends(time.time(), str(State.CANCELLED), why))

    def _unseen(self, attempt: Attempt) -> tuple[Word, str]:
        """What Slurm can still tell of an attempt, and the node that it has lost."""
        job = attempt.job.partition(".")[0]
        with suppress(SlurmError):
            if job != self._place.job and slurm.job(job).state == "CANCELLED":
                return Word(Scheduler.CANCELLED, "cancelled by the user (scancel)"), ""
            lost = slurm.down(attempt.host) if attempt.host else []
            if lost:
                return Word(Scheduler.NODE_LOST, f"Slurm has lost {', '.join(lost)}"), lost[0]
        return Word(Scheduler.NOTHING), ""

    def _settle_flag(self) -> int | None:
        found = settle_flag(self._file.ledger, self._flag)
        if found is Standing.NONE:
            return None
        if self._file.ledger.chain and not self._file.ledger.chain.ended:
            self._file.append(
                records.chain_ends(time.time(), str(State.FINISHED), "the finished flag is there")
            )
        say(f"nothing to do: {self._flag} is there. To train on, remove it")
        return DONE

    def _begin_chain(self) -> None:
        self._file.append(
            records.chain_begins(time.time(), flag=self._flag, host=self._keeper, pid=os.getpid())
        )

    # Its end

    def ended(self, code: int) -> int:
        """Note why the attempt ended, and see to what follows; the exit code of the batch script."""
        attempt = self._file.ledger.open_attempt
        if attempt is None and self._noted:
            # What `job_ends` returns becomes no exit code, so the end of its chain is returned here.
            state = self._file.ledger.chains[-1].state
            return 0 if state in (State.GOES_ON, State.FINISHED) else GAVE_UP_CODE
        attempt = self._of_this_run(attempt)
        if attempt is None:
            say(
                f"warning: a later run than {self._place.run} is in {self._file.path}: nothing follows from this end"
            )
            return 1
        told = self._told(attempt) if code == SIGKILL_CODE else Account()
        return self._see_to(attempt, code, self._word(code, told))

    def _of_this_run(self, attempt: Attempt | None) -> Attempt | None:
        """The open attempt if it is this run's; where its beginning could not be written, as it would have been."""
        if attempt is not None and attempt.job == self._place.run:
            return attempt
        if self._noted or (attempt is not None and self._place.precedes(attempt.job)):
            return None
        self._end_what_is_open()
        if self._file.ledger.chain is None or self._file.ledger.chain.ended:
            self._begin_chain()
        began = None
        with suppress(SlurmError):
            job = slurm.job(self._place.job)
            began = job.began if job.restarts == self._place.restarts else None
        return self._begin_attempt(began or time.time())

    def job_ends(self) -> int:
        """Slurm is ending the job. At the time limit, see to what follows now; else there is time for `ended`."""
        attempt, word = self._file.ledger.open_attempt, self._word(0)
        if word.scheduler is not Scheduler.TIME_LIMIT:
            return 0
        attempt = self._of_this_run(attempt)
        return 0 if attempt is None else self._see_to(attempt, None, word)

    @property
    def _noted(self) -> bool:
        """The end of this very run stands in the ledger already."""
        return any(attempt.job == self._place.run for attempt in self._file.ledger.attempts)

    def _see_to(self, attempt: Attempt, code: int | None, word: Word) -> int:
        node = ""
        if word.scheduler is Scheduler.NODE_LOST:
            with suppress(SlurmError):
                node = next(iter(slurm.down(self._place.nodes)), "")
                if not node and not slurm.node_failed(self._place.job):
                    word = BY_SOMEBODY
        self._close(attempt, self._evidence(attempt, code, word, node))
        chain = self._file.ledger.chains[-1]
        decision = self._decide(chain)
        if not decision.goes_on:
            return self._over(decision, requeued=word.requeued)
        return self._next(decision, code, requeued=word.requeued)

    def _decide(self, chain: Chain) -> Decision:
        """On a full disk earlier runs are forgotten; a training that fails must not be requeued forever."""
        untold, limits = self._untold if self._file.lacks else 0, self._limits
        if untold and limits.max_jobs is not None:
            limits = replace(limits, max_jobs=max(1, limits.max_jobs - untold))
        if not untold or chain.attempts[-1].kind not in (*FAILURES, Kind.ENDED):
            return decide(chain, limits)
        failures, idle = max(1, limits.max_failures - untold), max(1, limits.max_idle - untold)
        decision = decide(chain, replace(limits, max_failures=failures, max_idle=idle))
        told = f"runs of the job of which {self._file.path} cannot tell: {untold}, taken for failures"
        return replace(decision, why=f"{decision.why}; {told}")

    def _word(self, code: int, told: Account = Account()) -> Word:  # noqa: B008  # it is frozen
        place = self._place
        try:
            job = slurm.job(place.job)
        except SlurmError as error:
            say(f"warning: {error}")
            return Word(Scheduler.NOTHING)
        return word_of(
            job,
            restarts=place.restarts,
            code=code,
            now=time.time(),
            notice=self._notice,
            told_to_stop=bool(told.preempted_by) and told.cause is None,
        )

    def _next(self, decision: Decision, code: int | None, *, requeued: bool) -> int:
        """Have the job requeued. Where that fails the chain is over, and the ledger records it."""
        job, number = self._place.job, self._file.ledger.next_number
        bad = self._to_exclude()
        without = f", without {', '.join(bad)}" if bad else ""
        try:
            if not requeued:
                slurm.insist(lambda: self._requeue(code or 0))
        except _Cancelled as word:
            return self._over(Decision(State.CANCELLED, str(word), exit_code=INTERRUPTED_CODE))
        except SlurmError as error:
            why = f"{decision.why}; but job {job} could not be requeued ({error}). To carry on: scontrol requeue {job}"
            return self._over(Decision(State.GAVE_UP, why, exit_code=GAVE_UP_CODE))
        say(f"{decision.why}; job {job} is requeued, attempt {number} follows{without}")
        if bad:
            self._exclude(bad)
        return 0

    def _requeue(self, code: int) -> None:
        """Requeue, unless that was done or the job was cancelled meanwhile: reading, and tries, may take a while."""
        now = self._word(code)
        if now.scheduler is Scheduler.CANCELLED:
            raise _Cancelled(now.says)
        if not now.requeued:
            slurm.requeue(self._place.job)

    def _exclude(self, bad: tuple[str, ...]) -> None:
        job, nodes = self._place.job, ",".join(bad)
        try:
            slurm.insist(lambda: slurm.exclude(job, nodes))
        except SlurmError as error:
            say(
                f"warning: {nodes} could not be left out ({error}). To do it: "
                f"scontrol update JobId={job} ExcNodeList={nodes}"
            )

    def _to_exclude(self) -> tuple[str, ...]:
        """The bad nodes that the job can do without and has not been told to; none where Slurm does not answer."""
        bad = nodes_to_exclude(self._file.ledger.chains[-1].attempts, after=self._exclude_after)
        if not bad:
            return ()
        job = self._place.job
        try:
            found, kept, needed = slurm.can_be_left_out(job, bad)
        except SlurmError as error:
            say(f"warning: {', '.join(bad)} cannot be left out: {error}")
            return ()
        if kept:
            say(f"{', '.join(kept)}: to be left out, but job {job} needs {needed} nodes of those left")
        return found

    # Both

    def _over(self, decision: Decision, *, requeued: bool = False) -> int:
        self._file.append(records.chain_ends(time.time(), str(decision.state), decision.why))
        say(f"{decision.why}. All attempts: holdfast autoresume --status {shlex.quote(self._run_dir)}")
        if requeued and decision.state is not State.CANCELLED:
            with suppress(SlurmError):
                slurm.cancel(self._place.job)
        return decision.exit_code

    def _evidence(self, attempt: Attempt, code: int | None, word: Word, node: str) -> Evidence:
        return Evidence(
            code,
            flag_exists(self._flag),
            scheduler=word.scheduler,
            scheduler_says=word.says,
            node=node,
            account=self._told(attempt),
        )

    def _told(self, attempt: Attempt) -> Account:
        """What its journals tell; they are read once, for that may take a while."""
        if attempt.number not in self._accounts:
            self._accounts[attempt.number] = read_account(self._run_dir, attempt.began)
        return self._accounts[attempt.number]

    def _close(self, attempt: Attempt, known: Evidence, *, seen: bool = True) -> None:
        ending = ending_of(known)
        if known.exit_code is None and ending.kind is Kind.LOST:
            ending = Ending(
                Kind.LOST, f"run {attempt.job} could not note its end; Slurm started the job again"
            )
        ending = replace(ending, node=node_name(ending.node))
        suspected = tuple(map(node_name, known.account.suspected))
        self._file.append(
            records.attempt_ends(
                time.time(),
                attempt.number,
                ending,
                exit_code=known.exit_code,
                account=replace(known.account, suspected=suspected),
                seen=seen,
            )
        )
