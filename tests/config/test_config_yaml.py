"""Finding the section in a YAML file, and one clear line for every file in which it cannot be found or read."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.fault_tolerance.config_yaml import MissingSection, read_section
from holdfast.fault_tolerance.errors import ConfigError


def written(folder: Path, content: str | bytes) -> str:
    path = folder / "ft.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize(
    "content",
    [
        "fault_tolerance:\n  safety_factor: 2\n",
        "other: 1\nmodel:\n  deep:\n    fault_tolerance: {safety_factor: 2}\n",
        "callbacks:\n  - name: x\n  - fault_tolerance:\n      safety_factor: 2\n",
        "a: &a {fault_tolerance: {safety_factor: 2}}\nb: *a\n",
        "a: &a\n  self: *a\n  fault_tolerance: {safety_factor: 2}\n",
        "base: &base {safety_factor: 2}\nfault_tolerance:\n  <<: *base\n",
        "features: {fault_tolerance: true}\nfault_tolerance: {safety_factor: 2}\n",
        "other: !some.program {x: 1}\nfault_tolerance: {safety_factor: 2}\n",
        "? [1, 2]\n: x\nfault_tolerance: {safety_factor: 2}\n",
    ],
)
def test_the_section_is_found(tmp_path: Path, content: str) -> None:
    assert read_section(written(tmp_path, content)).values == {"safety_factor": 2}


def test_an_empty_section_is_a_section(tmp_path: Path) -> None:
    assert read_section(written(tmp_path, "fault_tolerance:\n")).values == {}


def test_a_key_knows_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "# hello\nfault_tolerance:\n  safety_factor: 2\n")
    assert read_section(path).where("safety_factor") == f"{path}, line 3, safety_factor"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", ": the file is empty; expected a 'fault_tolerance' section"),
        ("model: 1\n", ": no 'fault_tolerance' section"),
        ("fault-tolerance: {}\n", ": no 'fault_tolerance' section; was it meant by 'fault-tolerance'?"),
        ("rank_heartbeat_timeout: 60\n", "; put the settings under 'fault_tolerance:'"),
    ],
)
def test_a_file_without_the_section(tmp_path: Path, content: str, said: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(MissingSection) as caught:
        read_section(path)
    assert str(caught.value).startswith(path)
    assert str(caught.value).endswith(said)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("- fault_tolerance: {safety_factor: 2}\n", "the file is a list"),
        ("just words\n", "the file is a single value"),
        ("fault_tolerance:\n  - 1\n", ", line 2: 'fault_tolerance' is not a section"),
        ("fault_tolerance: on\n", ", line 1: 'fault_tolerance' is not a section"),
        ("a:\n  fault_tolerance: {}\nb:\n  fault_tolerance: {}\n", "more than one 'fault_tolerance' section"),
        (
            "fault_tolerance:\n  safety_factor: 2\n  safety_factor: 3\n",
            ", line 3: 'safety_factor' is given twice",
        ),
        (
            "fault_tolerance:\n  rank_section_timeouts:\n    step: 1\n    step: 2\n",
            ", line 4: 'step' is given twice",
        ),
        ("fault_tolerance: {a\n", ", line 2: not valid YAML: "),
        ("a: [\n", ", line 2: not valid YAML: "),
        ("a: 1\n\tb: 2\n", ", line 2: not valid YAML: "),
        ("a: 1\n---\nb: 2\n", ", line 2: not valid YAML: "),
        ("fault_tolerance: {safety_factor: !!int ''}\n", "not valid YAML: "),
        ("fault_tolerance: {safety_factor: !!bool maybe}\n", "not valid YAML: "),
        ("fault_tolerance: {safety_factor: !unknown 1}\n", ", line 1: not valid YAML: "),
        ("fault_tolerance: {safety_factor: 2024-13-45}\n", "not valid YAML: "),
        ("a: " + "[" * 20000, "nested too deeply"),
        (b"a: \xff\xfe\x00", "not valid YAML: "),
        (b"\x00", "not valid YAML: "),
    ],
)
def test_a_file_that_cannot_be_understood(tmp_path: Path, content: str | bytes, said: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        read_section(path)
    assert str(caught.value).startswith(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(MissingSection, match=r"none\.yaml: no such file$"):
        read_section(tmp_path / "none.yaml")
    with pytest.raises(MissingSection, match=r"no such file$"):
        read_section(Path(written(tmp_path, "")) / "below-a-file.yaml")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_section(tmp_path)


def test_a_file_that_the_system_does_not_give() -> None:
    with pytest.raises(ConfigError, match=r"^/proc/self/mem: cannot be read: Input/output error"):
        read_section("/proc/self/mem")
