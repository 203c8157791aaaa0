"""The dataclass and the grammar of its values: documented fields, defaults and docstring, types, round trips."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance import config_fields as grammar
from holdfast.fault_tolerance.config import ABSOLUTE_PATHS, SETTINGS, TEMPLATE, FaultToleranceConfig
from holdfast.fault_tolerance.errors import ConfigError, HoldfastError
from holdfast.fault_tolerance.launcher.command_line.ft_options import SOCKET

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


def test_every_setting_is_a_field_that_the_docstring_describes() -> None:
    """docs/reference/settings.md has the defaults, and tests/house compares them."""
    assert [field.name for field in dataclasses.fields(FaultToleranceConfig)] == list(SETTINGS)
    described = re.findall(r"^    (\w+) \(", FaultToleranceConfig.__doc__ or "", re.MULTILINE)
    assert described == list(SETTINGS)


def test_a_wrong_value_names_field_value_and_rule() -> None:
    with pytest.raises(ConfigError) as caught:
        FaultToleranceConfig(rank_heartbeat_timeout=-1)
    assert str(caught.value) == (
        "rank_heartbeat_timeout: -1 is not allowed: give a number of seconds greater than 0, or None for no limit"
    )
    assert issubclass(ConfigError, HoldfastError) and issubclass(ConfigError, ValueError)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"rank_hartbeat_timeout": 1},
            "no setting 'rank_hartbeat_timeout'; did you mean 'rank_heartbeat_timeout'?",
        ),
        ({"xyzzy": 1}, "there are workload_check_interval, "),
        ({"restart_policy": "min-healthy"}, "use any-failed"),
    ],
)
def test_an_unknown_setting_is_a_warning_or_refused(
    wrong: dict[str, object], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert FaultToleranceConfig.from_kwargs(safety_factor=2, **wrong).safety_factor == 2.0
    assert said in caplog.text
    with pytest.raises(ConfigError) as caught:
        FaultToleranceConfig.from_kwargs(ignore_not_recognized=False, **wrong)
    assert said in str(caught.value)


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


def test_importing_the_config_is_cheap_and_needs_no_docstrings() -> None:
    code = (
        "import sys, holdfast.fault_tolerance.config, holdfast.fault_tolerance.config_sources\n"
        "print(*{'torch', 'numpy', 'yaml', 'rich', 'pydantic'} & set(sys.modules))\n"
        "print(holdfast.fault_tolerance.FaultToleranceConfig().safety_factor)"
    )
    done = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n5.0\n", "")


# -- the grammar of one value, for text, YAML's types and Python's


Parse = Callable[[Any], object]
SIXTY: list[Any] = ["60", " 60 ", "60.0", "6e1", 60, 60.0]
NOTHING: list[Any] = [None, "None", "none", "NONE", "null", "Null", "", "  "]
SIGTERMS: list[Any] = [signal.SIGTERM, 15, "15", "SIGTERM", "sigterm", "TERM", " SIGTERM "]


@pytest.mark.parametrize(
    ("parse", "values", "meant"),
    [
        (grammar.limit, SIXTY, 60.0),
        (grammar.seconds, SIXTY, 60.0),
        (grammar.limit, NOTHING, None),
        (grammar.sections, NOTHING, {}),
        (grammar.text, NOTHING, None),
        (
            grammar.sections,
            ["setup:600, step:180.5 ,checkpointing:None"],
            {"setup": 600.0, "step": 180.5, "checkpointing": None},
        ),
        (grammar.signal_of, SIGTERMS, signal.SIGTERM),
        (grammar.log_level, ["DBG", "debug"], logging.DEBUG),
        (grammar.log_level, ["info", 20], logging.INFO),
        (grammar.log_level, ["WARN", "WARNING"], logging.WARNING),
        (grammar.log_level, ["error"], logging.ERROR),
        (grammar.log_level, ["FATAL"], logging.CRITICAL),
        (grammar.log_level, ["35"], 35),
        (grammar.boolean, ["Yes", 1, "on"], True),
        (grammar.boolean, ["0", False], False),
        (grammar.amount, ["0", 0], 0.0),
        (grammar.amount, ["1.5"], 1.5),
        (grammar.whole(1, 255), ["1", 1], 1),
        (grammar.whole(1, 255), [255], 255),
        (grammar.optional(grammar.whole(1)), [" 7 ", 7], 7),
        (grammar.optional(grammar.whole(1)), ["None"], None),
        (grammar.restart_policy, ["any_failed"], "any-failed"),
        (TEMPLATE, ["None"], None),
        (TEMPLATE, ["/sys/{dev_name}/down"], "/sys/{dev_name}/down"),
        (TEMPLATE, ["/sys/{nic}/{dev_name}"], "/sys/{nic}/{dev_name}"),
        (SOCKET, ["/run/x.sock"], "/run/x.sock"),
        (SOCKET, ["unix:///run/x.sock"], "unix:///run/x.sock"),
        (ABSOLUTE_PATHS, ["/data, /home"], "/data, /home"),
        (ABSOLUTE_PATHS, ["none"], None),
    ],
)
def test_value_that_is_allowed(parse: Parse, values: list[Any], meant: object) -> None:
    for value in values:
        found = parse(value)
        assert found == meant and type(found) is type(meant), value


NO_TIMES: list[Any] = [0, 0.0, -1, "-1", "0", "abc", "nan", "inf", "-inf", math.nan, math.inf, True, False]
NO_TIMES += [[1], {}, b"1", "60s"]
NO_SIGNALS: list[Any] = ["SIGFOO", "FOO", "", "4711", 0, -9, 4711, True, None, 9.0, [9]]


@pytest.mark.parametrize(
    ("parse", "values", "said"),
    [
        (grammar.limit, NO_TIMES, "greater than 0"),
        (grammar.seconds, NO_TIMES, "greater than 0"),
        (grammar.factor, NO_TIMES, "greater than 0"),
        (grammar.seconds, [None], r"greater than 0$"),
        (grammar.factor, [None], r"greater than 0$"),
        (grammar.limit, ["1e12", 10**30, 10**400, "9" * 400], "seconds"),  # beyond any timer
        (grammar.sections, ["step:"], "section 'step' has no limit; write step:180 or step:None"),
        (grammar.sections, ["step"], "'step' is not NAME:SECONDS"),
        (grammar.sections, ["step:180,"], "'' is not NAME:SECONDS"),
        (grammar.sections, [":180"], "a section's name is a word"),
        (grammar.sections, ["step:abc"], "section 'step' has 'abc': give a number of seconds"),
        (grammar.sections, ["step:nan"], "section 'step' has 'nan'"),
        (grammar.sections, ["step:-1"], "section 'step' has '-1'"),
        (grammar.sections, ["step:1,step:2"], "section 'step' is given twice"),
        (grammar.sections, [{"step": 0}], "section 'step' has 0"),
        (grammar.sections, [{"step": [1]}], "section 'step' has"),
        (grammar.sections, [{3: 5}], "a section's name is a word, not 3"),
        (grammar.sections, [["step"], 5], "section names with their limits"),
        (grammar.signal_of, NO_SIGNALS, "signal"),
        (grammar.signal_of, ["SIGTREM"], "did you mean SIGTERM"),
        (grammar.log_level, ["LOUD", "", None, True, 0, 60, "9", 20.0], "DEBUG"),
        (grammar.boolean, ["maybe", "", None, 2, 1.0], "true or false"),
        (grammar.amount, ["-1", -0.5, "nan", "inf", "x", True, None, [1]], "give a number, 0 or greater"),
        (
            grammar.whole(1, 255),
            ["0", 256, "-1", 1.0, "1.0", "x", True, "²", None, [1]],
            "give a whole number from 1 to 255",
        ),
        (grammar.optional(grammar.whole(1)), ["0"], "at least 1"),
        (grammar.restart_policy, ["min-healthy"], "would hang; use any-failed, "),
        (grammar.restart_policy, ["some-failed"], "give any-failed"),
        (
            TEMPLATE,
            ["/sys/down", "/sys/{dev_name}/{port}", "/sys/{nic", "/sys/{}", 5],
            r"contains \{dev_name\} or \{nic\}, and no other placeholder",
        ),
        (ABSOLUTE_PATHS, ["data", "/data,", "/data,home", 5], "give "),
        (SOCKET, ["http://host:1"], "path of a socket"),
    ],
)
def test_value_that_is_refused(parse: Parse, values: list[Any], said: str) -> None:
    for value in values:
        with pytest.raises(ValueError, match=said):
            parse(value)


@given(st.floats(min_value=1e-9, max_value=grammar.LONGEST))
def test_a_number_survives_its_text(number: float) -> None:
    assert grammar.limit(repr(number)) == grammar.limit(number) == number


@given(st.text())
def test_any_text_is_a_limit_no_limit_or_a_value_error(text: str) -> None:
    try:
        found = grammar.limit(text)
    except ValueError:
        return
    assert found is None or 0 < found <= grammar.LONGEST


@given(st.dictionaries(NAMES.filter(lambda name: not set(",:") & set(name)), st.none() | TIMES, max_size=4))
def test_sections_survive_their_text(sections: dict[str, float | None]) -> None:
    text = ",".join(f"{name}:{limit}" for name, limit in sections.items())
    assert grammar.sections(text) == grammar.sections(sections) == sections


def test_a_level_survives_its_name() -> None:
    for level in range(logging.DEBUG, logging.CRITICAL + 1):
        assert grammar.log_level(grammar.log_level_name(level)) == level
