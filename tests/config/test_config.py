"""The dataclass: documented fields, defaults and docstring, normalised types, round trips, NVRx's constructors."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.fault_tolerance.config import SETTINGS, FaultToleranceConfig, attributes, make_option
from holdfast.fault_tolerance.errors import ConfigError, HoldfastError
from tests.config.settings_of_releases import SETTINGS as RELEASED

OF_0_4 = [
    "node_health_check_interval",
    "restart_check_interval",
    "enable_nic_monitor",
    "pci_topo_file",
    "link_down_path_template",
]
DOCUMENTED = {
    "workload_check_interval": 5.0,
    "initial_rank_heartbeat_timeout": 3600.0,
    "rank_heartbeat_timeout": 2700.0,
    "rank_section_timeouts": {},
    "rank_out_of_section_timeout": None,
    "node_health_check_interval": 5.0,
    "safety_factor": 5.0,
    "rank_termination_signal": signal.SIGKILL,
    "log_level": logging.INFO,
    "restart_check_interval": 60.0,
    "enable_nic_monitor": False,
    "pci_topo_file": None,
    "link_down_path_template": None,
    **{each.name: each.values[0] for each in RELEASED if each.is_key and each.name not in OF_0_4},
}

TIMES = st.floats(min_value=1e-6, max_value=1e9)
NAMES = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1).map(str.strip).filter(bool)
WORDS = NAMES.filter(lambda word: word.lower() not in ("none", "null"))
CONFIGS = st.builds(
    FaultToleranceConfig,
    workload_check_interval=TIMES,
    initial_rank_heartbeat_timeout=st.none() | TIMES,
    rank_heartbeat_timeout=st.none() | TIMES,
    rank_section_timeouts=st.dictionaries(NAMES, st.none() | TIMES, max_size=5),
    rank_out_of_section_timeout=st.none() | TIMES,
    node_health_check_interval=TIMES,
    safety_factor=TIMES,
    rank_termination_signal=st.sampled_from(list(signal.Signals)),
    log_level=st.integers(10, 50),
    restart_check_interval=TIMES,
    enable_nic_monitor=st.booleans(),
    pci_topo_file=st.none() | WORDS,
    link_down_path_template=st.none() | st.just("/sys/{dev_name}/down"),
    skip_section_response=st.booleans(),
    segment=st.none() | st.integers(1, 10**6),
    gpu_memory_tolerance_mb=st.just(0.0) | TIMES,
    storage_healthcheck_path=st.none() | st.just("/data,/home"),
)


def test_fields_and_defaults_are_the_documented_ones() -> None:
    config = FaultToleranceConfig()
    found = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    assert found == DOCUMENTED
    assert list(found) == list(DOCUMENTED) == list(SETTINGS)


def test_two_configs_do_not_share_their_sections() -> None:
    FaultToleranceConfig().rank_section_timeouts["step"] = 1.0
    assert FaultToleranceConfig().rank_section_timeouts == {}


def test_values_get_their_proper_types() -> None:
    config = FaultToleranceConfig(
        rank_termination_signal="sigterm",  # type: ignore[arg-type]
        log_level="DBG",  # type: ignore[arg-type]
        rank_heartbeat_timeout="60",  # type: ignore[arg-type]
        safety_factor=3,
    )
    assert config.rank_termination_signal is signal.SIGTERM
    assert config.log_level == logging.DEBUG
    assert config.rank_heartbeat_timeout == 60.0
    assert isinstance(config.safety_factor, float)


def test_a_wrong_value_names_field_value_and_rule() -> None:
    with pytest.raises(ConfigError) as caught:
        FaultToleranceConfig(rank_heartbeat_timeout=-1)
    assert str(caught.value) == (
        "rank_heartbeat_timeout: -1 is not allowed: give a number of seconds greater than 0, or None for no limit"
    )
    assert issubclass(ConfigError, HoldfastError)
    assert issubclass(ConfigError, ValueError)


def test_unknown_names_are_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    config = FaultToleranceConfig.from_kwargs(rank_heartbeat_timeout=60, rank_hartbeat_timeout=1)
    assert config.rank_heartbeat_timeout == 60.0
    assert "no setting 'rank_hartbeat_timeout'; did you mean 'rank_heartbeat_timeout'?" in caplog.text


def test_unknown_names_are_refused_on_request() -> None:
    with pytest.raises(ConfigError, match="did you mean 'rank_heartbeat_timeout'"):
        FaultToleranceConfig.from_kwargs(ignore_not_recognized=False, rank_hartbeat_timeout=1)
    with pytest.raises(ConfigError, match="there are workload_check_interval, "):
        FaultToleranceConfig.from_kwargs(False, xyzzy=1)


@settings(max_examples=25)
@given(CONFIGS)
def test_a_config_survives_json_and_yaml(config: FaultToleranceConfig) -> None:
    assert FaultToleranceConfig.from_kwargs(False, **json.loads(json.dumps(config.to_dict()))) == config
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ft.yaml"
        config.to_yaml_file(path)
        assert FaultToleranceConfig.from_yaml_file(path, ignore_not_recognized=False) == config


def test_a_field_assigned_later_is_normalised_when_written() -> None:
    config: Any = FaultToleranceConfig()
    config.rank_termination_signal = "SIGTERM"
    config.log_level = "WARN"
    assert config.to_dict()["rank_termination_signal"] == "SIGTERM"
    assert config.to_dict()["log_level"] == "WARNING"


def test_from_yaml_file_ignores_or_refuses_unknown_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ft.yaml"
    path.write_text("fault_tolerance:\n  safety_factor: 2\n  saftey_factor: 3\n")
    assert FaultToleranceConfig.from_yaml_file(str(path)).safety_factor == 2.0
    assert f"{path}, line 3, saftey_factor: there is no setting" in caplog.text
    with pytest.raises(ConfigError, match="did you mean 'safety_factor'"):
        FaultToleranceConfig.from_yaml_file(path, ignore_not_recognized=False)


def test_from_args_merges_file_and_arguments(tmp_path: Path) -> None:
    path = tmp_path / "ft.yaml"
    path.write_text("fault_tolerance: {safety_factor: 2, rank_heartbeat_timeout: 60}\n")
    args = argparse.Namespace(
        ft_cfg_path=str(path),
        ft_rank_heartbeat_timeout="None",
        ft_param_log_level="DBG",
        ft_safety_factor=None,
    )
    config = FaultToleranceConfig.from_args(args)
    assert config.rank_heartbeat_timeout is None
    assert config.safety_factor == 2.0
    assert config.log_level == logging.DEBUG


def test_importing_the_config_is_cheap_and_needs_no_docstrings() -> None:
    code = (
        "import sys, holdfast.fault_tolerance.config, holdfast.fault_tolerance.config_sources\n"
        "print(*{'torch', 'numpy', 'yaml', 'rich', 'pydantic'} & set(sys.modules))\n"
        "print(holdfast.fault_tolerance.FaultToleranceConfig().safety_factor)"
    )
    done = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n5.0\n", "")


def items() -> dict[str, str]:
    """Each item of the docstring on one line."""
    doc = FaultToleranceConfig.__doc__ or ""
    section = doc.partition("\nAttributes:\n")[2].partition("\n\n")[0]
    parts = re.split(r"^    (\w+) \(.*?\): ", re.sub(r"\n {8}", " ", section), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))


def test_docstring_describes_every_field() -> None:
    assert list(items()) == list(SETTINGS)


def test_docstring_follows_a_new_field() -> None:
    """It is made from the metadata: a setting that is added needs no second text."""
    new = make_option("tolerance", 512, int, "MB", "memory that may stay in use", group="")
    assert attributes({"tolerance": new}, {"tolerance": "int"}) == (
        "Attributes:\n    tolerance (int): memory that may stay in use. Unit: MB. Default: 512."
    )
