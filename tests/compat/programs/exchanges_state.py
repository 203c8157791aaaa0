"""A rank of NVRx that does with its public API what jobs do between them: loads what an earlier one left, leaves more.

argv: a folder to read from, and one to write to.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from pathlib import Path

import nvidia_resiliency_ext.fault_tolerance as fault_tolerance
import torch.distributed as dist
from nvidia_resiliency_ext.fault_tolerance.data import HeartbeatTimeouts, SectionTimeouts

read, write = map(Path, sys.argv[1:])
client = fault_tolerance.RankMonitorClient()
client.load_state_dict(json.loads((read / "state.json").read_text()))
config = fault_tolerance.FaultToleranceConfig.from_yaml_file(
    str(read / "ft.yml"), ignore_not_recognized=False
)
client.init_workload_monitoring()
heartbeat, section = client.hb_timeouts, client.section_timeouts
told = {
    "from": fault_tolerance.RankMonitorClient.__module__,
    "heartbeat": [heartbeat.initial, heartbeat.subsequent, heartbeat.were_calculated],
    "section": [dict(section.section), section.out_of_section, sorted(section.calculated_sections)],
    "by the launcher": [client.cfg.rank_section_timeouts, client.cfg.initial_rank_heartbeat_timeout],
    "by the file": [config.rank_section_timeouts, config.initial_rank_heartbeat_timeout],
    "the rest": [config.rank_heartbeat_timeout, config.rank_out_of_section_timeout, config.safety_factor],
}
dist.init_process_group("gloo")
client.send_heartbeat()
for name in ("setup", "step"):
    client.start_section(name)
    time.sleep(0.01)
    client.end_section(name)
client.send_heartbeat()
client.calculate_and_set_hb_timeouts()
client.calculate_and_set_section_timeouts(selected_sections=["setup", "step"])
(write / "state.json").write_text(json.dumps(client.state_dict()))
config.to_yaml_file(str(write / "ft.yml"))
request = fault_tolerance.WorkloadControlRequest(
    fault_tolerance.WorkloadAction.ExcludeThisNode, "a fan is loud"
)
limits = (HeartbeatTimeouts(1.0, 2.0, True), SectionTimeouts({"step": 3.0}, 4.0, {"step"}, True))
(write / "objects.pickle").write_bytes(pickle.dumps([request, *limits]))
(write / "told.json").write_text(json.dumps(told))
dist.destroy_process_group()
client.shutdown_workload_monitoring()
