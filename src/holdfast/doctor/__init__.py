"""`holdfast doctor`: whether this machine can run a training under Holdfast, and warm start in it, and why not.

    finding.py       what a check says
    judgements/      from facts to findings. Pure
    looks/           the facts of this machine
    script.py        what can be said of one training script
    examination.py   all checks, in order
    looks_in_time.py the looks side by side
    table.py         findings as lines, and for JSON. Pure

What always holds: nothing is changed, nothing that was started is still there at the end, and a look that fails or
hangs costs its own lines only.

Does not cover: other nodes of a job, and the network between them.
"""
