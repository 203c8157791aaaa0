"""Two ranks agree on learning, or one does not come: the other logs it, learns nothing, and ends normally.

A rank that comes late while the trainer is set up is waited for, as the training itself waits for it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from holdfast import side_group
from holdfast.fault_tolerance.timeouts.kept_timeouts import KeptTimeouts, wanted_by_all
from holdfast.fault_tolerance.timeouts.learned_timeouts import HEARTBEAT
from holdfast.prefixed_log import Prefixed
from holdfast.side_group import CollectiveFailed, SideGroup
from tests.processes import Spawner

PROGRAM = Path(__file__).resolve().parent / "programs" / "agreeing.py"


@pytest.mark.slow
def test_ranks_that_agree_and_ranks_that_do_not_come(spawn: Spawner, tmp_path: Path) -> None:
    ranks = [spawn.python(PROGRAM, str(rank), str(tmp_path)) for rank in range(2)]
    assert [rank.wait() for rank in ranks] == [0, 0], "\n".join(rank.output() for rank in ranks)
    first, second = (json.loads(rank.out()) for rank in ranks)
    for told in (first, second):
        assert told["late"] == "limits"
        assert (told["text"], told["nothing"], told["agreed"]) == ("rank 0 says é", "", [True, False, False])
    assert first["alone"] == first["again"] == first["left"] == [False]
    assert 0.3 <= first["seconds"] < 20 and first["beats"] > 2  # once, not twice
    assert first["calculated"] is False and first["seconds after leaving"] < 20
    said = "the timeouts stay as they are: not every rank answered (not all ranks have come, after 0.3 s: "
    assert f"[FaultToleranceCallback@rank0] {said}" in ranks[0].err()


@pytest.fixture
def forsaken() -> Iterator[None]:
    """This process is rank 1 of two, and there is no other; its group can be set up without."""
    dist.init_process_group("fake", store=dist.HashStore(), rank=1, world_size=2)
    yield
    dist.destroy_process_group()


def test_a_group_that_cannot_be_made_is_said_once_and_ends_nothing(
    forsaken: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(side_group, "AS_IN_THE_TRAINING", 0.2)
    log = Prefixed(logging.getLogger("test_logger"), 1)
    side = SideGroup(0.1)
    assert side.process_group is not None and side.rank == 1  # not taken for a process that is alone
    assert "no group of the ranks' own could be made" in caplog.messages[-1]
    assert wanted_by_all(side, [True], log) == wanted_by_all(side, [True], log) == [False]
    assert len(caplog.messages) == 1
    with pytest.raises(CollectiveFailed, match="could be made"):
        side.maximum([1.0])
    assert KeptTimeouts(tmp_path / "state.json", HEARTBEAT, side, log).text == ""
    side.close()
    side.close()
    assert side.process_group is None
