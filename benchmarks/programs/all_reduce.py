"""All-reduce in a loop; prints `joined CYCLE RANK TIME` after the first one. Killed from outside in cycle 0."""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
cycle, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), dist.get_rank()
value = torch.ones(1)
dist.all_reduce(value)
sys.stdout.write(f"joined {cycle} {rank} {os.getpid()} {time.time()}\n")
for _ in range(int(sys.argv[1])):
    dist.all_reduce(value)
    value /= dist.get_world_size()
    time.sleep(0.01)
