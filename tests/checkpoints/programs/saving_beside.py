"""Two ranks save with `dcp.async_save`; rank 0 gets kill -9 when the second save has returned and is not durable yet.

saving_beside.py FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from holdfast import checkpoints

warnings.simplefilter("ignore")


returned = threading.Event()


class Killed(dcp.FileSystemWriter):
    """All ranks have written their shards, and rank 0 has not written the metadata."""

    def finish(self, *args: Any, **kwargs: Any) -> None:
        returned.wait()
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    folder = sys.argv[1]
    dist.init_process_group("gloo")
    state = {"step": 0, "w": torch.zeros(30000)}
    newest = checkpoints.last_complete_on_all_ranks(folder)
    if newest is not None:
        dcp.load(state, checkpoint_id=newest)
        weights = state["w"]
        # One write: the lines of two ranks do not mix.
        sys.stdout.write(f"resumed at {state['step']} {float(weights.min())} {float(weights.max())}\n")  # type: ignore[attr-defined]
        dist.destroy_process_group()
        return
    for step, writer in ((1, dcp.FileSystemWriter), (2, Killed)):
        state = {"step": step, "w": torch.full((30000,), float(step))}
        saved = dcp.async_save(state, storage_writer=writer(f"{folder}/step-{step}"))
        sys.stdout.write(f"returned from {step}\n")
        sys.stdout.flush()
        if step == 2:
            returned.set()
        saved.result()


main()
