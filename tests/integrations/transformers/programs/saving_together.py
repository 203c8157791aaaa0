"""One of two ranks that save checkpoints together, of which one cannot. Arguments: the rank, a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from holdfast.integrations.transformers.checkpoints import MARK, WholeCheckpoints
from holdfast.integrations.transformers.training import EVALUATION_TO_COME, TrainCall
from holdfast.patches import Patches
from holdfast.side_group import SideGroup

RANK, FOLDER = int(sys.argv[1]), Path(sys.argv[2])


class Saving:
    """As far as it is needed, a `Trainer`: rank 0 writes the weights, each rank a file of its own."""

    def __init__(self) -> None:
        self.args = SimpleNamespace(should_save=RANK == 0)
        self.state = SimpleNamespace(global_step=0)

    def _get_output_dir(self, trial: Any) -> str:
        return str(FOLDER)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        place = FOLDER / f"checkpoint-{self.state.global_step}"
        place.mkdir(exist_ok=True)
        if self.state.global_step == 2 and RANK == 1:
            raise OSError("no space left")
        (place / f"rank-{RANK}").write_text("written")


def save(step: int) -> str:
    trainer.state.global_step = step
    try:
        trainer._save_checkpoint(None, None)
    except OSError as error:
        return str(error)
    return "complete" if whole.newest == f"{FOLDER}/checkpoint-{step}" else "not known to be complete"


dist.init_process_group("gloo", init_method=f"file://{FOLDER}/store", rank=RANK, world_size=2)
trainer, side, patches = Saving(), SideGroup(), Patches()
whole = WholeCheckpoints(trainer, side)
whole.watch(patches)
said = [save(1), save(2)]
marks = [(FOLDER / f"checkpoint-{step}" / MARK).exists() for step in (1, 2)]
files = sorted(path.name for path in (FOLDER / "checkpoint-1").iterdir())
# Of a checkpoint that rank 1 does not see as rank 0 does.
resumed = FOLDER / f"resumed-{RANK}"
resumed.mkdir()
if RANK == 0:
    (resumed / EVALUATION_TO_COME).touch()
due = TrainCall.evaluation_is_due(SimpleNamespace(side=side, resumed=str(resumed)))  # type: ignore[arg-type]
if RANK == 0:  # an earlier start has left it incomplete
    (FOLDER / "checkpoint-3").mkdir(exist_ok=True)
    (FOLDER / "checkpoint-3" / MARK).touch()
side.failed = "a rank is gone"  # nothing can be agreed on from here on
said.append(save(3))
marks.append((FOLDER / "checkpoint-3" / MARK).exists())
patches.undo()
side.close()
dist.destroy_process_group()
print(json.dumps({"said": said, "marks": marks, "files": files, "due": due}))
