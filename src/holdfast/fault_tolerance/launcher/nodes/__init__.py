"""The job over its nodes: who takes part in a cycle, why it began, who is gone, where the ranks meet."""
