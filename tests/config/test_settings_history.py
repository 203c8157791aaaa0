"""Settings of other releases: accepted in every spelling, checked, and reported in at most two lines."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.fault_tolerance.errors import ConfigError
from holdfast.fault_tolerance.launcher.command_line.options import parse, read
from holdfast.fault_tolerance.settings_history import HISTORY
from tests.config.settings_of_releases import HERE, NEEDED, SETTINGS, VARIABLE, YET, Setting, flags, variables

KEYS = [each for each in SETTINGS if each.is_key]
BOOLEANS = [each for each in SETTINGS if isinstance(each.values[0], bool)]
WRONG = [(each, value) for each in SETTINGS for value in each.values[2:]]


def named(each: object) -> str | None:
    return each.name if isinstance(each, Setting) else None


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PET_", "FAULT_TOL_", "NVRX_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)\n")


def in_yaml(setting: Setting, value: object) -> list[str]:
    Path("ft.yaml").write_text(yaml.safe_dump({"fault_tolerance": {setting.name: value}}))
    return ["--ft-cfg-path=ft.yaml", "train.py"]


def shown(setting: Setting) -> str:
    return setting.name if setting.is_key else f"--ft-{setting.name.replace('_', '-')}"


def test_table_has_every_setting_of_the_frozen_list() -> None:
    assert set(HISTORY) == {each.name for each in SETTINGS} | {"gpus_per_numa"}
    assert {each.name for each in HISTORY.values() if each.is_key} == {each.name for each in KEYS}


@pytest.mark.parametrize("setting", SETTINGS, ids=named)
def test_flag_in_every_spelling_is_accepted(setting: Setting) -> None:
    for flag in flags(setting):
        default, other = setting.values[:2]
        assert read([f"{flag}={default}", "train.py"], {}).warnings == () or default is None
        (warning,) = read([flag, str(other), "train.py"], {}).warnings or ("",)
        assert setting.message in warning
        assert (shown(setting) in warning) is bool(setting.message)


@pytest.mark.parametrize("setting", SETTINGS, ids=named)
def test_variable_in_every_spelling_is_accepted(setting: Setting) -> None:
    for variable in variables(setting):
        (warning,) = read(["train.py"], {variable: str(setting.values[1])}).warnings or ("",)
        assert setting.message in warning
        assert read(["train.py"], {variable: ""}).warnings == ()


@pytest.mark.parametrize("setting", KEYS, ids=named)
def test_key_is_accepted_in_yaml(setting: Setting) -> None:
    default, other = setting.values[:2]
    assert read(in_yaml(setting, default), {}).warnings == ()
    found = read(in_yaml(setting, other), {})
    assert getattr(found.resolved.config, setting.name) == other
    assert found.resolved.origins[setting.name] == "yaml ft.yaml"
    (warning,) = found.warnings or ("",)
    assert setting.message in warning


@pytest.mark.parametrize("setting", KEYS, ids=named)
def test_key_is_a_field_with_the_default(setting: Setting) -> None:
    default, other = setting.values[:2]
    assert getattr(FaultToleranceConfig(), setting.name) == default
    config = FaultToleranceConfig(**{setting.name: other})  # type: ignore[arg-type]
    assert getattr(config, setting.name) == other
    assert FaultToleranceConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(("setting", "value"), WRONG, ids=named)
def test_wrong_type_is_refused_in_one_line(
    setting: Setting, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    flag, variable = flags(setting)[0], variables(setting)[0]
    given: list[tuple[list[str], dict[str, str], str]] = []
    if isinstance(value, str) or value != 5:  # 5 on the command line is a text
        given += [
            ([f"{flag}={value}", "train.py"], {}, f"{flag}: '{value}'"),
            (["train.py"], {variable: str(value)}, f"{variable}: '{value}'"),
        ]
    if setting.is_key:
        given.append((in_yaml(setting, value), {}, f"ft.yaml, line 2, {setting.name}: {value!r}"))
    for argv, environ, said in given:
        with pytest.raises(SystemExit) as caught:
            parse(argv, environ)
        err = capsys.readouterr().err
        assert (caught.value.code, err.count("\n")) == (2, 1)
        assert err.startswith(f"ft_launcher: error: {said} is not allowed: give ")


@pytest.mark.parametrize("setting", BOOLEANS, ids=named)
def test_boolean_flag_may_stand_alone(setting: Setting) -> None:
    flag = flags(setting)[0]
    bare = read([flag, "train.py", "false"], {})
    assert bare.torch.training_script_args == ["false"]
    assert bare.warnings == read([f"{flag}=true", "train.py"], {}).warnings
    assert read([flag, "False", "train.py"], {}).warnings == read([f"{flag}=no", "train.py"], {}).warnings
    assert read([flag, "--max-restarts=1", "train.py"], {}).torch.max_restarts == 1


def test_all_settings_are_reported_in_two_lines() -> None:
    values = {each.name: each.values[1] for each in KEYS}
    Path("ft.yaml").write_text(yaml.safe_dump({"fault_tolerance": values}))
    only_flags = [f"{flags(each)[0]}={each.values[1]}" for each in SETTINGS if not each.is_key]
    found = read(["--ft-cfg-path=ft.yaml", *only_flags, "train.py"], {VARIABLE: "4"}).warnings
    yet, here = found
    for setting in SETTINGS:
        if setting.message != NEEDED:
            line = yet if setting.message == YET else here
            assert line.count(f" {shown(setting)}") >= 1
    assert YET in yet
    assert HERE in here
    assert VARIABLE in here
    assert all("\n" not in line for line in found)


def test_reason_is_given_once_for_several_settings() -> None:
    argv = ["--ft-enable-log-server", "--ft-log-server-port=1", "--ft-rdzv-impl=legacy", "train.py"]
    (line,) = read(argv, {}).warnings
    assert line.startswith("accepted, no effect here: --ft-rdzv-impl (")
    assert "; --ft-enable-log-server, --ft-log-server-port (" in line
    assert line.count("(") == 2


def test_variable_without_flag_is_checked() -> None:
    assert read(["train.py"], {VARIABLE: ""}).warnings == ()
    with pytest.raises(ConfigError, match=f"^{VARIABLE}: 'x' is not allowed: give "):
        read(["train.py"], {VARIABLE: "x"})


def test_unknown_key_offers_a_setting_of_another_release() -> None:
    Path("ft.yaml").write_text("fault_tolerance: {skip_section_responce: true}\n")
    with pytest.raises(ConfigError, match="did you mean 'skip_section_response'"):
        read(["--ft-cfg-path=ft.yaml", "train.py"], {})


def test_later_settings_at_default_are_not_written(tmp_path: Path) -> None:
    """NVRx 0.4 reads the file that Holdfast writes."""
    written = FaultToleranceConfig(segment=4).to_dict()
    assert written["segment"] == 4
    assert "enable_nic_monitor" in written
    assert "skip_section_response" not in written


def test_both_placeholders_of_a_template_are_accepted() -> None:
    for key in ("link_down_path_template", "link_state_path_template"):
        for path in ("/sys/{nic}/x", "/sys/{dev_name}/x", "/sys/{dev_name}/{nic}"):
            config = read([f"--ft-{key}={path}", "train.py"], {}).resolved.config
            assert getattr(config, key) == path
