"""A rank as a program for NVRx has it: supervised through the name that it imports. argv: a folder."""

from __future__ import annotations

import json
import os
import sys

import nvidia_resiliency_ext.fault_tolerance as fault_tolerance

client = fault_tolerance.RankMonitorClient()
client.init_workload_monitoring()
client.send_heartbeat()
rank, cycle = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(os.path.join(sys.argv[1], f"{rank}-{cycle}.json"), "w") as file:
    json.dump([type(client).__module__, client.cfg.to_dict()], file)
if (rank, cycle) == ("1", "0"):
    os._exit(3)
client.shutdown_workload_monitoring()
