"""The training of the checks of restarts, hangs and crashes; for Holdfast and torchrun.

    gpu_train.py --steps N [--backend gloo] [--faults NAME,NAME] [--hold GIB]

In cycle n the last rank performs fault n in its third step; the first cycle without a fault trains to the end. Faults
are functions of `gpu_device`. In the fault `never_come` the last rank does not join the process group.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path

import gpu_device
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--backend", default=gpu_device.COLLECTIVES)
parser.add_argument("--faults", default="")
parser.add_argument(
    "--hold", type=int, default=0, help="GiB of GPU memory to hold, and to wait for at the start"
)
args = parser.parse_args()
ALLOWED = 256 << 20  # bytes: contexts differ in size
PATIENCE = 20.0  # seconds

cycle, rank, ranks = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE"))
faults = args.faults.split(",") if args.faults else []
planned = faults[cycle] if cycle < len(faults) else ""
fault = planned if rank == ranks - 1 else ""
device = torch.device(gpu_device.NAME, 0) if gpu_device.NAME == "cuda" else torch.device("cpu")


def wait_for_memory() -> None:
    """Report how long the memory of this rank's predecessor was not free."""
    baseline = Path(os.environ["CHECK_FOLDER"]) / "free-memory"
    if cycle == 0:
        baseline.write_text(str(gpu_device.free_memory()))
    wanted = int(baseline.read_text()) - ALLOWED
    missing = max(0, wanted - gpu_device.free_memory())  # the first call creates the context
    began = time.monotonic()
    while gpu_device.free_memory() < wanted and time.monotonic() < began + PATIENCE:
        time.sleep(0.002)
    free = gpu_device.free_memory() >= wanted
    gpu_device.mark("memory", missing=missing, waited=time.monotonic() - began if missing else 0.0, free=free)


with ExitStack() as stack:
    loop = None
    if faults:
        from holdfast import Loop

        loop = stack.enter_context(Loop())
    with loop.section("setup") if loop else nullcontext():
        if fault == "never_come":
            gpu_device.wait_on_the_host()
        if args.hold:
            wait_for_memory()
        backend = gpu_device.COLLECTIVES if planned == "never_come" else args.backend
        dist.init_process_group(backend, device_id=device if backend == "nccl" else None)
        held = [] if gpu_device.DRY else [torch.ones(args.hold << 30, dtype=torch.uint8, device=device)]
        torch.manual_seed(1)
        model = torch.nn.Linear(256, 256).to(device)
        sgd = torch.optim.SGD(model.parameters(), lr=0.01)
        batch = torch.ones(32, 256, device=device)

        def train() -> None:
            sgd.zero_grad()
            model(batch).square().mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            sgd.step()
            gpu_device.synchronize()

        train()
    gpu_device.mark("first_step")
    for step in range(1, args.steps):
        with loop.section("step") if loop else nullcontext():
            if fault and step == 2:
                getattr(gpu_device, fault)()
            train()
        if loop is None:
            time.sleep(0.005)
        elif loop.step(step):
            break
dist.destroy_process_group()
