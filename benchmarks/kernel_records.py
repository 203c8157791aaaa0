"""What the record of a GPU kernel costs the training's machine, through a fake libcupti: no GPU is needed.

By itself: `python benchmarks/kernel_records.py [--runs N] [--no-peer]`. The cost of the fake itself is taken off.
Does not cover: what CUPTI costs a launch, and what it costs to be attached; both need a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import by_itself, nvrx
from benchmarks.table import Row, median

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "benchmarks" / "programs" / "kernel_records.py"
FAKES = ROOT / "tests" / "straggler" / "kernels" / "native"
AIM = 100.0
PEER = f"NVRx {nvrx.VERSION}"


def build(folder: Path) -> None:
    """The fake libraries of the tests, under the names by which both look for them."""
    gcc = ["gcc", "-O2", "-fPIC", "-shared"]
    for source, name in (("fake_cuda.c", "libcuda.so.1"), ("fake_cupti.c", "libcupti.so.12")):
        script = folder / f"{name}.map"
        script.write_text(f"{name} {{ global: cu*; fake_*; local: *; }};\n")
        link = [f"-Wl,-soname,{name}", f"-Wl,--version-script={script}", "-ldl", "-lpthread"]
        subprocess.run([*gcc, str(FAKES / source), "-o", str(folder / name), *link], check=True)


def once(python: str, who: str, folder: Path) -> float:
    """Nanoseconds for each record, without the fake's own."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run(
        [python, str(PROGRAM), who], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    seen = json.loads(done.stdout)
    return median(seen["client"]) - median(seen["alone"])


def measure(runs: int, peer: bool = True) -> list[Row]:
    """The figure, the median of `runs` runs, beside the peer's where it can be installed."""
    theirs_by = nvrx.launcher() if peer else None
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        build(folder)
        for _ in range(runs):
            ours.append(once(sys.executable, "holdfast", folder))
            if theirs_by is not None:
                theirs.append(once(theirs_by[0], "nvrx", folder))
    figure = median(ours)
    return [
        Row(
            "GPU kernel record, through a fake libcupti",
            "ns",
            figure,
            peer=median(theirs) if theirs else None,
            peer_name=PEER,
            aim=f"≤ {AIM:g}",
            reached=figure <= AIM,
        )
    ]


if __name__ == "__main__":
    by_itself.main(__doc__, measure, PEER)
