"""Where the present code of warm start has passed its GPU checks. Written by `python -m tests.gpu.gpu_page`."""

PASSED = ""
"""GPU, driver, versions and date; empty if the checks have not passed, or if the code has changed since."""


def is_tested(driver: str) -> bool:
    """Whether warm start may be used by default with this driver ('' for none)."""
    return not driver or bool(PASSED)
