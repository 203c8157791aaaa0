"""Processes of this node as the kernel sees them: parents, start times, environments, and how to end them safely.

Nothing here imports torch. Nothing here signals a bare number: a signal goes through a pidfd after the
process behind it was checked (see :mod:`.kill`), because pids are recycled.
"""
