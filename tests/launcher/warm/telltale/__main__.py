"""Tells what it sees before it imports anything else; in cycle 1 also after torch.

Arguments: which of the parts `start`, `torch`, `lightning` to tell. Each rank writes
`PART-CYCLE-RANK.json`, sorted, into $NOTES, and reports it on standard output. With `crash`, rank 1 fails in cycle 0.
"""

AT_FIRST = sorted(globals())
import sys  # noqa: E402 - what the namespace holds at first comes first

annotated: int = 1

if __package__:
    from . import interpreter, kernel, libraries, notes
else:
    import interpreter  # type: ignore[no-redef]
    import kernel  # type: ignore[no-redef]
    import libraries  # type: ignore[no-redef]
    import notes  # type: ignore[no-redef]

if __name__ == "__main__":
    if "start" in sys.argv:
        notes.write("start", interpreter.facts(globals(), AT_FIRST) | kernel.facts())
    if "torch" in sys.argv and notes.CYCLE == 1:
        notes.write("torch", libraries.facts() | interpreter.facts(globals(), AT_FIRST) | kernel.facts())
    if "lightning" in sys.argv and notes.CYCLE == 1:
        notes.write("lightning", libraries.lightning() | interpreter.streams())
    interpreter.tell_at_exit()
    notes.meet()
    if "crash" in sys.argv and notes.CYCLE == 0:
        if notes.RANK == 0:
            notes.wait()  # to be stopped: rank 1 alone ends as it likes
        sys.exit(3)
