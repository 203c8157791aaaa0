"""When a training has seen enough to learn timeouts: what happened so far in, decisions out. Pure.

Heartbeat timeouts are learned once, at the end of a fit that loaded a checkpoint and saved one, and was not interrupted
by a failure: only such a fit has seen how long starting, training and saving take. Section timeouts are learned section
by section, as soon as a section has been seen in its normal use; see `SectionRules.selection`. A training that
evaluates must have seen an evaluation: a batch of it may take much longer than a step, and would be taken for a hang.

What always holds: after a failure nothing is learned. Does not cover: whether the other ranks decide the same
(`kept_timeouts`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..board.values import CHECKPOINTING as CHECKPOINTING

SETUP, STEP = "setup", "step"
SECTIONS = (SETUP, STEP, CHECKPOINTING)

MIN_ITERATIONS_FOR_HEARTBEATS = 2
ITERATIONS_FOR_STEP = 17
"""`step` is learned after these."""

SETUP_NOTE = "Can't update the setup section timeout until persistent checkpoint is loaded"
STEP_NOTE = "Need to see more training iterations to update the step section timeout"
EVALUATION_NOTE = "Need to see an evaluation to update the step section timeout"
CHECKPOINTING_NOTE = "Checkpointing section is not updated until a checkpoint was saved"
ASYNC_NOTE = "Can't update the checkpointing section timeout with async checkpointing"
OUT_NOTE = "The out-of-section timeout won't be updated until all FT sections were seen"
FAILURE_NOTE = "Rank exits due to a failure, won't update the FT timeouts"


def is_clean_stop(exception: BaseException) -> bool:
    """`sys.exit(0)` within the training, and Lightning's request to stop the job, are no failures."""
    return isinstance(exception, SystemExit) and not exception.code


@dataclass(slots=True)
class HeartbeatRules:
    """What a fit has seen of heartbeats and checkpoints."""

    iterations: int = 0
    """Training batches. Each has a heartbeat of its own."""
    other_beats: int = 0
    loaded: bool = False
    evaluation_to_come: bool = False
    """The training evaluates, and has not done so yet."""
    failed: bool = False
    learned: bool = False
    _beats_at_save: int = 0
    """Heartbeats before the first save that had any; 0 before that save."""

    def saved(self) -> None:
        self._beats_at_save = self._beats_at_save or self.beats

    @property
    def beats(self) -> int:
        return self.iterations + self.other_beats

    @property
    def may_learn(self) -> bool:
        """Whether this rank has seen all that is needed; read at the end."""
        return not self.why_not()

    def why_not(self) -> str:
        """What is missing, for people; nothing when timeouts may be learned."""
        if self.failed:
            return "the training failed"
        if self.learned:
            return "they were learned already"
        if self.iterations < MIN_ITERATIONS_FOR_HEARTBEATS:
            return f"{self.iterations} of at least {MIN_ITERATIONS_FOR_HEARTBEATS} training iterations"
        if not self.loaded:
            return "no checkpoint was loaded"
        if self.evaluation_to_come:
            return "no evaluation was seen yet, and this training has them"
        if not 0 < self._beats_at_save < self.beats:
            return "no checkpoint was saved between two heartbeats"
        return ""


@dataclass(frozen=True, slots=True)
class Selection:
    """The section timeouts to learn now; `notes` are log lines on the rest."""

    sections: tuple[str, ...] = ()
    out_of_section: bool = False
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.sections) or self.out_of_section


@dataclass(slots=True)
class SectionRules:
    """What a fit has seen of sections and checkpoints."""

    asynchronous: bool = False
    iterations_for_step: int = ITERATIONS_FOR_STEP
    iterations: int = 0
    loaded: bool = False
    evaluation_to_come: bool = False
    """The training evaluates, which is in its step sections, and has not done so yet."""
    checkpoints: int = 0
    failed: bool = False
    due: bool = False
    """A checkpoint was saved and nothing learned since."""

    def saved(self) -> None:
        self.checkpoints += 1
        self.due = True

    def selection(self, *, final: bool) -> Selection:
        """What may be learned at this moment; `final` at the end of a fit, else after a checkpoint."""
        self.due = False
        if self.failed:
            return Selection(notes=(FAILURE_NOTE,))
        unsaved = "" if self.checkpoints else CHECKPOINTING_NOTE
        unevaluated = EVALUATION_NOTE if self.evaluation_to_come else ""
        refused = {
            SETUP: "" if self.loaded else SETUP_NOTE,
            STEP: unevaluated if self.iterations >= self.iterations_for_step else STEP_NOTE,
            CHECKPOINTING: ASYNC_NOTE if self.asynchronous else unsaved,
        }
        sections = tuple(name for name in SECTIONS if not refused[name])
        complete = {SETUP, STEP} <= set(sections) and self.checkpoints > 0
        notes = [note for note in refused.values() if note]
        if final and not complete:
            notes.append(OUT_NOTE)
        return Selection(sections, final and complete, tuple(notes))
