"""Of two ranks the first trains weights of 384 MiB; when it restores them it holds them twice for a moment.

restoring.py FOLDER
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import holdfast

BYTES = 384 << 20


def main(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    if rank == 0:
        import torch

        weights = torch.ones(BYTES // 4)
    with holdfast.Loop() as loop:
        with loop.section("setup"):
            if rank == 0 and (newest := loop.last_checkpoint(folder / "saved")) is not None:
                weights.copy_(torch.load(newest)["weights"])
        for step in range(10_000):
            if loop.step(step):
                break
            if step == 0 and rank == 0:
                (folder / "saved").mkdir(exist_ok=True)
                torch.save({"weights": weights}, folder / "step-1.part")
                (folder / "step-1.part").rename(folder / "saved" / "step-1.pt")
                (folder / "iteration").write_text("1")
            (folder / f"pid-{rank}").write_text(str(os.getpid()))
            time.sleep(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
