"""One training for the checks of restarts, hangs and crashes; under Holdfast or torchrun.

    train.py --steps N [--backend gloo] [--faults NAME,NAME] [--hold GIB]

In cycle n the last rank does the nth of the faults, which are functions of `device`, in its third step; the first
cycle without one trains to the end. `never_come` is a rank that does not come to the process group.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import nullcontext
from pathlib import Path

import device
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--backend", default=device.COLLECTIVES)
parser.add_argument("--faults", default="")
parser.add_argument(
    "--hold", type=int, default=0, help="GiB of memory to hold, and to look for when it starts"
)
args = parser.parse_args()
ALLOWED = 256 << 20  # bytes that may be missing: contexts differ
PATIENCE = 20.0  # seconds

cycle, rank, ranks = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE"))
faults = args.faults.split(",") if args.faults else []
fault = faults[cycle] if cycle < len(faults) and rank == ranks - 1 else ""
here = torch.device(device.NAME, 0) if device.NAME == "cuda" else torch.device("cpu")
loop = None
if "TORCHELASTIC_RUN_ID" in os.environ and args.faults:
    from holdfast.integrations.loop import Loop

    loop = Loop().__enter__()


def section(name: str):  # type: ignore[no-untyped-def]
    return loop.section(name) if loop else nullcontext()


def wait_for_memory() -> None:
    """How long the memory of this rank's predecessor was not free."""
    baseline = Path(os.environ["CHECK_FOLDER"]) / "free-memory"
    if cycle == 0:
        baseline.write_text(json.dumps(device.free_memory()))
    wanted, began = json.loads(baseline.read_text()) - ALLOWED, time.monotonic()
    first = device.free_memory()
    while device.free_memory() < wanted and time.monotonic() < began + PATIENCE:
        time.sleep(0.002)
    waited = time.monotonic() - began
    device.mark("memory", missing=max(0, wanted - first), waited=waited, free=device.free_memory() >= wanted)


with section("setup"):
    if fault == "never_come":
        device.wait_on_the_host()
    if args.hold:
        wait_for_memory()
    # One rank after the other may take the one GPU under gloo; NCCL wants to know which.
    backend = device.COLLECTIVES if "never_come" in faults[cycle : cycle + 1] else args.backend
    dist.init_process_group(backend, device_id=here if backend == "nccl" else None)
    held = (
        torch.ones(args.hold << 30, dtype=torch.uint8, device=here) if args.hold and not device.DRY else None
    )
    torch.manual_seed(1)
    model = torch.nn.Linear(256, 256).to(here)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.ones(32, 256, device=here)


def train() -> None:
    sgd.zero_grad()
    model(batch).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    sgd.step()
    device.synchronize()


with section("setup"):
    train()  # which loads kernels
device.mark("first step")
for step in range(1, args.steps):
    with section("step"):
        if fault and step == 2:
            getattr(device, fault)()
        train()
    if loop and loop.step(step):
        break
    if not faults:
        time.sleep(0.005)
device.mark("done")
if loop:
    loop.finished()
    loop.__exit__(None, None, None)
dist.destroy_process_group()
