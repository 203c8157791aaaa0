"""Takes the evidence of a node's ranks: from their boards, from the kernel, and from the ranks themselves.

    context.py         which part of which job it is, and why evidence is taken
    capture.py         all local ranks, in time; the file that has evidence and judgement
    rank_probe.py      one rank, part by part, and which of its processes matters
    procfs.py          files of /proc: threads and children sampled twice, files on network filesystems
    waiting_on.py      the system call that a rank waits in, and the object
    stack_request.py   stacks and collectives from the rank itself, and stacks by a signal
    py_spy.py          stacks by py-spy
    host.py            faults of the node: memory that ran out, the kernel's log, GPUs; core dumps

Always holds: nothing here raises, and nothing waits beyond the moment that the caller names, whatever state a rank is
in. A rank is interrupted only where the caller asks for its stacks.
"""
