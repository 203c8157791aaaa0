"""Preemption of a training, whatever framework runs it: notices by signal, where all its ranks stop, the time left,
data loader workers that stay. Nothing here needs a framework, or torch to import.
"""
