"""A rank that keeps local checkpoints of the original's, supervised by Holdfast. It fails once, then resumes.

argv: a folder for checkpoints. Prints the cycle, the step that it resumed from, and the weights.
"""

import json
import os
import sys

import nvidia_resiliency_ext.fault_tolerance as ft
import torch
import torch.distributed as dist
from nvidia_resiliency_ext.checkpointing.local.base_state_dict import TensorAwareStateDict
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager


class Weights(TensorAwareStateDict):
    """One tensor on the CPU; the original's own class accepts tensors on a GPU only."""

    def __init__(self, tensor):
        self.tensor = tensor

    def pop_tensors(self):
        tensor, self.tensor = self.tensor, None
        return [tensor]

    @property
    def tensors(self):
        return iter([self.tensor])

    @property
    def is_hollow(self):
        return self.tensor is None

    def insert_tensors(self, tensor_data):
        (self.tensor,) = tensor_data

    def init_tensors(self):
        self.tensor = torch.zeros(4)

    def copy_tensors_to_cpu(self, non_blocking=False):
        pass

    def restore_tensor_device(self, non_blocking=True):
        pass


dist.init_process_group("gloo")
cycle = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
client = ft.RankMonitorClient()
client.init_workload_monitoring()
manager = LocalCheckpointManager(sys.argv[1])
latest = max(manager.find_latest(), 0)
weights = manager.load()[0].tensor if latest else torch.zeros(4)
for step in range(latest + 1, 7):
    client.send_heartbeat()
    weights = weights + step
    manager.save(Weights(weights.clone()), step, is_async=False)
    if (cycle, step) == (0, 3):
        os._exit(9)
print(
    json.dumps([cycle, latest, weights.tolist(), type(manager).__module__, type(client).__module__]),
    flush=True,
)
client.shutdown_workload_monitoring()
dist.destroy_process_group()
