"""All checks of a node, side by side and each within its deadline; and what the node was like at the start.

Always holds: :meth:`Checks.run` returns after about its deadline, whatever hangs; a check that hangs is a finding, and
one that does not apply reports that.
Does not cover: ranks that use another part of the machine than the launcher sees, as in a container of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.in_time import TooLate, UnderWay, answers

from . import ABSENT, SICK, WARNING, Finding, cards, gpus, host, programs, storage
from .probe import Probe, Unanswered

SECONDS = 2.0
OPENS = 60.0
"""Seconds that the NVIDIA driver may take to be opened."""
STORAGE_EVERY = 60.0
"""Seconds between two checks of storage while ranks run, at least."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be checked."""

    driver: str = ""
    """The file that shows an NVIDIA driver; "": there is none, and no library is loaded."""
    card_states: str | None = cards.STATE
    """A path with {nic} or {dev_name}; None: not checked."""
    link_down: str | None = None
    """The same, of the counters of links that went down."""
    storage_paths: tuple[str, ...] = ()
    write_path: str = ""
    distributed_storage: bool = False
    command: str = ""
    run_dir: str | None = None
    node: str = ""
    seconds: float = SECONDS
    """For all checks together."""


class Checks:
    """The checks of one node. Of the GPUs and cards at the first run later ones are not to be worse."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self.gpus = Probe()
        self._storage = Probe()
        self._gpus_at_start: list[gpus.Gpu] | None = None
        self._driver_hangs: Finding | None = None  # until it answers
        self._cards_at_start: list[cards.Card] | None = None
        self._cards_before: list[cards.Card] = []
        self._xids: dict[str, None] = {}
        self._xids_before: dict[str, None] = {}
        self._under_way: dict[str, UnderWay[list[Finding]]] = {}
        self._slow_at = -STORAGE_EVERY  # monotonic seconds at which storage was checked

    def run(self, *, trains: bool = False) -> list[Finding]:
        """Every finding, also of what is good or does not apply. While ranks run storage is checked now and then."""
        now, wanted = time.monotonic(), self._wanted
        parts: dict[str, Callable[[], list[Finding]]] = {
            gpus.CHECK: self._check_gpus,
            cards.CHECK: self._check_cards,
            host.CHECK: lambda: host.check(wanted.run_dir),
        }
        if wanted.command:
            parts["command"] = lambda: [programs.run_command(wanted.command, wanted.seconds)]
        if not trains or now - self._slow_at >= STORAGE_EVERY:
            self._slow_at = now
            parts[storage.CHECK] = self._check_storage
        for name, part in parts.items():
            if name not in self._under_way:  # one that hangs is not followed by another
                self._under_way[name] = UnderWay(part)
        found = []
        calls = {name: self._under_way[name].answer for name in parts}
        for name, answer in answers(calls, wanted.seconds + 0.2):  # processes have their own deadline
            if isinstance(answer, TooLate):
                text = f"no answer within {wanted.seconds:g} s"
                late = Finding(name, WARNING, f"not checked: {text}", what="late")
                found.append(self._driver_hangs if name == gpus.CHECK and self._driver_hangs else late)
                continue
            found += (
                [Finding(name, WARNING, f"not checked: {answer!r}")]
                if isinstance(answer, Exception)
                else answer
            )
            del self._under_way[name]
        return found

    def _check_gpus(self) -> list[Finding]:
        wanted = self._wanted
        if not wanted.driver:
            return [Finding(gpus.CHECK, ABSENT, "there is no NVIDIA driver")]
        # A driver may take seconds to open: a process may take that long for its first answer.
        was_open = self.gpus.is_open
        seconds = wanted.seconds if was_open else OPENS
        until = time.monotonic() + seconds
        try:
            (found,) = self.gpus.ask("gpus", seconds)
            if "error" in found:
                verdict = WARNING if self._gpus_at_start else ABSENT  # it could be used at the start
                return [Finding(gpus.CHECK, verdict, f"NVML cannot be used: {found['error']}")]
            ((xids, no_log),) = self.gpus.ask("xids", max(0.01, until - time.monotonic()))
        except Unanswered as why:
            if was_open or not self.gpus.is_hung:
                return [Finding(gpus.CHECK, WARNING, f"not checked: {why.args[0]}", what="late")]
            text = f"the NVIDIA driver: {why.args[0]}"
            self._driver_hangs = Finding(gpus.CHECK, SICK, text, is_hardware=True, what="the driver")
            return [self._driver_hangs]
        self._driver_hangs = None
        start = self._gpus_at_start
        self._gpus_at_start = found if start is None else start
        seen = self._xids_before if start is None else self._xids
        seen.update(dict.fromkeys(xids))
        return gpus.judged(found, start, self._xids, self._xids_before, no_log)

    def _check_cards(self) -> list[Finding]:
        wanted = self._wanted
        if wanted.card_states is None and wanted.link_down is None:
            return [
                Finding(cards.CHECK, ABSENT, "not to be checked (enable_nic_healthcheck, enable_nic_monitor)")
            ]
        found = cards.read(wanted.card_states, wanted.link_down)
        if self._cards_at_start is None:
            self._cards_at_start = self._cards_before = found
        before, self._cards_before = self._cards_before, found
        return cards.judged(found, self._cards_at_start, before)

    def _check_storage(self) -> list[Finding]:
        wanted, paths = self._wanted, list(self._wanted.storage_paths)
        if not (paths or wanted.write_path or wanted.distributed_storage):
            return [Finding(storage.CHECK, ABSENT, "no path is given (storage_healthcheck_path)")]
        asked = {"paths": paths, "write_path": wanted.write_path, "distributed": wanted.distributed_storage}
        late, is_hung = "", False
        try:
            answers = self._storage.ask("storage", wanted.seconds, **asked)
        except Unanswered as why:
            late, answers, is_hung = str(why.args[0]), why.args[1], self._storage.is_hung
        finally:
            self._storage.close()
        found = [Finding(**answer) for answer in answers if "error" not in answer]
        errors = [answer["error"] for answer in answers if "error" in answer]
        found += [Finding(storage.CHECK, WARNING, f"not checked: {error}") for error in errors]
        if late and not is_hung:
            found.append(Finding(storage.CHECK, WARNING, f"not checked: {late}"))
        elif late:
            answered = {finding.what for finding in found}
            silent = [path for path in (*paths, wanted.write_path) if path and path not in answered]
            silent = silent or ["a mount of Lustre or NFS"]
            found += [Finding(storage.CHECK, SICK, f"{path}: {late}", what=path) for path in silent]
        return found

    def close(self) -> None:
        """End the processes."""
        self.gpus.end()
        self._storage.end()
        programs.end_all()
