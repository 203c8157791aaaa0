"""The report of an incident: made in a thread of its own, of all nodes' evidence, while the job is long restarted.

Of several nodes the one whose word counted makes it; the others give it theirs through the rendezvous store, and leave
their evidence in full beside the report where the run directory is shared. What always holds: no restart waits for any
of it, and nothing is written before secrets are taken out.
Does not cover: nodes that tell nothing within `OTHERS` seconds; the report says how many are missing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from holdfast import nvidia
from holdfast.incidents import taking
from holdfast.incidents.compact import packed, unpacked
from holdfast.incidents.evidence import Case, NodeEvidence
from holdfast.incidents.gathering.machine import MachineLook
from holdfast.incidents.place import Place
from holdfast.incidents.report import folder
from holdfast.incidents.report.redaction import redacted, redacted_text
from holdfast.incidents.verdict import Verdict
from holdfast.journal.writer import Journal

from .control.messages import Put, Reported
from .control.records import key
from .store import StoreClient, StoreGone

logger = logging.getLogger("holdfast.launcher")
OTHERS = 10.0  # seconds for the other nodes' evidence: they may have ranks that take long to end
LEFT_BEHIND = 3.0  # where one of them is lost
AT_THE_END = 2.0  # seconds that a launcher waits at its end for reports
ANSWER = 10.0  # seconds for an answer of the store
IN_A_HURRY = 1.0  # seconds in which a report under way is written with what there is by then
DRIVER = 1.2  # seconds that a GPU's driver has for telling its errors
FOLDER = "folder"


Complete = Callable[[], tuple[NodeEvidence, "float | None"]]
"""The evidence with how the ranks ended, and when it was complete (monotonic seconds; None: there was none)."""


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of an incident beside its evidence."""

    reporter: str
    """The node that makes the report."""
    since: float
    """When the cycle began, unix seconds."""
    said: tuple[str, int | None]
    """Kind and rank of the verdict that the console has had already."""
    named: int | None = None
    """The rank that the console has named as the first to fail, with its exception or how it ended."""

    def has(self, verdict: Verdict) -> bool:
        """Whether the console has had all that the verdict says."""
        plain = verdict.kind in ("exception", "exit", "signal") and verdict.rank == self.named
        return plain or (verdict.kind, verdict.rank) == self.said


class SharedEvidence:
    """What the nodes of one cycle write to each other about an incident in it: keys `incident/N/*` of the store."""

    def __init__(self, store: StoreClient, cycle: int) -> None:
        self._store, self._cycle = store, cycle

    def put(self, name: str, text: str) -> None:
        """Write it. Raises StoreGone."""
        self._store.ask(Put(self._key(name), text), ANSWER)

    def read(self, name: str) -> str:
        """The text; "" where it was not written. Raises StoreGone."""
        return self._store.ask(self._key(name), ANSWER)

    def _key(self, name: str) -> str:
        return f"{key('incident', self._cycle)}/{name}"


class Reporter:
    """Makes this node's reports; `done` is called when one is made, with its cycle.

    Args:
        store: The job's store, through which the nodes exchange evidence; None in a job of one node.
    """

    def __init__(
        self,
        node: str,
        run_dir: str,
        journal: Journal,
        store: StoreClient | None,
        done: Callable[[Reported], object],
    ) -> None:
        self._node, self._run_dir, self._journal, self._store = node, run_dir, journal, store
        self._done = done
        self._under_way: list[threading.Thread] = []
        self._hurry = threading.Event()

    def begin(self, complete: Complete, place: Place, told: Told) -> bool:
        """Make the report, or give this evidence to the node that does; whether that is under way. Never raises."""
        makes_it = place.nodes == 1 or told.reporter in ("", self._node)
        work = self._make if makes_it else self._give
        thread = threading.Thread(
            target=self._run, args=(work, complete, place, told), name="holdfast-incident", daemon=True
        )
        self._under_way = [each for each in self._under_way if each.is_alive()]
        try:
            thread.start()
        except RuntimeError as error:
            logger.warning("no report of this incident: %s", error)
            return False
        self._under_way.append(thread)
        return True

    def close(self) -> None:
        """Wait a moment for what is under way; then it has to be written with what there is."""
        self._join(AT_THE_END)
        self._hurry.set()
        self._join(IN_A_HURRY)

    def _join(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        for thread in self._under_way:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self, work: Any, complete: Complete, place: Place, told: Told) -> None:
        shared = SharedEvidence(self._store, place.cycle) if self._store is not None else None
        try:
            evidence, ready = complete()
            work(redacted(evidence, os.environ), ready, told, shared)
        except OSError as error:
            where = error.filename or self._run_dir
            logger.warning("no report of this incident: %s: %s", where, error.strerror or error)
        except Exception as error:
            logger.warning("no report of this incident: %r. Please report this as a bug of Holdfast", error)
            logger.debug("where:", exc_info=error)
        finally:
            self._done(Reported(place.cycle))

    def _give(self, evidence: NodeEvidence, ready: float | None, told: Told, shared: SharedEvidence) -> None:
        """To the node that makes the report; where that does not, this one makes it of its own evidence."""
        with contextlib.suppress(StoreGone):
            shared.put(str(evidence.node_rank), packed(evidence))
            until = time.monotonic() + OTHERS
            while not (place := shared.read(FOLDER)) and time.monotonic() < until:
                if self._hurry.wait(0.1):
                    break
            if place:
                if folder.find(self._run_dir, evidence.run_id, evidence.cycle, since=told.since) == place:
                    folder.write_fragment(place, evidence.node, evidence)
                return
        self._write(evidence, (evidence,), ready, told)

    def _make(
        self, evidence: NodeEvidence, ready: float | None, told: Told, shared: SharedEvidence | None
    ) -> None:
        """Of this node's evidence first, whatever happens meanwhile; then of all nodes', and with the GPUs' facts."""
        facts = MachineLook(None, time.monotonic() + DRIVER)
        alone = evidence.nodes == 1 and not nvidia.find_driver()
        if not alone:
            place = self._write(evidence, (evidence,), ready, told, say=False)
            if shared is not None and evidence.nodes > 1:
                folder.write_fragment(place, evidence.node, evidence)
                with contextlib.suppress(StoreGone):
                    shared.put(FOLDER, place)
        others = self._others(evidence, shared) if shared is not None else []
        evidence = replace(evidence, notes=(*evidence.notes, *facts.notes()))
        self._write(evidence, (evidence, *others), ready, told)

    def _write(
        self,
        own: NodeEvidence,
        nodes: tuple[NodeEvidence, ...],
        ready: float | None,
        told: Told,
        *,
        say: bool = True,
    ) -> str:
        """The report of these nodes' evidence, and people are told of it; returns its folder."""
        place = folder.claim(self._run_dir, own.run_id, own.cycle, since=told.since)
        case = Case(nodes)
        verdict = taking.judged(case)
        folder.write_report(place, case, verdict)
        if say:
            self._tell(place, own, verdict, ready, told)
        return place

    def _others(self, own: NodeEvidence, shared: SharedEvidence) -> list[NodeEvidence]:
        """What the other nodes have written, as soon as all have, or time is up."""
        missing = [str(number) for number in range(own.nodes) if number != own.node_rank]
        # A lost node writes nothing; which number it had is not in the evidence.
        enough, texts = len(own.lost_nodes), list[str]()
        until, pause = time.monotonic() + (LEFT_BEHIND if own.lost_nodes else OTHERS), 0.05
        with contextlib.suppress(StoreGone):
            while len(missing) > enough:
                found = {name: text for name in missing if (text := shared.read(name))}
                texts += found.values()
                missing = [name for name in missing if name not in found]
                if len(missing) <= enough or time.monotonic() > until or self._hurry.wait(pause):
                    break
                pause = min(0.5, 1.2 * pause)
        others = []
        for text in texts:
            with contextlib.suppress(ValueError):
                others.append(unpacked(text))
        return others

    def _tell(self, place: str, own: NodeEvidence, verdict: Verdict, ready: float | None, told: Told) -> None:
        sentence = redacted_text(verdict.sentence, os.environ)
        report = os.path.join(place, "report.txt")
        self._journal.record(
            "incident",
            cycle=own.cycle,
            rank=verdict.rank,
            culprit_node=verdict.node,
            cause=verdict.kind,
            confidence=verdict.confidence,
            sentence=sentence,
            followers=list(verdict.followers)[:64],
            evidence_mono=ready,
            report=place,
        )
        if told.has(verdict):
            logger.warning("report on cycle %d: %s", own.cycle, report)
        else:
            what = own.cycle, sentence, verdict.confidence, report
            logger.warning("verdict on cycle %d: %s (confidence %s). Report: %s", *what)
