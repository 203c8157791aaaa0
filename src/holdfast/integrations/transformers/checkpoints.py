"""Checkpoints of a trainer that are known to be complete on all ranks, or known not to be; and from which to resume.

`Trainer` writes a folder `checkpoint-N` file by file, each rank its own; a job that is killed meanwhile leaves a folder
that looks like any other. So while it is written it has a file `checkpoint-is-incomplete.txt` (the name is
transformers' own), which goes when all ranks have written and all is on the disk. What always holds: older checkpoints
are removed (`save_total_limit`) only after that, incomplete ones first; a rank that could not write its part makes the
save fail on all ranks. A folder that an earlier start left incomplete loses its old files when it is saved again.
A training resumes from the newest complete one; those that are not are named and left, and a resume removes nothing.

Does not cover: object stores; a folder that is saved anew while it was complete (until then it is not); ranks that can
no longer ask each other: from then on checkpoints are as transformers writes them, and none has the mark, or the next
start would skip all of them.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.callbacks import arguments
from holdfast.checkpoints.atomic import flush
from holdfast.checkpoints.complete import MARK, first_complete
from holdfast.patches import Around, Patches
from holdfast.prefixed_log import Once
from holdfast.side_group import TIMEOUT, CollectiveFailed, SideGroup

__all__ = ["MARK", "WholeCheckpoints", "choose"]

PREFIX = "checkpoint"
_NAME = re.compile(rf"{PREFIX}-(\d+)")
# A method of the trainer (transformers 4.46), or a module and its function (5.23).
_ROTATE = ("_rotate_checkpoints", "transformers.trainer", "rotate_checkpoints")
_SORT = ("_sorted_checkpoints", "transformers.trainer_utils", "sort_checkpoints")

UNASKED = "checkpoints are saved as transformers does it, and it is not known whether all ranks have written them: %s"

log = logging.getLogger("holdfast.integrations.transformers")


class WholeCheckpoints:
    """Those of one training. `newest`: the last one that this training completed, `took`: in so many seconds."""

    def __init__(self, trainer: Any, side: SideGroup) -> None:
        self.newest: str | None = None
        self.took: float | None = None
        self.before: list[Callable[[], None]] = []
        """Called before each save."""
        self.after: list[Callable[[], None]] = []
        """Called when it is complete."""
        self.around: Callable[[], AbstractContextManager[None]] = nullcontext
        self.within: Callable[[str], None] = lambda place: None
        """Called by who writes, with the folder, before it is complete."""
        self._trainer, self._side = trainer, side
        self._once = Once(log)
        self._left: dict[str, int] = {}

    def watch(self, patches: Patches) -> None:
        """From now on, until `patches` are undone."""
        patches.wrap(self._trainer, "_save_checkpoint", self._save)
        _wrap(patches, self._trainer, _SORT, _incomplete_first)
        if self._trainer.args.should_save:
            self._left = _left_files(os.path.abspath(self._trainer._get_output_dir(None)))

    def _save(self, save: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for each in self.before:
            each()
        began = time.monotonic()
        with self.around():
            done, place = self._written(save, args, kwargs)
        if place is not None:
            self.newest, self.took = place, time.monotonic() - began
            for each in self.after:
                each()
        return done

    def _written(
        self, save: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, str | None]:
        """What `save` says, and the folder if it is complete. Raises OSError on all ranks if one could not write."""
        place, writes = self._place(*args, **kwargs), bool(self._trainer.args.should_save)
        if self._side.failed:
            self._once(logging.WARNING, UNASKED, self._side.failed)
            if writes:
                with suppress(FileNotFoundError):  # of an earlier start
                    os.unlink(os.path.join(place, MARK))
            done = save(*args, **kwargs)
            if writes:
                self.within(place)
            return done, None
        try:
            if writes:
                _mark(place)
            with _rotations_put_off(self._trainer) as rotations:
                done = save(*args, **kwargs)
            if writes:
                self.within(place)
        except BaseException:
            self._failures(1.0, TIMEOUT)
            raise
        if not self._all_have(0.0, "written its part", place):
            return done, None
        problem: OSError | None = None
        if writes:
            try:
                _complete(place, self._left)
            except OSError as error:
                problem = error
        known = self._all_have(float(problem is not None), "put it on the disk", place)
        if problem is not None:
            raise problem
        for rotate in rotations:
            rotate()
        return done, place if known else None

    def _place(self, model: Any = None, trial: Any = None, **more: Any) -> str:
        """The folder that a call of `_save_checkpoint` writes; transformers 4.46 also passes `metrics`."""
        folder = f"{PREFIX}-{self._trainer.state.global_step}"
        return os.path.abspath(os.path.join(self._trainer._get_output_dir(trial), folder))

    def _all_have(self, failure: float, what: str, place: str) -> bool:
        """False, and said, if that is not known. Raises OSError if one has not."""
        failures = self._failures(failure, self._side.setup_timeout)
        if failures is None:
            log.warning("the checkpoint %s does not count as complete: not every rank has said so", place)
            return False
        if failures and not failure:
            raise OSError(f"the checkpoint {place} is not complete: another rank has not {what}")
        return True

    def _failures(self, own: float, patience: float) -> float | None:
        try:
            return self._side.maximum([own], patience=patience)[0]
        except CollectiveFailed as why:
            log.warning("the ranks could not ask each other about a checkpoint: %s", why)
            return None


def _mark(place: str) -> None:
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, MARK), "w", encoding="utf-8") as file:
        file.write("This checkpoint is being written, or its job was ended meanwhile. It is not complete.\n")


def _left_files(run: str) -> dict[str, int]:
    """The files of the incomplete checkpoints in this folder, each with the time of its last change (ns)."""
    marks = Path(run).glob(f"{PREFIX}-*/{MARK}")
    with suppress(OSError):
        return {str(path): path.lstat().st_ctime_ns for mark in marks for path in mark.parent.rglob("*")}
    return {}


def _complete(place: str, left: dict[str, int]) -> None:
    """Remove the files of `left` that were not written again, flush the others, then remove the mark. Raises OSError.

    A larger job may have left the file of a rank that this job does not have. Cut off, it would count as incomplete.
    """
    mark = os.path.join(place, MARK)
    if left.get(mark) == os.lstat(mark).st_ctime_ns:  # just written, and unchanged: times mean nothing here
        left = {}
    for folder, _, names in os.walk(place):
        for name in names:
            path = os.path.join(folder, name)
            if path == mark:
                continue
            flush(path)  # after it is opened, a network filesystem knows the times of other nodes
            if path in left and os.lstat(path).st_ctime_ns == left[path]:
                os.unlink(path)
        flush(folder)
    os.unlink(mark)
    flush(place)
    with suppress(OSError):
        flush(os.path.dirname(place))


def _wrap(patches: Patches, trainer: Any, names: tuple[str, str, str], around: Around) -> None:
    method, module, function = names
    for owner, name in ((trainer, method), (sys.modules.get(module), function)):
        if callable(getattr(owner, name, None)):
            patches.wrap(owner, name, around)


def _incomplete_first(
    sort: Callable[..., list[str]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[str]:
    """The order in which transformers removes checkpoints: a complete one only after all incomplete ones."""
    return sorted(sort(*args, **kwargs), key=_is_complete)


def _is_complete(place: str) -> bool:
    """Also where that cannot be read now: such a checkpoint is not the first to be removed."""
    try:
        return first_complete([Path(place)]).newest is not None
    except OSError:
        return True


@contextmanager
def _rotations_put_off(trainer: Any) -> Iterator[list[Callable[[], Any]]]:
    """What transformers would do to older checkpoints meanwhile, as calls for later."""
    calls = list[Callable[[], Any]]()
    patches = Patches()

    def later(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(partial(original, *args, **kwargs))

    _wrap(patches, trainer, _ROTATE, later)
    try:
        yield calls
    finally:
        patches.undo()


def choose(folder: str | os.PathLike[str]) -> Path | None:
    """The checkpoint of this folder to resume from, as rank 0 sees it; None if there is none.

    Raises OSError if the folder is there and cannot be read, or one of its checkpoints cannot and no other is complete:
    no training should begin anew because a disk is gone.
    """
    told = arguments.named(log.name)
    found = first_complete(_newest_first(Path(folder).absolute()))
    for skipped in found.skipped:
        told.warning("checkpoint skipped: %s", skipped)
    if found.newest is not None:
        told.info("the training resumes from %s", found.newest)
    else:
        told.info("there is no complete checkpoint in %s: the training begins", folder)
    return found.newest


def _newest_first(folder: Path) -> list[Path]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    steps = {name: int(found[1]) for name in names if (found := _NAME.fullmatch(name))}
    return [
        folder / name for name in sorted(steps, key=lambda name: -steps[name]) if (folder / name).is_dir()
    ]
