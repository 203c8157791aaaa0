"""Answers imports of `nvidia_resiliency_ext` with Holdfast, and leaves the rest to the original if it is installed.

Python imports `holdfast_nvrx_start` at its start, by holdfast_nvrx.pth, which puts the finder into `sys.meta_path`.

    answers    which finder answers for which module
    names      the names of Holdfast under the names of the original's modules
    modules/   modules that are more than names

Not NVIDIA's package. docs/drop-in.md is for users.
"""
