"""Where this code of warm start has passed its checks on a GPU. Written by `python -m tests.gpu.page`."""

PASSED = ""
"""The GPU, driver, torch and day; empty as long as it has passed nowhere, or was changed since."""
