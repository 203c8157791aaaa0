"""Learned limits of a job: when they may be learned, by all ranks or by none, and the file that keeps them.

For the integrations; a program of its own has the client's methods. Nothing here needs a framework, or torch to import.
"""
