"""Two ranks restore weights; rank 1 reads its own from a FIFO.

restoring_slowly.py FOLDER
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import holdfast


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with holdfast.Loop() as loop:
        with loop.section("setup"):
            if rank == 1:
                with (folder / "fifo").open("rb") as fifo:
                    data = fifo.read()
                weights = torch.load(io.BytesIO(data))
            else:
                weights = torch.load(folder / "weights.pt")
            dist.barrier()
        loop.step(1)
        sys.stdout.write(f"restored {float(weights.sum())}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
