"""Options of torchrun: equal to the installed torch's apart from what is documented, and checked before any start."""

from __future__ import annotations

import argparse
import warnings
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.run import get_args_parser

from holdfast.fault_tolerance.config_fields import TORCH, Option, resolve
from holdfast.fault_tolerance.errors import ConfigError
from holdfast.fault_tolerance.launcher.command_line import torch_options
from holdfast.fault_tolerance.launcher.command_line.checks import (
    KEEP_ALIVE,
    NO_ID,
    READ,
    UNUSED,
    check,
    without_effect,
)
from holdfast.fault_tolerance.launcher.command_line.options import Vocabulary, scan
from holdfast.fault_tolerance.launcher.command_line.torch_options import (
    TABLE,
    installed_options,
    rdzv_settings,
)
from holdfast.lazy import NEWEST_TORCH, release


def accept_additions(what: str, added: set[str]) -> set[str]:
    """What a torch newer than the tested ones adds to a table of ours, with a warning; else it has to be empty."""
    if added and release(torch.__version__) > NEWEST_TORCH:
        warnings.warn(f"torch {torch.__version__} has new {what}: {', '.join(sorted(added))}", stacklevel=2)
    else:
        assert not added, f"new {what}"
    return added


OURS = {"signals_to_handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"}
"""Defaults that differ from torchrun's."""
OLDER = {"master_port": 29500}
"""Defaults of an older torch, with the same meaning."""


@pytest.fixture(autouse=True)
def _no_torchrun_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in torch_options.os.environ if name.startswith("PET_")]:  # type: ignore[attr-defined]
        monkeypatch.delenv(name)


def ours(argv: list[str], environ: dict[str, str] | None = None) -> dict[str, Any]:
    line = scan(argv, Vocabulary(installed_options()))
    values, _ = resolve(installed_options(), line.torch, environ or {})
    found = {option.key: option.default for option in installed_options() if option.key != "help"} | values
    return {**found, "training_script": line.script, "training_script_args": line.script_args}


def theirs(argv: list[str]) -> dict[str, Any]:
    found = vars(get_args_parser().parse_args(argv))
    for name, default in OLDER.items():
        if found.get(name) == default and not any(name.replace("_", "-") in word for word in argv):
            found[name] = None
    return found


@cache
def actions() -> dict[str, argparse.Action]:
    """torch's actions by the name of their option."""
    return {
        flag[2:]: action
        for action in get_args_parser()._actions
        for flag in action.option_strings
        if flag.startswith("--") and "_" not in flag
    }


def test_known_options_are_those_of_the_installed_torch() -> None:
    known, real = {option.names[0]: option for option in installed_options()}, actions()
    added = accept_additions("options of torchrun", set(real) - set(known))
    assert set(known) - set(real) <= {"signals-to-handle"}  # new in 2.10, and ours in each version
    for name, action in real.items():
        if name in added:
            continue
        option = known[name]
        letters = {flag[1:] for flag in action.option_strings if not flag.startswith("--")}
        assert letters == ({option.letter} if option.letter else set())
        assert bool(option.metavar) == (action.nargs is None)
        assert bool(option.variables) == (type(action).__name__ in ("env", "check_env")), name
        for word in action.choices or () if name != "print-completion" else ():
            assert option.parse(word) == word
        if name not in ("help", "print-completion"):
            assert action.default in (option.default, OLDER.get(option.key)) or option.key in OURS
        if option.metavar and action.type in (int, float):
            assert option.parse("1") == action.type("1")


def test_option_of_a_newer_torch_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_options, "installed_torch", lambda: "2.8.0+cpu")
    known = installed_options()
    with pytest.raises(ConfigError, match=r"^--numa_binding needs a newer torch than the installed one$"):
        scan(["--numa_binding=x", "x.py"], Vocabulary(known))
    (warning,) = torch_options.unknown_variables(known, {"PET_SHUTDOWN_TIMEOUT": "3"})
    assert warning.startswith(
        "environment variable PET_SHUTDOWN_TIMEOUT has no effect: it needs a newer torch"
    )


@pytest.mark.parametrize("version", ["2.99.0", "2.9.0a0+git1234", ""])
def test_options_that_the_table_may_lack_are_asked_of_torch(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Of a newer torch or a special build; a release in the table is not asked."""
    assert torch_options.options_of_torch() == ()
    monkeypatch.setattr(torch_options, "installed_torch", lambda: version)
    found = {option.name: option for option in torch_options.options_of_torch()}
    for option in TABLE:
        if option.name in found and option.key != "help":
            assert bool(found[option.name].metavar) == bool(option.metavar)
            assert found[option.name].letter == option.letter
    new = Option("a_new_one", int, None, "N", "", TORCH, ("a-new-one",), ())
    line = scan(["--a_new=3", "x.py"], Vocabulary((*installed_options(), new)))
    assert resolve([new], line.torch, {})[0] == {"a_new_one": 3}


VALUES = {
    "nnodes": ["1:4", "2"],
    "nproc-per-node": ["8", "12"],
    "max-restarts": ["3", " 5 "],
    "monitor-interval": ["0.5", "1e3"],
    "start-method": ["fork"],
    "node-rank": ["1"],
    "master-port": ["1234"],
    "shutdown-timeout": ["7"],
    "numa-binding": ["node"],
    "duplicate-stdout-filters": ["a,b", "a,,b", "", ","],
    "redirects": ["3", "0:3,1:1"],
    "role": ["two words", "-", ""],
}
SWITCHES = [each.names[0] for each in installed_options() if not each.metavar and each.key != "help"]


@st.composite
def options(draw: st.DrawFn) -> list[str]:
    """Words of one option, spelled as argparse allows it."""
    real = actions()
    name = draw(st.sampled_from(sorted((VALUES.keys() & real.keys()) | set(SWITCHES))))
    flag = draw(st.sampled_from(real[name].option_strings))
    if name in SWITCHES:
        return [flag]
    value = draw(st.sampled_from(VALUES[name]))
    if flag.startswith("--"):
        return draw(st.sampled_from([[f"{flag}={value}"], [flag, value]]))
    return [flag + value] if value else [flag, value]


@given(st.lists(options(), max_size=6))
def test_namespace_equals_torchruns(words: list[list[str]]) -> None:
    argv = [*(word for each in words for word in each), "train.py", "--lr", "1"]
    assert ours(argv) == {**theirs(argv), **OURS}


def test_torchs_variables_apply_and_flags_win(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {
        "PET_NNODES": "1:2",
        "PET_MAX_RESTARTS": "5",
        "PET_STANDALONE": "2",
        "PET_MODULE": "0",
        "PET_ROLE": "",
        "PET_SIGNALS_TO_HANDLE": "SIGTERM",
        "PET_NUMA_BINDING": "node",
        "PET_LOGS_SPECS": "x",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    argv = ["--max-restarts=2", "x.py"]
    assert ours(argv, environ) == {**theirs(argv), "signals_to_handle": "SIGTERM"}


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PET_MAX_RESTARTS", "many", "PET_MAX_RESTARTS: 'many' is not allowed: give a whole number"),
        ("PET_START_METHOD", "magic", "PET_START_METHOD: 'magic' is not allowed: give one of spawn, fork"),
        ("PET_STANDALONE", "yes", "PET_STANDALONE: 'yes' is not allowed: give 0 or 1"),
        ("PET_NO_PYTHON", "", "PET_NO_PYTHON: '' is not allowed: give 0 or 1"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ours(["x.py"], {variable: value})
    assert str(caught.value).startswith(said)


def test_a_variable_that_a_flag_overrides_is_not_read() -> None:
    given = scan(["--max_restarts=1"], Vocabulary(installed_options())).torch
    values, origins = resolve(TABLE, given, {"PET_MAX_RESTARTS": "x", "PET_ROLE": "x"})
    assert values == {"max_restarts": 1, "role": "x"}
    assert origins == {"max_restarts": "--max_restarts", "role": "env PET_ROLE"}


# -- the rendezvous ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "is_one_node"),
    [
        ((), True),
        (("--rdzv-endpoint=localhost:0",), True),
        (("--rdzv-endpoint=host:29500",), False),  # at which a spare may join
        (("--rdzv-endpoint=host",), False),
        (("--rdzv-endpoint=host:29500", "--standalone"), True),
        (("--rdzv-endpoint=localhost:0", "--nnodes=1:2"), False),
    ],
)
def test_one_node_is_one_that_no_other_can_join(argv: tuple[str, ...], is_one_node: bool) -> None:
    assert checked(*argv).is_one_node is is_one_node


def test_one_node_needs_no_id() -> None:
    assert checked("--rdzv-id=").rdzv_id == checked().rdzv_id == NO_ID
    assert checked("--rdzv-id=7").rdzv_id == "7"


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ("last_cal_timeout=5", "last_cal_timeout has no effect: there is no such key; did you mean "
         "last_call_timeout?"),
        ("is_host=1, jointimeout=9", "jointimeout has no effect: there is no such key; did you mean "
         "join_timeout?"),
        ("xyz=1", "xyz has no effect: there is no such key; there are "
         "is_host, join_timeout, last_call_timeout, read_timeout, store_type"),
        ("close_timeout=5", "close_timeout has no effect: torch's rendezvous handler is not used"),
        ("keep_alive_interval=5", "keep_alive_interval has no effect: lost nodes are detected by --ft-node-timeout"),
    ],
)  # fmt: skip
def test_a_key_that_nobody_reads_is_a_warning(conf: str, said: str) -> None:
    assert without_effect(rdzv_settings(conf), "PET_RDZV_CONF") == [f"PET_RDZV_CONF: {said}"]


class Recorder(RendezvousParameters):
    """Keeps the keys that torch asks for."""

    def __init__(self, **config: Any) -> None:
        super().__init__("c10d", "localhost:0", "run", 1, 1, **config)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """As torch's, and remembered."""
        self.asked.add(key)
        return super().get(key, default)


@pytest.fixture(scope="module")
def first_store() -> None:
    """torch keeps a pipe for good from the first store of a process on, which is no leak of a test."""
    TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


@pytest.mark.usefixtures("first_store")
def test_keys_are_those_that_the_installed_torch_reads() -> None:
    parameters = Recorder(is_host="1")
    backend, store = create_backend(parameters)
    create_handler(store, backend, parameters)
    known = READ | KEEP_ALIVE | UNUSED
    accept_additions("keys of --rdzv-conf", parameters.asked - known)
    assert known - parameters.asked <= {"cas_backoff_max_seconds"}


# -- values of torchrun's options that cannot work are refused before anything starts


def checked(*argv: str) -> SimpleNamespace:
    given = scan([*argv, "x.py"], Vocabulary(installed_options())).torch
    values, origins = resolve(installed_options(), given, {})
    options = SimpleNamespace(**{each.key: each.default for each in installed_options()} | values)
    check(options, lambda key: origins.get(key, f"--{key.replace('_', '-')}"))
    return options


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("--nnodes=2", "--node-rank=1"),
        ("--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=host:29500", "--node-rank=7"),
        ("--nnodes=3:3", "--nproc-per-node=auto"),
        ("--nproc-per-node=cpu", "--max-restarts=0", "--monitor-interval=0.001"),
        ("--redirects=0:3,1:1", "--tee=3", "--local-ranks-filter=0,1", "--nproc-per-node=2"),
        ("--local-ranks-filter=", "--nproc-per-node=1"),
        ("--rdzv-conf=join_timeout=60,read_timeout=5,is_host=1", "--shutdown-timeout=0"),
        ("--standalone", "--rdzv-backend=etcd", "--node-rank=5"),
        ("--run-path", "--no-python", "--module"),
        ("--master-port=0",),
        ("--log-dir=/dev/null",),
        ("--event-log-handler=console",),
        ("--rdzv-backend=c10d", "--rdzv-endpoint=[::1]:29500"),
    ],
)
def test_what_torchrun_takes_is_taken(argv: tuple[str, ...]) -> None:
    checked(*argv)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        *(((f"--nnodes={value}",), f"--nnodes: '{value}' is not allowed")
          for value in ("0", "x", "2:1", "0:1", "1:2:3", "", "-1", "1:", "1.5")),
        (("--nnodes=3:2",), "MIN not above MAX"),
        *((("--nproc-per-node=" + value,), f"--nproc-per-node: '{value}'") for value in ("0", "-1", "x", "", "1.5")),
        *((("--max-restarts=" + value,), f"--max-restarts: '{value}' is not allowed: give a whole number, at least 0")
          for value in ("-1", "many")),
        (("--start-method=magic",), "--start-method: 'magic' is not allowed: give one of spawn, fork"),
        (("--numa-binding=magic",), "--numa-binding: 'magic' is not allowed: give one of node"),
        (("--standalone=x",), "--standalone: 'x' is not allowed: give 0 or 1"),
        *((("--monitor-interval=" + value,), f"--monitor-interval: '{value}' is not allowed: give a number greater "
          "than 0") for value in ("nan", "inf", "-1", "0")),
        (("--shutdown-timeout=-1",), "--shutdown-timeout: '-1' is not allowed"),
        *(((flag + "=" + value,), f"{flag}: '{value}' is not allowed: give 0 (none)")
          for flag in ("--redirects", "--tee") for value in ("4", "x", "0:4", "", "0:1,1")),
        (("--local-ranks-filter=0,x",), "--local-ranks-filter: '0,x' is not allowed"),
        (("--local-ranks-filter=9", "--nproc-per-node=2"), "'9' is not allowed: this node has 2 local ranks, 0 to 1"),
        (("--local-ranks-filter=0,1",), "'0,1' is not allowed: this node has one local rank, 0"),
        (("--signals-to-handle=SIGTERM,SIGFOO",), "there is no such signal"),
        (("--signals-to-handle=SIGKILL",), "no program can catch SIGKILL"),
        (("--signals-to-handle=",), "--signals-to-handle: '' is not allowed"),
        (("--master-port=70000",), "--master-port: '70000' is not allowed"),
        (("--standalone", "--nnodes=2"), "--standalone is for one node, and --nnodes is 2"),
        (("--logs-specs=magic",), "--logs-specs: 'magic' is not allowed: no installed package offers it"),
        (("--event-log-handler=foo",), "--event-log-handler: 'foo' is not allowed: give one of console, "),
        (("--rdzv-conf=timeout",), "--rdzv-conf: 'timeout' is not allowed: 'timeout' is not KEY=VALUE"),
        (("--rdzv-conf=join_timeout=soon",), "join_timeout has 'soon'"),
        (("--rdzv-conf=join_timeout=0",), "join_timeout has '0'"),
        (("--rdzv-conf=is_host=maybe",), "is_host has 'maybe'; give 0 or 1"),
        (("--rdzv-conf=store_type=hash",), "store_type has 'hash'; give tcp"),
        (("--rdzv-backend=etcd-v2",), "Holdfast restarts nodes together through a c10d store; use c10d"),
        (("--rdzv-endpoint=host:x",), "--rdzv-endpoint: "),
        (("--rdzv-endpoint=ho st:1",), "--rdzv-endpoint: "),
        (("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint="), "--rdzv-endpoint: '' is not allowed: with "
         "--nnodes 2 give every node the HOST:PORT of node 0; a variable that it was given by was probably empty"),
        (("--nnodes=2", "--node-rank=2"), "--node-rank: 2 is not allowed: with --nnodes 2 give 0 to 1"),
        (("--node-rank=1",), "--node-rank: 1 is not allowed: with --nnodes 1:1 give 0"),
        (("--node-rank=-1",), "--node-rank: -1 is not allowed"),
        *((("--rdzv-id=" + value, "--nnodes=1:2"), f"--rdzv-id: {value!r} is not allowed: the variable that it was "
          "given by was probably empty; with --nnodes 1:2 give every node the same id") for value in ("", " ")),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(argv: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(*argv)
    assert said in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this node has a GPU")
def test_gpu_ranks_need_a_gpu() -> None:
    with pytest.raises(ConfigError, match="torch finds no GPU on this node"):
        checked("--nproc-per-node=gpu")


def test_signals_are_normalised() -> None:
    assert (
        vars(checked("--signals-to-handle=term, 2,SIGUSR1"))["signals_to_handle"] == "SIGTERM,SIGINT,SIGUSR1"
    )
