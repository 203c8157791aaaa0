"""Values of torchrun's options that cannot work are refused before anything starts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from holdfast.fault_tolerance.config_fields import resolve
from holdfast.fault_tolerance.errors import ConfigError
from holdfast.fault_tolerance.launcher.command_line.checks import check
from holdfast.fault_tolerance.launcher.command_line.options import Vocabulary, scan
from holdfast.fault_tolerance.launcher.command_line.torch_options import installed_options


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
