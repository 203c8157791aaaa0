"""Settings of other releases: accepted in every spelling, checked, and reported in at most two lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.fault_tolerance.config_fields import Given, parse_with
from holdfast.fault_tolerance.config_sources import load
from holdfast.fault_tolerance.errors import ConfigError
from holdfast.fault_tolerance.launcher.command_line.ft_options import OPTIONS, reports
from tests.config.settings_of_releases import HERE, NEEDED, SETTINGS, VARIABLE, Setting, flags, variables

BY_NAME = {name: option for option in OPTIONS for name in option.names}
KEYS = [each for each in SETTINGS if each.is_key]


def written(folder: Path, values: object) -> str:
    path = folder / "ft.yaml"
    path.write_text(yaml.safe_dump({"fault_tolerance": values}))
    return str(path)


def shown(setting: Setting) -> str:
    return setting.name if setting.is_key else f"--ft-{setting.name.replace('_', '-')}"


def reported(values: Mapping[str, object]) -> str:
    return "\n".join(reports(values))


def test_table_has_every_setting_of_the_frozen_list() -> None:
    without_effect = {each.name: each for each in SETTINGS if not each.is_effective}
    assert {each.key for each in OPTIONS if each.no_effect} == set(without_effect) | {"gpus_per_numa"}
    keys = {each.key for each in OPTIONS if each.no_effect and each.is_setting}
    assert keys == {name for name, each in without_effect.items() if each.is_key}


def test_every_flag_is_accepted_and_reported() -> None:
    options = BY_NAME
    for setting in SETTINGS:
        default, other = setting.values[:2]
        for flag in flags(setting):
            option = options[flag[2:].replace("_", "-")]
            assert option.key == (setting.key or setting.name), flag
            assert option.is_boolean is isinstance(default, bool), flag
            parse = option.parse
            if default is not None:
                assert reported({setting.name: parse(str(default))}) == "", flag
            text = reported({setting.name: parse(str(other))})
            assert setting.message in text, flag
            assert (shown(setting) in text) is bool(setting.message), flag


def test_every_variable_is_accepted() -> None:
    known = {name for option in OPTIONS for name in option.variables}
    for setting in SETTINGS:
        for variable in variables(setting):
            assert variable in known
            if setting.is_key:
                found = load({}, {variable: str(setting.values[1])})
                assert found.origins[setting.name] == f"env {variable}"
                assert getattr(found.config, setting.name) == setting.values[1]
                assert load({}, {variable: ""}).config == FaultToleranceConfig()


def test_every_key_is_accepted_in_yaml(tmp_path: Path) -> None:
    path = written(tmp_path, {each.name: each.values[1] for each in KEYS})
    found = load({}, {}, path)
    for setting in KEYS:
        assert getattr(found.config, setting.name) == setting.values[1]
        assert found.origins[setting.name] == f"yaml {path}"
    path = written(tmp_path, {each.name: each.values[0] for each in KEYS})
    assert reports(vars(load({}, {}, path).config)) == []


def test_wrong_type_is_refused_in_one_line(tmp_path: Path) -> None:
    for setting in SETTINGS:
        flag, variable = flags(setting)[0], variables(setting)[0]
        for value in setting.values[2:]:
            if setting.is_key:
                with pytest.raises(ConfigError) as caught:
                    load({}, {}, written(tmp_path, {setting.name: value}))
                where = f"{tmp_path}/ft.yaml, line 2, {setting.name}: {value!r}"
                assert str(caught.value).startswith(f"{where} is not allowed: give ")
            if value == 5:  # on the command line it is a text
                continue
            with pytest.raises(ConfigError) as caught:
                parse_with(BY_NAME[flag[2:]].parse, str(value), flag)
            assert str(caught.value).startswith(f"{flag}: '{value}' is not allowed: give ")
            if setting.is_key:
                with pytest.raises(ConfigError, match=f"^{variable}: "):
                    load({}, {variable: str(value)})
                with pytest.raises(ConfigError, match=f"^{flag}: "):
                    load({setting.name: Given(str(value), flag)}, {})


def test_all_settings_are_reported_in_one_line() -> None:
    (here,) = reports({**{each.name: each.values[1] for each in SETTINGS}, "gpus_per_numa": 4})
    for setting in SETTINGS:
        if setting.message != NEEDED:
            assert here.count(f" {shown(setting)}") >= 1
    assert HERE in here and "\n" not in here
    assert VARIABLE in here


def test_reason_is_given_once_for_several_settings() -> None:
    (line,) = reports({"enable_log_server": True, "log_server_port": 1, "rdzv_impl": "legacy"})
    assert line.startswith("accepted, no effect here: --ft-rdzv-impl (")
    assert "; --ft-enable-log-server, --ft-log-server-port (" in line
    assert line.count("(") == 2


def test_later_settings_at_default_are_not_written() -> None:
    """NVRx 0.4 reads the file that Holdfast writes."""
    values = FaultToleranceConfig(segment=4, min_progress_iterations=2).to_dict()
    assert (values["segment"], values["min_progress_iterations"]) == (4, 2)
    assert "enable_nic_monitor" in values
    assert not values.keys() & {"skip_section_response", "max_no_progress_cycles", "num_warmup_iterations"}
