"""What modules of the original say that Holdfast does not have."""

from __future__ import annotations


def not_offered(module: str, what: str, instead: str) -> ModuleNotFoundError:
    """To be raised when `module` is imported.

    The error has no `name`: of a module that is named, `from package import module` would hide the text.
    """
    return ModuleNotFoundError(
        f"{module}: Holdfast, which is installed as nvidia_resiliency_ext, does not offer {what}. Instead: {instead}"
    )
