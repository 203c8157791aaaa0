"""Submits a training with NeMo-Run, as a user's script does, and waits until NeMo-Run says how it ended.

drive.py (stock|script|minute|lightning) PORT FOLDER STEPS RETRIES [FAULT ...]
"""

from __future__ import annotations

import sys
from typing import Any

import nemo_run as run


def plain(folder: str, steps: str, faults: list[str]) -> Any:
    # As a module: NeMo-Run takes "/nemo_run" in any path for the job's folder, and this file's path has it.
    module = "tests.integrations.nemo_run.plain_training"
    return run.Script(path=module, args=[folder, steps, *faults], entrypoint="python", m=True)


def lightning(folder: str, steps: str, faults: list[str]) -> Any:
    import lightning.pytorch as pl

    from tests.integrations.nemo_run.lightning_training import train

    keeps = {"dirpath": f"{folder}/ckpt", "every_n_train_steps": 1, "save_last": True}
    saving = run.Config(pl.callbacks.ModelCheckpoint, **keeps)
    trainer = run.Config(
        pl.Trainer,
        max_steps=int(steps),
        accelerator="cpu",
        devices=1,
        num_nodes=2,
        strategy="ddp",
        logger=False,
        callbacks=[saving],
        default_root_dir=folder,
        enable_progress_bar=False,
    )
    return run.Partial(train, trainer=trainer, folder=folder, faults=faults)


def main(kind: str, port: str, folder: str, steps: str, retries: str, *faults: str) -> None:
    from holdfast.integrations.nemo_run import FaultTolerancePlugin, PreemptionPlugin, WandbPlugin

    executor = run.SlurmExecutor(
        account="root",
        partition="main",
        nodes=2,
        time="00:10:00",
        tunnel=run.LocalTunnel(job_dir=""),
        packager=run.Packager(),
        poll_estimated_start_time=False,
        retries=int(retries),
        launcher=run.Torchrun(rdzv_port=int(port)),
    )
    limits = {"initial_rank_heartbeat_timeout": 60, "rank_heartbeat_timeout": 8}
    plugins: list[Any] = [
        FaultTolerancePlugin(
            num_in_job_restarts=1,
            num_job_retries_on_failure=int(retries),
            rank_section_timeouts=None,
            **limits,
        ),
        PreemptionPlugin(),
    ]
    task = (lightning if kind == "lightning" else plain)(folder, steps, list(faults))
    if kind == "lightning":
        from tests.integrations.nemo_run.lightning_training import wandb_logger

        plugins.append(WandbPlugin(name="line", logger_fn=wandb_logger))
    if kind == "minute":
        executor.time = "00:01:00"
    if kind == "stock":
        executor.launcher = run.FaultTolerance(max_restarts=1, rdzv_port=int(port), **limits)
        plugins = []
    with run.Experiment("test") as experiment:
        experiment.add(task, executor=executor, name="train", plugins=plugins)
        experiment.run(detach=False, tail_logs=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
