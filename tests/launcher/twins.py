"""The same command line under `ft_launcher` and under torchrun, for comparing what ranks see and what they print."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.launcher.conftest import Jobs
from tests.processes import Spawned


class Twins(NamedTuple):
    """Two finished launchers: ours and torchrun."""

    ours: Spawned
    theirs: Spawned

    def same_output(self) -> list[str]:
        """The lines of standard output, sorted (ranks write in any order), after they were found equal."""
        ours, theirs = (sorted(each.out().splitlines()) for each in (self.ours, self.theirs))
        assert ours == theirs
        return ours

    def reports(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """What the ranks reported as one JSON object a line, with a "rank": ours, theirs."""
        found = []
        for each in (self.ours, self.theirs):
            objects = [json.loads(line) for line in each.out().splitlines()]
            found.append({one["rank"]: one for one in objects})
        return found[0], found[1]


def run_twins(
    jobs: Jobs, *arguments: str | Path, code: int = 0, env: Mapping[str, str | None] | None = None
) -> Twins:
    """Run both to their end. `{who}` in an argument is `ours` or `theirs`: a place of its own for each."""
    started = []
    for who, start in (("ours", jobs.plain), ("theirs", jobs.torchrun)):
        own = [str(argument).replace("{who}", who) for argument in arguments]
        started.append(start(*own, env=env))
    ours, theirs = started[0].spawned, started[1]
    for each in (ours, theirs):
        assert each.wait() == code, each.output()[-4000:]
    return Twins(ours, theirs)


def tree(folder: Path) -> dict[str, str]:
    """Relative path -> text of every file below, with the run's own folder name masked."""
    return {
        re.sub(r"^[^/]+", "RUN", str(path.relative_to(folder))): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
