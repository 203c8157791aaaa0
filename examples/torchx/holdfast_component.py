"""A TorchX component: `dist.ddp` with ft_launcher in place of torchrun, for every scheduler that TorchX knows.

    torchx run --scheduler local_cwd examples/torchx/holdfast_component.py:ft --script train.py -j 1x2
    torchx run --scheduler slurm examples/torchx/holdfast_component.py:ft --script train.py -j 2x8 --max_retries 3

A preempted job ends with 75, so that a scheduler that tries failed jobs again continues it.
Does not cover: telling preemptions from failures where TorchX's scheduler counts its retries; it counts both.
"""

import shlex
from typing import Dict, List, Optional  # noqa: UP035 - TorchX reads these annotations, and knows these types only

import torchx
from torchx import specs
from torchx.components import dist


def ft(
    *script_args: str,
    script: Optional[str] = None,  # noqa: UP045
    m: Optional[str] = None,  # noqa: UP045
    image: str = torchx.IMAGE,
    name: str = "/",
    h: Optional[str] = None,  # noqa: UP045
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,
    j: str = "1x2",
    env: Optional[Dict[str, str]] = None,  # noqa: UP006, UP045
    max_retries: int = 0,
    rdzv_port: int = 29500,
    mounts: Optional[List[str]] = None,  # noqa: UP006, UP045
    max_restarts: int = 3,
    launcher_options: str = "",
) -> specs.AppDef:
    """A training in which hung and failed ranks are restarted.

    Args:
        script_args: arguments of the training
        script: the training's script, or
        m: its module
        image: the container's image
        name: EXPERIMENT/RUN, either may be left out
        h: a named resource, in place of cpu, gpu and memMB
        cpu: CPUs of each node
        gpu: GPUs of each node
        memMB: memory of each node
        j: NODESxRANKS, or MIN:MAXxRANKS
        env: the ranks' environment
        max_retries: how often the scheduler may start the job again
        rdzv_port: where the first node listens for the others
        mounts: as for dist.ddp
        max_restarts: restarts of the ranks within a job, successive ones: progress makes the count begin anew
        launcher_options: more options of ft_launcher, like "--ft-rank-heartbeat-timeout 300 --ft-run-dir /runs/7"
    """
    app = dist.ddp(
        *script_args,
        script=script,
        m=m,
        image=image,
        name=name,
        h=h,
        cpu=cpu,
        gpu=gpu,
        memMB=memMB,
        j=j,
        env=env,
        max_retries=max_retries,
        rdzv_port=rdzv_port,
        mounts=mounts,
    )
    (role,) = app.roles
    shell, command = role.args if len(role.args) == 2 else ("", "")
    launcher, _, rest = command.partition(" ")
    if (shell, launcher) != ("-c", "torchrun"):
        raise RuntimeError(
            f"torchx {torchx.__version__}: dist.ddp does not start `-c torchrun …` any more, but {role.args}; "
            "use a version that this file was tested with, 0.7"
        )
    options = ["--max-restarts", str(max_restarts), "--ft-restarts-reset-on-progress"]
    options += ["--ft-preempted-exit-code", "75", *shlex.split(launcher_options)]
    # exec: the scheduler's signals reach the launcher, not a shell in front of it.
    role.args = ["-c", f"exec {shlex.join(['ft_launcher', *options])} {rest}"]
    return app
