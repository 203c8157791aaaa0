"""torchrun and NVRx on the same corpus, one phase of each fault.

*Found* is a second cycle, or the launcher's end with another code than 0, within `run.REACTION_TIMEOUT`; *recovered* is
as for Holdfast; *named* is the right rank in the first line of the launchers' own output that names a rank that failed
or hung (`NAMES`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import nvrx

from .corpus import RANK, Scenario, choose
from .run import TORCHRUN, Campaign, Runner
from .score import Facts, recovered

NAMES = (
    # torch's agent, of each failed worker, with the local rank
    r"failed \(exitcode: -?\d+\) local_rank: (?P<local>\d+)",
    # torch's summary at the end
    r"Root Cause.*?rank\s+: (?P<rank>\d+)",
    # NVRx's monitor of one rank, of a limit that has passed
    r"RankMonServer\d+@[^:\s]+:(?P<monitored>\d+)\] (?:Did not get|Section '[^']*' has been open)",
)


@dataclass(frozen=True)
class Row:
    """One fault under one launcher."""

    who: str
    kind: str
    scenario: str
    found: bool
    recovered: bool
    named: bool | None
    """None where no single rank is to blame."""


def runners() -> list[Runner]:
    """Those that this machine has; the first call installs NVRx."""
    found = [TORCHRUN]
    if theirs := nvrx.launcher():
        found.append(Runner("nvrx", tuple(theirs), "nvrx"))
    return found


def rows(campaign: Campaign, one_each: bool, among: Sequence[Scenario]) -> list[Row]:
    """All faults of these scenarios, under each launcher."""
    kinds = {each.kind for each in among if each.label}
    given = among if one_each else [each for each in choose(one_each=True) if each.kind in kinds]
    return [
        _row(runner, one, facts)
        for runner in runners()
        for one, facts in campaign.run(runner, given)
        if facts is not None
    ]


def _row(runner: Runner, scenario: Scenario, facts: Facts) -> Row:
    assert scenario.label is not None
    ended = [code for node, code in enumerate(facts.codes) if node != facts.lost]
    found = facts.happened is not None and (facts.cycles > 1 or any(code not in (0, None) for code in ended))
    named = named_rank(facts.log, scenario) == scenario.rank if scenario.label.blames == RANK else None
    return Row(runner.who, scenario.kind, scenario.name, found, recovered(facts), named)


def named_rank(log: str, scenario: Scenario) -> int | None:
    """The global rank in the first line that names one; of several nodes, none by its local rank."""
    matches = [match for pattern in NAMES for match in re.finditer(pattern, log, re.DOTALL)]
    if not matches:
        return None
    first = min(matches, key=lambda match: match.start())
    number = int(next(text for text in first.groupdict().values() if text is not None))
    return number if "local" not in first.re.groupindex or len(scenario.nodes) == 1 else None
