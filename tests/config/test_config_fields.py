"""The grammar of one value, for text, YAML's types and Python's."""

from __future__ import annotations

import logging
import math
import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.fault_tolerance import config_fields as grammar
from holdfast.fault_tolerance.config import ABSOLUTE_PATHS, TEMPLATE, FaultToleranceConfig
from holdfast.fault_tolerance.errors import ConfigError
from holdfast.fault_tolerance.launcher.command_line.ft_options import SOCKET

NOT_A_TIME = [
    0,
    0.0,
    -1,
    "-1",
    "0",
    "abc",
    "nan",
    "inf",
    "-inf",
    math.nan,
    math.inf,
    True,
    False,
    [1],
    {},
    b"1",
    "60s",
]


def test_a_time_is_a_number_or_its_text() -> None:
    for value in ["60", " 60 ", "60.0", "6e1", 60, 60.0]:
        assert grammar.limit(value) == 60.0
        assert grammar.seconds(value) == 60.0
        assert isinstance(grammar.limit(value), float)


def test_no_limit() -> None:
    for value in [None, "None", "none", "NONE", "null", "Null", "", "  "]:
        assert grammar.limit(value) is None
        assert grammar.sections(value) == {}
        assert grammar.text(value) is None


def test_a_time_that_cannot_be_a_limit() -> None:
    for value in NOT_A_TIME:
        for parse in (grammar.limit, grammar.seconds, grammar.factor):
            with pytest.raises(ValueError, match="greater than 0"):
                parse(value)


def test_none_is_refused_where_a_number_is_needed() -> None:
    for parse in [grammar.seconds, grammar.factor]:
        with pytest.raises(ValueError, match=r"greater than 0$"):
            parse(None)  # type: ignore[operator]


def test_a_time_beyond_any_timer_is_refused() -> None:
    for value in ["1e12", 10**30, 10**400, "9" * 400]:
        with pytest.raises(ValueError):
            grammar.limit(value)


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


def test_sections_from_text() -> None:
    assert grammar.sections("setup:600, step:180.5 ,checkpointing:None") == {
        "setup": 600.0,
        "step": 180.5,
        "checkpointing": None,
    }


def test_sections_that_are_refused() -> None:
    for value, said in [
        ("step:", "section 'step' has no limit; write step:180 or step:None"),
        ("step", "'step' is not NAME:SECONDS"),
        ("step:180,", "'' is not NAME:SECONDS"),
        (":180", "a section's name is a word"),
        ("step:abc", "section 'step' has 'abc': give a number of seconds"),
        ("step:nan", "section 'step' has 'nan'"),
        ("step:-1", "section 'step' has '-1'"),
        ("step:1,step:2", "section 'step' is given twice"),
        ({"step": 0}, "section 'step' has 0"),
        ({"step": [1]}, "section 'step' has"),
        ({3: 5}, "a section's name is a word, not 3"),
        (["step"], "section names with their limits"),
        (5, "section names with their limits"),
    ]:
        with pytest.raises(ValueError) as caught:
            grammar.sections(value)
        assert said in str(caught.value)


NAMES = st.text(st.characters(blacklist_characters=",:", blacklist_categories=["Cs"]), min_size=1).map(
    str.strip
)
LIMITS = st.none() | st.floats(min_value=1e-6, max_value=grammar.LONGEST)


@settings(max_examples=30)
@given(st.dictionaries(NAMES.filter(bool), LIMITS, max_size=4))
def test_sections_survive_their_text(sections: dict[str, float | None]) -> None:
    text = ",".join(f"{name}:{limit}" for name, limit in sections.items())
    assert grammar.sections(text) == grammar.sections(sections) == sections


def test_signal_by_name_or_number() -> None:
    for value in [signal.SIGTERM, 15, "15", "SIGTERM", "sigterm", "TERM", " SIGTERM "]:
        assert grammar.signal_of(value) is signal.SIGTERM


def test_no_signal() -> None:
    for value in ["SIGFOO", "FOO", "", "4711", 0, -9, 4711, True, None, 9.0, [9]]:
        with pytest.raises(ValueError, match="signal"):
            grammar.signal_of(value)


def test_a_misspelt_signal_is_recognised() -> None:
    with pytest.raises(ValueError, match="did you mean SIGTERM"):
        grammar.signal_of("SIGTREM")


def test_log_level() -> None:
    for value, level in [
        ("DBG", logging.DEBUG),
        ("debug", logging.DEBUG),
        ("info", logging.INFO),
        ("WARN", logging.WARNING),
        ("WARNING", logging.WARNING),
        ("error", logging.ERROR),
        ("FATAL", logging.CRITICAL),
        (20, logging.INFO),
        ("35", 35),
    ]:
        assert grammar.log_level(value) == level


def test_no_log_level() -> None:
    for value in ["LOUD", "", None, True, 0, 60, "9", 20.0]:
        with pytest.raises(ValueError, match="DEBUG"):
            grammar.log_level(value)


def test_a_level_survives_its_name() -> None:
    for level in range(logging.DEBUG, logging.CRITICAL + 1):
        assert grammar.log_level(grammar.log_level_name(level)) == level


def test_boolean() -> None:
    for value, meant in [("Yes", True), (1, True), ("on", True), ("0", False), (False, False)]:
        assert grammar.boolean(value) is meant


def test_no_boolean() -> None:
    for value in ["maybe", "", None, 2, 1.0]:
        with pytest.raises(ValueError, match="true or false"):
            grammar.boolean(value)


def test_template() -> None:
    for right in ("/sys/{dev_name}/down", "/sys/{nic}/down", "/sys/{nic}/{dev_name}"):
        assert TEMPLATE(right) == right
    assert TEMPLATE("None") is None
    for wrong in ("/sys/down", "/sys/{dev_name}/{port}", "/sys/{nic", "/sys/{}", 5):
        with pytest.raises(ValueError, match=r"contains \{dev_name\} or \{nic\}, and no other placeholder"):
            TEMPLATE(wrong)


def test_amount() -> None:
    for value, meant in [("0", 0.0), (0, 0.0), ("1.5", 1.5), (512, 512.0)]:
        assert grammar.amount(value) == meant


def test_amount_of_a_wrong_type_is_refused() -> None:
    for value in ["-1", -0.5, "nan", "inf", "x", True, None, [1]]:
        with pytest.raises(ValueError, match="give a number, 0 or greater"):
            grammar.amount(value)


def test_whole_number() -> None:
    for value, meant in [("1", 1), (1, 1), (" 7 ", 7), (255, 255)]:
        assert grammar.whole(1, 255)(value) == meant
        assert grammar.optional(grammar.whole(1))(value) == meant


def test_whole_number_of_a_wrong_type_is_refused() -> None:
    for value in ["0", 256, "-1", 1.0, "1.0", "x", True, "²", None, [1]]:
        with pytest.raises(ValueError, match="give a whole number from 1 to 255"):
            grammar.whole(1, 255)(value)


def test_optional_value_may_be_nothing() -> None:
    assert grammar.optional(grammar.whole(1))("None") is None
    with pytest.raises(ValueError, match="at least 1"):
        grammar.optional(grammar.whole(1))("0")


def test_paths() -> None:
    assert ABSOLUTE_PATHS("/data, /home") == "/data, /home"
    assert ABSOLUTE_PATHS("none") is None
    for wrong in ("data", "/data,", "/data,home", 5):
        with pytest.raises(ValueError, match="give "):
            ABSOLUTE_PATHS(wrong)
    for right in ("/run/x.sock", "unix:///run/x.sock"):
        assert SOCKET(right) == right
    with pytest.raises(ValueError, match="path of a socket"):
        SOCKET("http://host:1")


def test_restart_policy() -> None:
    assert grammar.restart_policy("any_failed") == "any-failed"
    with pytest.raises(ValueError, match="would hang; use any-failed, "):
        grammar.restart_policy("min-healthy")
    with pytest.raises(ValueError, match="give any-failed"):
        grammar.restart_policy("some-failed")


def test_a_program_ignores_a_restart_policy_that_cannot_be_had(caplog: pytest.LogCaptureFixture) -> None:
    """As it ignores settings that do not exist; the launcher refuses both."""
    assert (
        FaultToleranceConfig.from_kwargs(restart_policy="min-healthy", safety_factor=2.0).safety_factor == 2.0
    )
    assert "use any-failed" in caplog.text
    with pytest.raises(ConfigError, match="use any-failed"):
        FaultToleranceConfig.from_kwargs(False, restart_policy="min-healthy")
