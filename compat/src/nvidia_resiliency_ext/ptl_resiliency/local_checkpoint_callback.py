"""Local checkpoints with Lightning: not offered."""

from nvidia_resiliency_ext._not_offered import not_offered

raise not_offered(
    __name__,
    "local checkpoints",
    "Lightning's ModelCheckpoint, on a disk that outlives the node",
)
