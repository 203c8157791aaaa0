"""Import a slow module, and train for a number of steps; prints `CYCLE PID TIME` after the first all-reduce."""

import os
import sys
import time

import slow_to_import  # noqa: F401
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weight = torch.nn.Parameter(torch.ones(1))
dist.all_reduce(weight.data)
sys.stdout.write(f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {os.getpid()} {time.time()}\n")
sgd = torch.optim.SGD([weight], lr=0.1)
for _ in range(int(sys.argv[1])):
    weight.grad = torch.ones(1)
    dist.all_reduce(weight.grad)
    sgd.step()
    time.sleep(0.01)
