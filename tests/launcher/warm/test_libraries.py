"""Real libraries whose import leaves something that a fork would break: pools of threads, seeds, temporary folders.

Does not cover: Lightning (`test_telltale`), CUDA, and what is not among this project's own requirements.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.launcher.warm.conftest import WARM, Installation
from tests.launcher.warm.users import OF_LIBRARIES, check_verdicts, use
from tests.processes import Spawner


@pytest.mark.slow
def test_libraries(spawn: Spawner, installation: Installation, tmp_path: Path) -> None:
    """With two threads for each rank: OpenBLAS's go before a fork and come back, OpenMP's would hang the ranks.

    wandb's temporary folders are each rank's own, and only a rank that is killed leaves them behind.
    """
    installation.link_all()
    names = [name for name in OF_LIBRARIES if name != "uses_wandb" or _has_wandb()]
    job = use(spawn, installation, tmp_path, WARM, names, env={"OMP_NUM_THREADS": "2"})
    if _has_wandb():
        left = [path for path in (tmp_path / "temporary").iterdir() if "wandb" in path.name]
        assert len(left) == 2, "only those of the rank that was killed are left"
    check_verdicts(job, names)


def _has_wandb() -> bool:
    """Without importing it, which would leave its folders here, too."""
    return importlib.util.find_spec("wandb") is not None
