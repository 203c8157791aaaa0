"""Ranks without torch that send heartbeats ten times a second until they are ended."""

import sys
import time

if sys.argv[1:] == ["holdfast"]:
    from holdfast.fault_tolerance import RankMonitorClient

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
