"""One node's part of an incident: evidence taken, judged and kept on tmpfs before anybody is signalled.

Used by the monitor after a hang and by the launcher after a crash or when another node tells of trouble. What always
holds: :func:`take` returns about when it was told to, with what there is by then; nothing in it waits for a rank.
Does not cover: the disk that has the run directory; the report goes there later, and nobody waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from .encoding import SCHEMA, decoded, encoded
from .evidence import Case, NodeEvidence
from .place import Occasion, Place
from .verdict import LOW, Verdict

if TYPE_CHECKING:
    from .gathering.node import LocalRank

UNDECIDED = Verdict("unknown", "The evidence could not be judged.", LOW)


@dataclass(frozen=True, slots=True)
class Taken:
    """What was found out."""

    evidence: NodeEvidence
    verdict: Verdict
    ready: float
    """When it was complete, monotonic seconds."""


def take(
    ranks: Sequence[LocalRank],
    place: Place,
    occasion: Occasion,
    until: float,
    *,
    ask: bool,
    pause: float = 0.05,
    judge: bool = True,
) -> Taken:
    """Evidence on these ranks and what follows from it, at about `until` (monotonic seconds) at the latest.

    `ask` has the ranks themselves asked for their stacks, which interrupts them for a moment. Without `judge` there is
    no verdict yet: where nobody acts on it, it can wait until all nodes have told theirs.
    """
    from .gathering.node import gather

    began = time.monotonic()
    found = gather(ranks, until, ask=ask, may_signal=ask, pause=pause)
    passed = occasion.passed or {}
    node = replace(
        without_evidence(place, occasion.trigger),
        mono=began,
        took=round(time.monotonic() - began, 4),
        accused=occasion.accused,
        ranks=tuple(replace(each, passed=passed.get(each.rank, each.passed)) for each in found),
    )
    return Taken(node, judged(Case((node,))) if judge else UNDECIDED, time.monotonic())


def without_evidence(place: Place, trigger: str) -> NodeEvidence:
    """What is known of a node before anything was taken: which part of which job it is, now."""
    return NodeEvidence(trigger=trigger, at=time.time(), mono=time.monotonic(), **asdict(place))


def judged(case: Case) -> Verdict:
    """The verdict; an error in the rules must not keep anybody from acting."""
    try:
        from .rules import judge

        return judge(case)
    except Exception as error:
        return replace(
            UNDECIDED, sentence=f"The evidence could not be judged: {error!r} (please report this)."
        )


def keep(taken: Taken, folder: str) -> str:
    """Write it into this private folder, or into the temporary directory where that is full or gone; returns the file,
    '' where neither takes it.

    The file is 0600 and new. Texts in it are as they were found: it is for the launcher, which redacts them.
    """
    value = {"schema": SCHEMA, "ready": taken.ready, "verdict": encoded(taken.verdict)}
    text = json.dumps({**value, "node": encoded(taken.evidence)}).encode()
    for make in (_in_private, _in_temporary):
        path = ""
        try:
            handle, path = make(folder)
            with open(handle, "wb") as file:
                file.write(text)
            return path
        except OSError:
            if path:
                _remove(path)
    return ""


def _in_private(folder: str) -> tuple[int, str]:
    path = os.path.join(folder, f"evidence-{os.getpid()}-{time.monotonic_ns()}.json")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, 0o600), path


def _in_temporary(folder: str) -> tuple[int, str]:
    import tempfile  # rarely needed, and slow to import

    return tempfile.mkstemp(prefix="holdfast-evidence-", suffix=".json")


def kept(path: str) -> Taken:
    """What :func:`keep` wrote, and the file is removed. Raises OSError or ValueError."""
    with open(path, encoding="utf-8") as file:
        told = json.load(file)
    _remove(path)
    if not isinstance(told, dict) or told.get("schema") != SCHEMA:
        raise ValueError(f"{path}: no evidence of this version")
    return Taken(decoded(NodeEvidence, told["node"]), decoded(Verdict, told["verdict"]), float(told["ready"]))


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
