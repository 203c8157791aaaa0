"""Finds and reads the ``fault_tolerance`` section of a YAML file.

The file is read as a tree of nodes and only the section itself becomes Python values. So errors can name the line,
a key that is given twice is noticed (YAML would silently keep the last), and the rest of the file, which belongs to
other programs and may use tags that only they know, is left alone. PyYAML is imported when a file is read, not
before: most jobs have none, and the launcher's start is measured.

Does not cover: the meaning of keys and values (`config`), and interpolation such as OmegaConf's ``${…}``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .config import FIELDS, SECTION
from .config_fields import nearest
from .errors import ConfigError

if TYPE_CHECKING:
    import os

    import yaml

__all__ = ["EmptyFile", "MissingSection", "YamlSection", "read_section"]


class MissingSection(ConfigError):
    """There is no such file, or no ``fault_tolerance`` section in it; ``--ft-ignore-missing-cfg`` forgives this."""


class EmptyFile(MissingSection):
    """The file has no content; beside settings on the command line this is forgiven."""


@dataclass(frozen=True)
class YamlSection:
    """The settings of one file as YAML gives them, unchecked, with the line of each key (from 1)."""

    path: str
    values: dict[str, Any]
    lines: dict[str, int]

    def where(self, name: str) -> str:
        """``"ft.yaml, line 3, rank_heartbeat_timeout"`` for errors."""
        line = self.lines.get(name)
        return f"{self.path}, line {line}, {name}" if line else f"{self.path}, {name}"


def read_section(path: str | os.PathLike[str]) -> YamlSection:
    """The ``fault_tolerance`` section of the YAML file at `path`.

    Raises `MissingSection`, and `ConfigError` for a file that cannot be read or understood, for several sections,
    and for a section that is not a mapping. Each is one line that names the file, and the line where there is one.
    """
    import yaml

    name = str(path)
    with _one_line_errors(name):
        loader = yaml.SafeLoader(_content(name))
        try:
            section = _find_section(loader.get_single_node(), name)
            _refuse_repeated_keys(section, name)
            lines = {key.value: key.start_mark.line + 1 for key, _ in _pairs(section)}
            return YamlSection(name, loader.construct_document(section) or {}, lines)
        finally:
            loader.dispose()


@contextlib.contextmanager
def _one_line_errors(path: str) -> Iterator[None]:
    import yaml

    try:
        yield
    except ConfigError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}, line {mark.line + 1}" if mark else path
        raise ConfigError(f"{place}: not valid YAML: {error.problem or error.context}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None
    except Exception as error:
        # PyYAML's constructors let through whatever Python raises: `!!int ''` is an IndexError, `!!bool x` a KeyError.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"{path}: not valid YAML: {reason}") from None


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise MissingSection(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path}: cannot be read: {reason}") from None


def _find_section(root: yaml.Node | None, path: str) -> yaml.Node:
    import yaml

    if root is None or _is_null(root):
        raise EmptyFile(f"{path}: the file is empty; expected a {SECTION!r} section")
    if not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        raise ConfigError(f"{path}: the file is {kind}; expected keys, with a {SECTION!r} section among them")
    found = list(_sections(root, set()))
    # Another program's `fault_tolerance: true` does not count beside a real section.
    real = [each for each in found if isinstance(each, yaml.MappingNode) or _is_null(each)]
    if len(real) > 1:
        lines = " and ".join(str(each.start_mark.line + 1) for each in real[:2])
        raise ConfigError(f"{path}: more than one {SECTION!r} section (see lines {lines}); keep one")
    if real:
        return real[0]
    if found:
        line = found[0].start_mark.line + 1
        raise ConfigError(f"{path}, line {line}: {SECTION!r} is not a section of settings (KEY: VALUE lines)")
    raise MissingSection(f"{path}: no {SECTION!r} section{_hint(root)}")


def _sections(node: yaml.Node, seen: set[int]) -> Iterator[yaml.Node]:
    """Every value of a key ``fault_tolerance`` below `node`, not searching inside those. Anchors may make cycles."""
    import yaml

    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _sections(item, seen)
    for key, value in _pairs(node):
        if key.value == SECTION:
            if id(value) not in seen:
                seen.add(id(value))
                yield value
        else:
            yield from _sections(value, seen)


def _pairs(node: yaml.Node) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    """Keys and values of a mapping; keys that are no plain words are not ours."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield key, value


def _is_null(node: yaml.Node) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")


def _hint(root: yaml.Node) -> str:
    keys = [key.value for key, _ in _pairs(root)]
    if any(key in FIELDS for key in keys):
        return f"; put the settings under {SECTION + ':'!r}"
    near = nearest(SECTION, keys)
    return f"; was it meant by {near!r}?" if near else ""


def _refuse_repeated_keys(section: yaml.Node, path: str) -> None:
    first: dict[str, int] = {}
    for key, value in _pairs(section):
        line = key.start_mark.line + 1
        if key.value in first and key.value != "<<":
            raise ConfigError(
                f"{path}, line {line}: {key.value!r} is given twice (see line {first[key.value]})"
            )
        first[key.value] = line
        _refuse_repeated_keys(value, path)
