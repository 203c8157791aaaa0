"""Writes what this rank was given: its settings, and the names of the environment that the documents promise."""

from __future__ import annotations

import json
import os
import sys

import nvidia_resiliency_ext.fault_tolerance as fault_tolerance

client = fault_tolerance.RankMonitorClient()
client.init_workload_monitoring()
client.send_heartbeat()
with open(f"{sys.argv[1]}/{os.environ['RANK']}.json", "w") as file:
    names = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "FAULT_TOL_FINISHED_FLAG_FILE")
    json.dump([client.cfg.to_dict(), {name: os.environ.get(name) for name in names}, sys.argv[2:]], file)
client.shutdown_workload_monitoring()
