"""Where the times of GPU kernels come from.

    source      the interface of a source, and the source for machines without one

Import from the modules; this package itself imports nothing.
"""
