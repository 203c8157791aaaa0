"""`holdfast doctor --trial`: a zygote imports what a script imports, and forks once. The script is not run.

Imported are the modules that an earlier job of this script has learned, or else those that the script itself imports
at the top of its file; of both only what is installed. Always holds: no process of a trial remains.
Does not cover: imports in functions and in modules of the project, if no job has learned them yet; with `-m` any
import that no job has learned.
"""

from __future__ import annotations

import ast
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec

from ..fault_tolerance.launcher.ranks import orphans
from ..fault_tolerance.launcher.warm.plan import (
    Request,
    hidden,
    list_path,
    plan,
    read_list,
    script_text,
)
from ..fault_tolerance.launcher.warm.zygotes import Zygotes
from .table import Finding, listed, note, ok, problem

CHECK = "trial"
LONGEST = 120.0
"""Seconds for the imports."""
COLD = "No action needed. Restarts are slower because each rank imports"


def check_trial(script: Request, run_dir: str | None, cold: str) -> Finding:
    """Make a trial, unless ranks of this script start cold anyway (`cold`)."""
    if cold:
        return note(CHECK, f"not made: {cold}", f"{COLD} torch itself")
    try:
        names = [] if script.module else _imports(script_text(script.script))
    except SyntaxError as error:
        at = f", line {error.lineno}" if error.lineno else ""
        return problem(
            CHECK, f"{script.script}{at}: {error.msg}", "Correct the script: its ranks fail at once"
        )
    return _try(script, run_dir, names)


def judge(
    import_seconds: float,
    fork_seconds: float | None = None,
    missing: Mapping[str, str] | None = None,
    refused: Mapping[str, str] | None = None,
    hides: Sequence[str] = (),
    reason: str = "",
) -> Finding:
    """The finding.

    Args:
        fork_seconds: None: the zygote did not fork, for this `reason`.
        missing: Imports of the script that fail, and why.
        refused: Modules that cannot be imported ahead, and why.
        hides: Installed packages that the script's folder hides.
    """
    if missing:
        reasons = listed([f"{name} ({why})" for name, why in sorted(missing.items())])
        return problem(
            CHECK, f"cannot be imported: {reasons}", "Install what the script imports, or fix PYTHONPATH"
        )
    if fork_seconds is None:
        return note(CHECK, f"no rank can be forked: {reason}", f"{COLD} torch itself")
    text = f"imported in {import_seconds:.1f} s, a rank forked in {1e3 * fork_seconds:.0f} ms"
    if hides:
        text += f"; the script's folder hides the installed {listed(hides)}"
        return note(CHECK, text, "Rename the file, unless it is meant to replace the installed package")
    if refused:
        names = listed(sorted(refused))
        text += f"; not imported ahead: {names} ({'; '.join(sorted(set(refused.values())))})"
        return note(CHECK, text, f"{COLD} {names} itself")
    return ok(CHECK, text)


def _imports(source: bytes) -> list[str]:
    """Top-level names that a script imports in any case: by a statement that is in no block. Raises SyntaxError."""
    names = []
    try:
        body = ast.parse(source).body
    except ValueError as error:  # null bytes, before Python 3.12
        raise SyntaxError(str(error)) from None
    for node in body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    return sorted({name.partition(".")[0] for name in names} - {"__future__"})


def _try(request: Request, run_dir: str | None, names: Sequence[str]) -> Finding:
    """Raises OSError if no process can be started."""
    made = plan(request, os.environ)
    found = {name: _origin(name, made.folder) for name in names}
    learned = read_list(list_path(run_dir, request.script, module=request.module))
    learned.modules = [*(made.first if learned.modules is None else learned.modules), *found.items()]
    log = _Log()
    logger = logging.getLogger("holdfast.launcher")
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(log)
    orphans.adopt()  # a standby becomes a child of this process
    zygotes = Zygotes(made, learned, lambda: None)
    standby = None
    try:
        began = time.monotonic()
        zygotes.begin()
        zygotes.until_ready(LONGEST)
        imported = time.monotonic()
        standby = zygotes.fork()
        forked = time.monotonic()
    finally:
        if standby:
            standby.end()
        zygotes.close()
        logger.removeHandler(log)
        logger.propagate = propagates
    return judge(
        imported - began,
        forked - imported if standby else None,
        {name: why for name, why in zygotes.failed.items() if name in found and found[name] is None},
        learned.refused | zygotes.passing,
        hidden(zygotes.names, made.folder),
        log.lines[-1] if log.lines else "the zygote does not fork",
    )


def _origin(name: str, folder: str | None) -> str | None:
    """The file that an import of `name` would execute in a rank; None if it has none, or is not found."""
    spec = PathFinder.find_spec(name, [folder]) if folder else None
    with suppress(ImportError, ValueError):
        spec = spec or find_spec(name)
    return spec.origin if spec else None


class _Log(logging.Handler):
    """Lines of the launcher."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage().removeprefix("warm start: "))
