"""`holdfast doctor`: whether this machine can run a training under Holdfast, and with a warm start.

Always holds: nothing is changed, every process that was started has ended, and a check that fails or blocks costs
only its own line.
Does not cover: other nodes of a job, and the network between them.
"""
