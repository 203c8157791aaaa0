"""Where the present code of warm start has passed its GPU checks. Written by `python -m tests.gpu.gpu_page`."""

PASSED = (
    "NVIDIA H100 80GB HBM3, driver 580.159.04, torch 2.11.0+cu130 (CUDA 13.0), Python 3.12.3, "
    "2026-11-27, commit b1a9a584"
)
"""GPU, driver, versions and date; empty if the checks have not passed, or if the code has changed since."""


def is_tested(driver: str) -> bool:
    """Whether warm start may be used by default with this driver ('' for none)."""
    return not driver or bool(PASSED)
