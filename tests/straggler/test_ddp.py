"""DistributedDataParallel that is watched: the same gradients, the waits measured, mistakes refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import Spawner

PROGRAM = Path(__file__).parent / "programs" / "ddp_gradients.py"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_gradients_are_those_of_a_model_without_the_hook(spawn: Spawner, tmp_path: Path, ranks: int) -> None:
    store = f"file://{tmp_path / 'store'}"
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")}  # torch makes it, used or not
    jobs = [spawn.python(PROGRAM, store, str(rank), str(ranks), env=cache) for rank in range(ranks)]
    codes = [job.wait() for job in jobs]
    assert codes == [0] * ranks, "\n".join(job.output() for job in jobs)
    for job in jobs:
        found, told = json.loads(next(line for line in job.out().splitlines() if line.startswith("[")))
        may_differ = {"views that are kept"} if ranks == 3 else set()  # torch divides there, see the module
        assert {name for name, (equal, _, _) in found.items() if not equal} <= may_differ
        assert {tuple(one[1:]) for one in found.values()} == {(4, True)}
        _look_at_mistakes(told)


def _look_at_mistakes(told: list[str]) -> None:
    no_ddp, nothing, other, *builtin, first, again, copied, after, unwatched, watched, computes = told
    assert no_ddp.startswith("watch_ddp: model must be a torch DistributedDataParallel, not Linear")
    assert "not NoneType" in nothing
    assert "has a communication hook already" in other and "it has allreduce_hook" in other
    assert len(builtin) == 2 and all("can only be called once" in one for one in builtin)
    assert (first, again, copied, after) == ("taken",) * 4
    assert (unwatched, watched) == ("[]", "['ddp all-reduce']")
    assert computes.startswith("collective_section: 'ddp all-reduce' is a detection_section already")
