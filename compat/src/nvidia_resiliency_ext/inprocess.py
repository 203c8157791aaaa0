"""Restart within the process: not offered."""

from nvidia_resiliency_ext._not_offered import not_offered

raise not_offered(
    __name__,
    "restarts within the process",
    "start the training with ft_launcher, which restarts its ranks within the job",
)
