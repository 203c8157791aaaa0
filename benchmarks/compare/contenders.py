"""Who is compared: torchrun, NVRx and Holdfast, each as a user would install it, beside one and the same torch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.environments import NVRX, beside, nvrx
from benchmarks.jobs import PROGRAMS

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Contender:
    """`who` is what the programs take for it. `client` is the module that ranks import, "" where there is none."""

    who: str
    name: str
    python: str
    module: str
    package: str
    client: str = ""

    @property
    def launcher(self) -> list[str]:
        """How its launcher is started."""
        return [self.python, "-m", self.module]

    @property
    def supervises(self) -> bool:
        """Whether it has heartbeats, sections and limits."""
        return bool(self.client)


@cache
def contenders() -> tuple[Contender, ...]:
    """Those that can be had here; the first call installs them. Holdfast anew: the checkout may have changed."""
    ours = beside("compare-holdfast", [str(ROOT)], anew=True)
    found = [Contender("torchrun", "torchrun", ours, "torch.distributed.run", "torch")]
    if theirs := nvrx():
        client = "nvidia_resiliency_ext.fault_tolerance"
        found.append(Contender("nvrx", NVRX, theirs[0], theirs[-1], "nvidia-resiliency-ext", client))
    client = "holdfast.fault_tolerance"
    return (*found, Contender("holdfast", "Holdfast", ours, f"{client}.launcher", "holdfast", client))


def told_by(contender: Contender, program: str, *args: str) -> dict[str, float]:
    """Run a program of ours in its environment, without a launcher; the JSON that it prints."""
    line = [contender.python, str(PROGRAMS / program), *args]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, check=True)
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told
