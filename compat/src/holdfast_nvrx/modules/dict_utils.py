"""The two functions on nested dicts and lists that programs import from here; NeMo calls the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["dict_list_map_inplace", "dict_list_map_outplace"]


def dict_list_map_inplace(f: Callable[[Any], Any], x: Any) -> Any:
    """Put `f` of each leaf in its place. Dicts and lists stay the objects they are; a leaf alone gives `f` of it."""
    if not isinstance(x, (dict, list)):
        return f(x)
    for key, value in x.items() if isinstance(x, dict) else enumerate(x):
        x[key] = dict_list_map_inplace(f, value)
    return x


def dict_list_map_outplace(f: Callable[[Any], Any], x: Any) -> Any:
    """New dicts and lists with `f` of each leaf."""
    if isinstance(x, dict):
        return {key: dict_list_map_outplace(f, value) for key, value in x.items()}
    if isinstance(x, list):
        return [dict_list_map_outplace(f, value) for value in x]
    return f(x)
