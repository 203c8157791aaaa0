"""The ranks of one node: their processes, environment, boards, how they ended, and what they left behind."""
