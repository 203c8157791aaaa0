"""docs/configuration.md names only what there is, and its examples work."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.fault_tolerance.launcher.command_line.ft_options import OPTIONS
from holdfast.fault_tolerance.launcher.command_line.options import Vocabulary, scan

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_every_flag_and_variable_on_the_page_exists() -> None:
    known = Vocabulary()
    for name in set(re.findall(r"--([a-z][a-z_-]+)", PAGE)) - {"log", "lr"}:
        if not name.endswith("-"):
            known.find(name)
    assert set(re.findall(r"\bPET_[A-Z_]+[A-Z]\b", PAGE)) <= {
        name for option in OPTIONS for name in option.variables
    }


def test_the_yaml_example_works(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "ft.yaml").write_text(example)
    config = FaultToleranceConfig.from_yaml_file(tmp_path / "ft.yaml", ignore_not_recognized=False)
    assert config.rank_section_timeouts == {"setup": 600.0, "step": 180.0, "checkpointing": 420.0}


def test_the_command_lines_work() -> None:
    for line in re.findall(r"^\$ ft_launcher (.*)$", PAGE, re.MULTILINE):
        assert scan(line.split(), Vocabulary()).script == "train.py"
