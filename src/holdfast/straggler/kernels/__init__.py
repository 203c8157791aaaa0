"""Where the times of GPU kernels come from: `source` is the interface, `choose` picks one of the others."""
