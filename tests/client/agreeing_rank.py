"""One rank of `test_client_learning`: goes through the phases with the others and prints what it ended up with.

argv: the rendezvous file, the backend. Rank, world size and board come from the environment, as from a launcher.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist

from holdfast.fault_tolerance import RankMonitorClient, RankMonitorClientError

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

WAITED = 1.0


def refusal(call: object) -> str:
    """The words with which a call is refused; "" if it is not."""
    try:
        call()  # type: ignore[operator]
    except RankMonitorClientError as error:
        return str(error)
    return ""


def main() -> None:
    """All phases, in the same order on every rank."""
    rendezvous, backend = sys.argv[1:]
    if torch.cuda.is_available():
        torch.cuda.set_device(0)
    dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=RANK, world_size=RANKS)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    said: dict[str, object] = {"refused": refusal(client.calculate_and_set_hb_timeouts)}
    said["skipped"] = client.calculate_and_set_section_timeouts(skip_if_not_ready=True)

    # The intervals: rank r pauses longer than rank r - 1, and only the last rank ever opens "rare".
    for _ in range(2):
        time.sleep(0.02 * (RANK + 1))
        client.send_heartbeat()
    for name in ["setup", "step", *(["rare"] if RANK == RANKS - 1 else [])]:
        with client.section(name):
            time.sleep(0.01 * (RANK + 1))
    own = client._intervals.sections()
    said["own"] = {**own, **client._intervals.heartbeats(client._started_ns)}

    said["learned"] = [
        client.calculate_and_set_hb_timeouts(),
        client.calculate_and_set_section_timeouts(["setup"], calc_out_of_section=False),
    ]
    said["after one section"] = client.state_dict()
    said["learned all"] = client.calculate_and_set_section_timeouts()
    said["state"] = client.state_dict()
    # All but the last rank wait inside the collective, in a section that was always short.
    if RANK < RANKS - 1:
        client.start_section("step")
    else:
        time.sleep(WAITED)
    client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False)
    said["after waiting"] = client.state_dict()
    client.end_all_sections()
    dist.destroy_process_group()
    said["alone"] = refusal(client.calculate_and_set_hb_timeouts)
    client.shutdown_workload_monitoring()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
