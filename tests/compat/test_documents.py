"""Every code block of the documents that imports `nvidia_resiliency_ext` runs, with its `...` filled in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import straggler
from tests.compat import documents
from tests.compat.conftest import NAME
from tests.processes import Spawner

PROGRAM = Path(__file__).parent / "programs" / "lightning_documents.py"


class DataLoaderClass:
    def get_next_batch(self) -> tuple[float, int]:
        return 1.0, 0


class ModelClass:
    def __call__(self, data: float) -> float:
        return self.forward(data)

    def forward(self, data: float) -> float:
        return sum(range(1000)) * data


@pytest.mark.usefixtures("alias")
def test_the_straggler_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    # Restored afterwards: an example wraps them.
    monkeypatch.setattr(DataLoaderClass, "get_next_batch", DataLoaderClass.get_next_batch)
    monkeypatch.setattr(ModelClass, "forward", ModelClass.forward)
    notified: list[Any] = []
    reports: list[Any] = []
    values: dict[str, Any] = {
        "DataLoaderClass": DataLoaderClass,
        "ModelClass": ModelClass,
        "STRAGGLER_REPORT_INTERVAL": 10,
        "data_loader": DataLoaderClass(),
        "handle_report": reports.append,
        "maybe_notify_user": notified.append,
        "model": ModelClass(),
        "more": {},
        "num_iters": 21,
        "rank": 0,
        "work": lambda: None,
    }
    for snippet in (documents.SECTIONS, documents.CALLABLES):
        exec(documents.filled_in(snippet), values)
    assert len(notified) == 2 * 3
    assert isinstance(values["report"], straggler.Report)
    assert values["straggler"].__name__ == f"{NAME}.straggler"
    values["more"] = {"scores_to_compute": "all"}
    exec(documents.filled_in(documents.INTERVAL), values)
    assert reports == []  # 300 seconds
    exec(documents.filled_in(documents.INTERVAL).replace("=300", "=1e-9"), values)
    assert len(reports) >= 1 and isinstance(reports[0], straggler.Report)
    exec(documents.filled_in(documents.WITHOUT_COLLECTIVES), values)
    try:
        assert straggler.Detector.generate_report() is not None
    finally:
        straggler.Detector.shutdown()


@pytest.mark.slow
def test_lightning(spawn: Spawner, python: str, tmp_path: Path) -> None:
    launcher = [python, "-m", f"{NAME}.fault_tolerance.launcher", "--nproc-per-node=1"]
    flag = tmp_path / "finished"
    job = spawn(
        [*launcher, str(PROGRAM), str(tmp_path)],
        env={"FAULT_TOL_FINISHED_FLAG_FILE": str(flag), "OMP_NUM_THREADS": "1"},
    )
    assert job.wait(120) == 0, job.output()[-3000:]
    ended = re.findall(r"ENDED\|(\d)\|(\d)\|\[(.*)\]", job.out())
    assert ended == [
        ("0", "3", "'holdfast.ptl_resiliency.callbacks.FaultToleranceCallback'"),
        ("1", "3", "'holdfast.ptl_resiliency.callbacks.StragglerDetectionCallback'"),
    ]
    assert flag.exists()
