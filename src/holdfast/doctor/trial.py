"""A trial of warm start: a zygote imports what the script imports, and forks once. The script itself is not run.

What always holds: nothing of it is left when `trial` returns. It takes as long as the imports do.
Does not cover: modules that the script imports by other means than ``import``; a job finds these out by itself.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..fault_tolerance.launcher.ranks import orphans
from ..fault_tolerance.launcher.warm.learned import Learned
from ..fault_tolerance.launcher.warm.plan import Request, plan
from ..fault_tolerance.launcher.warm.zygotes import Zygotes
from .finding import Finding, note, ok
from .judgements.script import Imports
from .script import Script

CHECK = "trial"


def trial(script: Script, imports: Imports, nproc: int) -> Finding:
    """What came of it. Raises OSError where no process can be started."""
    request = Request("on", script.name, script.arguments, module=script.module, several=nproc > 1)
    learned = Learned()
    first = [(name, None) for name in imports.installed]
    orphans.adopt()  # a standby is its zygote's starter's child
    with _said() as lines:
        zygotes = Zygotes(plan(request, os.environ), learned, first, (), (), lambda: None)
        try:
            zygotes.begin()
            began = time.monotonic()
            zygotes.until_ready(120.0)
            imported = time.monotonic()
            standby = zygotes.ready.standby_now() if zygotes.ready else None
            forked = time.monotonic()
            if standby:
                standby.end()
        finally:
            zygotes.close()
    fork = forked - imported if standby else None
    return judge(len(imports.installed), learned.refused, imported - began, fork, lines)


def judge(
    packages: int, refused: dict[str, str], imported: float, forked: float | None, lines: Sequence[str]
) -> Finding:
    """Pure: what the trial says; times in seconds, `forked` None where nothing could be forked."""
    if forked is None:
        why = lines[-1] if lines else "it did not fork"
        return note(CHECK, why, "ranks of this script start cold: mend what is named, or leave it at that")
    took = f"{packages} packages imported in {imported:.1f} s, a rank forked in {1e3 * forked:.0f} ms"
    if refused:
        reasons = "; ".join(sorted(set(refused.values())))
        return note(
            CHECK,
            f"{took}; each rank imports by itself {', '.join(sorted(refused))} ({reasons})",
            "nothing: it works",
        )
    return ok(CHECK, took)


@contextmanager
def _said() -> Iterator[list[str]]:
    """The launcher's lines, which nobody else is to see."""
    lines: list[str] = []
    logger = logging.getLogger("holdfast.launcher")

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage().removeprefix("warm start: "))

    handler, passes_on = Keeps(), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = passes_on
