"""One of two ranks with boards of their own. Rank 1 hangs; rank 0 fails meanwhile, and leaves by `abort`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch.distributed as dist

from holdfast.fault_tolerance import FaultToleranceConfig
from holdfast.fault_tolerance.board import Board, Identity
from holdfast.fault_tolerance.board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from holdfast.fault_tolerance.timeouts.effective_timeouts import configured_timeouts
from holdfast.integrations import megatron

RANK, FOLDER = int(sys.argv[1]), Path(sys.argv[2])

timeouts = configured_timeouts(FaultToleranceConfig(), initial_set_by_user=True)
board = Board.create(str(FOLDER / f"{RANK}.board"), timeouts)
board.bind_process(Identity(os.getpid(), RANK, RANK, 2, 0, time.monotonic_ns()))
os.environ |= {FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR: board.path, "RANK": str(RANK), "WORLD_SIZE": "2"}
dist.init_process_group("gloo", init_method=f"file://{FOLDER}/store", rank=RANK, world_size=2)
state = SimpleNamespace()
checkpoint = SimpleNamespace(save=str(FOLDER / "save"), async_save=False)
config = SimpleNamespace(checkpoint=checkpoint, ft=SimpleNamespace(calc_ft_timeouts=True))
megatron.setup(config, state)
megatron.on_checkpoint_loaded(False, state)
for _ in range(20):
    megatron.on_training_step_start(state)
    megatron.on_training_step_end(state)
if RANK == 1:
    (FOLDER / "stopped").touch()
    os.kill(os.getpid(), signal.SIGSTOP)
while not (FOLDER / "stopped").exists():
    time.sleep(0.005)
began = time.monotonic()
try:
    try:
        raise RuntimeError("this rank's own failure")
    finally:
        megatron.shutdown(state)  # as abort does, while an exception is handled
except RuntimeError:
    pass
print(f"left after {time.monotonic() - began:.3f} s, {state.rank_monitor_client}", flush=True)
os._exit(0)  # what torch waits for at its end is not ours
