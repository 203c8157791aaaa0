"""One of many gloo ranks with a straggler detector: rank 0 prints the sockets that the detector added, as JSON.

python straggler_connections.py foreground|background
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist

from holdfast.straggler import Detector


def sockets() -> int:
    """Those of this process."""
    links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return sum(os.path.islink(link) and os.readlink(link).startswith("socket:") for link in links)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dist.barrier()
    before, groups = sockets(), dist.get_pg_count()
    Detector.initialize(gather_on_rank0=True, background=sys.argv[1] == "background")
    until, report = time.monotonic() + 60, None
    for number in range(1000):
        with Detector.detection_section("step", profile_cuda=False):
            pass
        report = Detector.generate_report() or report
        done = torch.tensor([float(report is not None or time.monotonic() > until)])
        dist.broadcast(done, 0)
        if done and number:
            break
        time.sleep(0.05)
    dist.barrier()
    added = torch.tensor([float(sockets() - before), float(dist.get_pg_count() - groups)])
    rows = [torch.zeros(2) for _ in range(dist.get_world_size())]
    dist.gather(added, rows if dist.get_rank() == 0 else None)
    if dist.get_rank() == 0:
        told = [int(row[0]) for row in rows]
        figures = {
            "rank_0": told[0],
            "others": max(told[1:]),
            "groups": int(added[1]),
            "reported": report is not None,
        }
        print(json.dumps(figures), flush=True)
    dist.barrier()
    Detector.shutdown()


if __name__ == "__main__":
    main()
