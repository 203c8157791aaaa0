"""Takes the evidence of a node's ranks: what their boards and the kernel say, and what they say themselves.

    node.py           all local ranks side by side, in time
    local_rank.py     a rank, and which process of it matters
    rank_look.py      one rank, part by part
    board_facts.py    a board's state and ring as facts. Pure
    process.py        /proc, sampled twice
    system_calls.py   what a process waits in, by name. Pure
    waiting_on.py     on which file, connection, lock or process
    children.py       processes below a rank
    network_files.py  files on network filesystems
    pyspy.py          stacks by py-spy
    kernel_log.py     what the kernel wrote since the cycle began
    memory.py         processes that were ended for want of memory
    core_dump.py      where a core dump is or goes
    asking.py, armed.py   what a rank tells itself, and who may be signalled for it
    gpu.py            what the driver says of the GPUs
    machine.py        what the machine says, all together
    kernel_file.py    small files of the kernel
    program.py        another program's answer, by a moment

What always holds: nothing here raises, and nothing waits beyond the moment that the caller names, whatever state a
rank is in. A rank is disturbed only where the caller asks for its stacks.
"""
