"""``ft_launcher``: command line -> agent -> ranks; restarts, signals, exit codes. A drop-in for ``torchrun``."""
