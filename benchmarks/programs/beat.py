"""Ranks that send heartbeats ten times a second until they are ended.

argv: "holdfast", "nvrx" or nothing, and "torch" for ranks that have imported it, as real ones have.
"""

import sys
import time

who = [each for each in sys.argv[1:] if each != "torch"]
if "torch" in sys.argv:
    import torch.distributed  # noqa: F401
if who == ["holdfast"]:
    from holdfast.fault_tolerance import RankMonitorClient
elif who == ["nvrx"]:
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

if who:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    beat = client.send_heartbeat
else:

    def beat() -> None:
        """The peer has no heartbeats."""


sys.stdout.write("ready\n")
while True:
    beat()
    time.sleep(0.1)
