"""Taking a command line apart, without torch: spellings, abbreviations, and hands off the script's arguments."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.fault_tolerance.errors import ConfigError
from holdfast.fault_tolerance.launcher.command_line.ft_options import OPTIONS
from holdfast.fault_tolerance.launcher.command_line.options import (
    CommandLine,
    UnknownOption,
    Vocabulary,
    scan,
)

WORDS = Vocabulary()


def torch_words(line: CommandLine) -> list[str]:
    """torchrun's options as words, in full spelling."""
    options = {option.key: option for option in WORDS.names.values()}
    return [
        f"{options[key].name}={given.value}" if options[key].metavar else options[key].name
        for key, given in line.torch.items()
    ]


def mixtures(name: str) -> list[str]:
    """`name` with each hyphen as a hyphen or an underscore."""
    first, *rest = name.split("-")
    joints = itertools.product("-_", repeat=len(rest))
    return [first + "".join(j + part for j, part in zip(each, rest, strict=True)) for each in joints]


def test_every_option_in_every_spelling() -> None:
    flags = [(each, f"--{flag}") for each in OPTIONS for name in each.names for flag in mixtures(name)]
    for option, flag in flags:
        for form in ([f"{flag}=1"], [flag, "1"]) if option.metavar else ([f"{flag}=1"],):
            line = scan([*form, "train.py", "--x"], WORDS)
            assert line.ft == {option.key: ("1", flag)}
            assert (line.script, line.script_args, line.torch) == ("train.py", ["--x"], {})


def test_the_last_of_two_counts() -> None:
    line = scan(["--ft-log-level=INFO", "--ft_param_log_level", "DBG", "x.py"], WORDS)
    assert line.ft["log_level"] == ("DBG", "--ft_param_log_level")


@pytest.mark.parametrize(
    ("argv", "torch"),
    [
        (["-r=3"], ["--redirects=3"]),
        (["-mr3"], ["--module", "--redirects=3"]),
        (["--nproc_per-node", "2"], ["--nproc-per-node=2"]),
        (["--max-restarts", "-1"], ["--max-restarts=-1"]),
        (["--role", "-two words"], ["--role=-two words"]),
        (["--log-dir", "-"], ["--log-dir=-"]),
        (["--standalone", "--"], ["--standalone"]),
    ],
)
def test_options_of_torchrun(argv: list[str], torch: list[str]) -> None:
    """More of them, compared with torch's own parser: test_options.py."""
    line = scan([*argv, "train.py", "a"], WORDS)
    assert (torch_words(line), line.script, line.script_args) == (torch, "train.py", ["a"])


@pytest.mark.parametrize(
    ("short", "key"),
    [
        ("nproc", "nproc_per_node"),
        ("max", "max_restarts"),
        ("re", "redirects"),  # ours --restart-policy must not get in the way of torchrun's abbreviation
        ("rdzv_b", "rdzv_backend"),
        ("no-p", "no_python"),
        ("ft-rank-h", "rank_heartbeat_timeout"),
        ("ft_param_rank_h", "rank_heartbeat_timeout"),
        ("restart", "restart_policy"),
        ("fault", "cfg_path"),
        ("term", "term_timeout"),
        ("ft-node-t", "node_timeout"),  # options without effect must not get in the way
        ("ft-log", "log_level"),
        ("ft-log-server-p", "log_server_port"),
    ],
)
def test_abbreviations_of_torchrun_and_of_ours(short: str, key: str) -> None:
    assert WORDS.find(short).key == key


def test_an_unclear_abbreviation_lists_what_it_may_be() -> None:
    with pytest.raises(UnknownOption) as caught:
        scan(["--ft-rank", "1", "x.py"], WORDS)
    assert str(caught.value) == (
        "--ft-rank may be short for --ft-rank-heartbeat-timeout, --ft-rank-out-of-section-timeout, "
        "--ft-rank-section-timeouts, --ft-rank-termination-signal; write more of it"
    )


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--ft-rank-hartbeat-timeout", "did you mean --ft-rank-heartbeat-timeout?"),
        ("--ft_rank_hartbeat_timeout", "did you mean --ft-rank-heartbeat-timeout?"),
        ("--ft-param-rank_hartbeat_timeout=5", "did you mean --ft-param-rank-heartbeat-timeout?"),
        ("--nproc-pre-node", "did you mean --nproc-per-node?"),
        ("--xyzzy", "options of the training script belong after the script"),
        ("-x", "options of the training script belong after the script"),
        ("--=3", "unknown option --;"),
    ],
)
def test_an_unknown_option_offers_the_nearest(flag: str, said: str) -> None:
    with pytest.raises(UnknownOption) as caught:
        scan([flag, "1", "x.py"], WORDS)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"unknown option {flag.partition('=')[0]}")


@pytest.mark.parametrize(
    "argv", [["--log-dir"], ["--log-dir", "--tee", "3", "x.py"], ["-r"], ["--ft-log-level", "--"]]
)
def test_a_missing_value(argv: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"needs a value$"):
        scan(argv, WORDS)


ODD = ["--ft-foo", "--log", "--nproc", "-r", "--help", "--", "-x=1", "", "a b", "--ft-log-level"]


@given(st.lists(st.sampled_from(ODD)))
def test_the_scripts_arguments_are_never_touched(arguments: list[str]) -> None:
    line = scan(["--standalone", "train.py", *arguments], WORDS)
    assert (line.script, line.script_args, line.ft) == ("train.py", arguments, {})
    assert torch_words(line) == ["--standalone"]


def test_a_script_behind_two_dashes_may_look_like_an_option() -> None:
    line = scan(["--", "--odd.py", "--", "x"], WORDS)
    assert (line.script, line.script_args) == ("--odd.py", ["--", "x"])


# -- docs/configuration.md names only what there is, and its examples work --------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_every_variable_on_the_page_exists() -> None:
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
