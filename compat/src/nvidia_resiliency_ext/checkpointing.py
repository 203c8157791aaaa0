"""Local and asynchronous checkpoints: not offered."""

from nvidia_resiliency_ext._not_offered import not_offered

raise not_offered(
    __name__,
    "local and asynchronous checkpointing",
    "torch.distributed.checkpoint (save, async_save), and holdfast.checkpoints to find the last complete checkpoint",
)
