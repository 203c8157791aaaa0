"""Checks of a node: GPUs, network cards, storage, the machine, and a command of the user's own.

`findings` has what a check tells, `checks` which of them apply and when each has to be done. Does not cover: what
follows from a finding, see `fault_tolerance.launcher.node_health`.
"""
