"""Jobs whose script uses the modules in `modules.txt`, and what is expected of each module.

What always holds: whatever a module's verdict (`VERDICTS`), it is fine in every rank of both cycles.
Does not cover: modules of real packages, unless one of these imports them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conftest import SOURCE
from tests.launcher.conftest import Job
from tests.launcher.warm.conftest import HERE, Installation, must_be_warm, run
from tests.processes import Spawner

WORKS, REFUSED, EITHER = "works warm", "refused by name", "works warm or is refused by name"

VERDICTS = {
    "reads_arguments": EITHER,  # under `-m`, Python's start has not yet put the module's path there
    "works_at_exit": WORKS,
    "prints": WORKS,
    "warns": EITHER,
    "sets_a_variable": WORKS,
    "is_broken": WORKS,  # its error concerns the ranks
    "raises_at_forks": EITHER,
    "chooses_a_start_method": REFUSED,
    "makes_a_folder": EITHER,
    "starts_a_thread": REFUSED,
    "starts_a_native_thread": REFUSED,
    "opens_a_socket": REFUSED,
    "opens_a_channel": REFUSED,
    "opens_files": REFUSED,
    "loads_cuda": WORKS,
    "initialises_cuda": REFUSED,
    "asks_for_the_rank": REFUSED,
    "copies_the_environment": REFUSED,
    "handles_signals": REFUSED,
    "starts_a_process": REFUSED,
    "sets_a_timer": REFUSED,
    "hangs_forked_children": REFUSED,
    "hangs_at_forks": REFUSED,
    "changes_the_folder": REFUSED,
    "changes_limits": REFUSED,
    "changes_the_locale": REFUSED,
    "seeds_random_numbers": REFUSED,
    "wraps_standard_output": REFUSED,
    "shares_a_lock": REFUSED,
    "shares_memory": REFUSED,
    "hooks_exceptions": REFUSED,
    "reaps_children": REFUSED,
    "changes_the_interpreter": EITHER,
    "ends_the_interpreter": REFUSED,
    "crashes_the_interpreter": REFUSED,
    "uses_blas": WORKS,
    "starts_a_pool": REFUSED,
    "seeds_torch": REFUSED,
    "uses_wandb": EITHER,
}

OF_LIBRARIES = ("uses_blas", "starts_a_pool", "seeds_torch", "uses_wandb")
"""These import real packages."""

_texts = (HERE / "modules.txt").read_text().split("\n== ")[1:]
MODULES = {name: text for name, _, text in (each.partition("\n") for each in _texts)}
"""Name -> source."""

PLACES = [(cycle, rank) for cycle in (0, 1) for rank in (0, 1)]


def use(
    spawn: Spawner,
    installation: Installation,
    folder: Path,
    mode: str,
    names: Sequence[str],
    env: Mapping[str, str | None] | None = None,
    preload: bool = True,
    flags: Sequence[str | Path] = (),
) -> Job:
    """A job whose script uses these modules; with `preload` the launcher gets their names. Checks what always holds."""
    for name, text in MODULES.items():
        (installation.packages / f"{name}.py").write_text(text)
    shutil.copytree(HERE / "programs", folder, dirs_exist_ok=True)
    (folder / "temporary").mkdir()
    variables = {
        "PYTHONPATH": None,
        "TMPDIR": str(folder / "temporary"),
        "STARTED_IN": str(folder),
        "REMOVED_BY_A_MODULE": "not yet",
        "CUDA_HERE": str(folder / "libcuda.so.1"),
        **(env or {}),
    }
    ahead = ("--ft-preload", ",".join(names)) if preload else ()
    words = (*flags, *ahead, "-m", "user", *names)
    job = run(spawn, folder, mode, *words, env=variables, launcher=installation.launcher(SOURCE))
    faults = job.lines("FAULT")
    assert not faults, "\n".join(faults)
    for cycle, rank in PLACES:
        for name in names:
            expected = "ends with is_broken: not here" if name == "is_broken" else "is fine (ahead|here)"
            assert len(job.lines(f"^rank {rank} cycle {cycle} {name} {expected}$")) == 1, name
    return job


def check_verdicts(job: Job, names: Sequence[str]) -> None:
    """Each has its verdict, and the job has not lost its warm start over it."""
    must_be_warm(job, cycles=[1])
    for name in names:
        told = [line for line in job.said() if re.search(rf"\b{name}\b", line)]
        told = [line for line in told if f"--ft-preload {name}: it cannot be imported" not in line]
        ahead = {line.rpartition(" ")[2] for line in job.lines(rf"^rank \d cycle 1 {name} is fine")}
        found = (REFUSED if told else WORKS), len(told), ahead or {"here"}
        right = {WORKS: (WORKS, 0, {"ahead"}), REFUSED: (REFUSED, 1, {"here"})}
        if name == "is_broken":
            right[WORKS] = (WORKS, 0, {"here"})
        allowed = list(right.values()) if VERDICTS[name] == EITHER else [right[VERDICTS[name]]]
        assert found in allowed, f"{name}: {VERDICTS[name]}\n{job.spawned.err()}"
