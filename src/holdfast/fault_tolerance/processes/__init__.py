"""Processes of this node as the kernel sees them: who is whose child, who is whom, and how to end them safely.

Nothing here imports torch. Nothing here signals a bare number: a signal goes through a pidfd after the
process behind it was checked (see :mod:`.pidfd`), because pids are recycled.
"""
