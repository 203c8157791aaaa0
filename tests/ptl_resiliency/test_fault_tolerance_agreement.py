"""Two ranks agree on learning, or one does not come: the other says so, learns nothing, and ends normally."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import Spawner

PROGRAM = Path(__file__).resolve().parent / "programs" / "agreeing.py"


@pytest.mark.slow
def test_ranks_that_agree_and_ranks_that_do_not_come(spawn: Spawner, tmp_path: Path) -> None:
    ranks = [spawn.python(PROGRAM, str(rank), str(tmp_path)) for rank in range(2)]
    assert [rank.wait() for rank in ranks] == [0, 0], "\n".join(rank.output() for rank in ranks)
    first, second = (json.loads(rank.out()) for rank in ranks)
    for told in (first, second):
        assert (told["text"], told["nothing"], told["agreed"]) == ("rank 0 says é", "", [True, False, False])
    assert first["alone"] == first["again"] == first["left"] == [False]
    assert 0.3 <= first["seconds"] < 20 and first["beats"] > 2  # once, not twice
    assert first["calculated"] is False and first["seconds after leaving"] < 20
    said = "the limits stay as they are: the other ranks could not be asked (not all ranks have come, after 0.3 s: "
    assert f"[FaultToleranceCallback@rank0] {said}" in ranks[0].err()
