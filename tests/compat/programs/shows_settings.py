"""Supervised through the second name, a rank writes what it was given; rank 1 fails in cycle 0. argv: a folder, more.

What it was given: the client's module, the settings, the documents' names of the environment, and the other arguments.
"""

from __future__ import annotations

import json
import os
import sys

import nvidia_resiliency_ext.fault_tolerance as fault_tolerance

client = fault_tolerance.RankMonitorClient()
client.init_workload_monitoring()
client.send_heartbeat()
names = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "FAULT_TOL_FINISHED_FLAG_FILE")
environment = {name: os.environ.get(name) for name in names}
rank, cycle = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(f"{sys.argv[1]}/{rank}-{cycle}.json", "w") as file:
    json.dump([type(client).__module__, client.cfg.to_dict(), environment, sys.argv[2:]], file)
if (rank, cycle) == ("1", "0"):
    os._exit(3)
client.shutdown_workload_monitoring()
