"""Train, in a way; prints `joined CYCLE RANK PID TIME` after the first all-reduce. Killed from outside.

argv: how many steps.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
cycle, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), dist.get_rank()
weight = torch.nn.Parameter(torch.ones(1))
dist.all_reduce(weight.data)
sys.stdout.write(f"joined {cycle} {rank} {os.getpid()} {time.time()}\n")
sgd = torch.optim.SGD([weight], lr=0.1)
for _ in range(int(sys.argv[1])):
    weight.grad = torch.ones(1)
    dist.all_reduce(weight.grad)
    sgd.step()
    time.sleep(0.01)
