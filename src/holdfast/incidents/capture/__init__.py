"""Takes the evidence of a node's ranks: from their boards, from the kernel, and from the ranks themselves.

Always holds: nothing here raises, and nothing waits beyond the moment that the caller names, whatever state a rank is
in. A rank is interrupted only where the caller asks for its stacks.
"""
