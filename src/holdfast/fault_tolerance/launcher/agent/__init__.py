"""One node's agent: cycle after cycle it starts the ranks, watches them, ends them, and says why."""
