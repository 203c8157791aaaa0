"""`make faults`: the corpus of faults. Each one happens in a real job, and the verdict is compared with its label.

A label, the ground truth, is written next to the action that causes the fault, before any rule is run on it (`ends`,
`hangs`, `waits`, `groups`, `healthy`, and `third_set` to `eighth_set`). `program` is the job, `program_2` to
`program_10` are other ones; `run` runs a scenario under a launcher; `score` compares.
Does not cover: two faults at a time, GPUs.
"""
