"""The grammar of one value, for text, YAML's types and Python's."""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.fault_tolerance import config_fields as grammar
from holdfast.fault_tolerance.config import ABSOLUTE_PATHS, TEMPLATE, FaultToleranceConfig
from holdfast.fault_tolerance.errors import ConfigError
from holdfast.fault_tolerance.launcher.command_line.ft_options import SOCKET

Parse = Callable[[Any], object]
SIXTY: list[Any] = ["60", " 60 ", "60.0", "6e1", 60, 60.0]
NOTHING: list[Any] = [None, "None", "none", "NONE", "null", "Null", "", "  "]
SIGTERMS: list[Any] = [signal.SIGTERM, 15, "15", "SIGTERM", "sigterm", "TERM", " SIGTERM "]
TEMPLATES = ["/sys/{dev_name}/down", "/sys/{nic}/down", "/sys/{nic}/{dev_name}"]


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
        (ABSOLUTE_PATHS, ["/data, /home"], "/data, /home"),
        (ABSOLUTE_PATHS, ["none"], None),
    ],
)
def test_value_that_is_allowed(parse: Parse, values: list[Any], meant: object) -> None:
    for value in values:
        found = parse(value)
        assert found == meant and type(found) is type(meant), value


@pytest.mark.parametrize(
    ("parse", "values"), [(TEMPLATE, TEMPLATES), (SOCKET, ["/run/x.sock", "unix:///run/x.sock"])]
)
def test_value_that_stays_as_it_is(parse: Parse, values: list[str]) -> None:
    assert [parse(value) for value in values] == values


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


NAMES = st.text(st.characters(blacklist_characters=",:", blacklist_categories=["Cs"]), min_size=1).map(
    str.strip
)
LIMITS = st.none() | st.floats(min_value=1e-6, max_value=grammar.LONGEST)


@settings(max_examples=30)
@given(st.dictionaries(NAMES.filter(bool), LIMITS, max_size=4))
def test_sections_survive_their_text(sections: dict[str, float | None]) -> None:
    text = ",".join(f"{name}:{limit}" for name, limit in sections.items())
    assert grammar.sections(text) == grammar.sections(sections) == sections


def test_a_level_survives_its_name() -> None:
    for level in range(logging.DEBUG, logging.CRITICAL + 1):
        assert grammar.log_level(grammar.log_level_name(level)) == level


def test_a_program_ignores_a_restart_policy_that_cannot_be_had(caplog: pytest.LogCaptureFixture) -> None:
    """As it ignores settings that do not exist; the launcher refuses both."""
    found = FaultToleranceConfig.from_kwargs(restart_policy="min-healthy", safety_factor=2.0)
    assert found.safety_factor == 2.0
    assert "use any-failed" in caplog.text
    with pytest.raises(ConfigError, match="use any-failed"):
        FaultToleranceConfig.from_kwargs(False, restart_policy="min-healthy")
