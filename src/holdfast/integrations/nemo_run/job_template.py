"""Our part of NeMo-Run's job script, in place of NeMo-Run's own, for launchers that ask for it.

NeMo-Run renders `slurm.sh.j2`, which imports two macros from a file of its own: what an attempt does before and after
its `srun`. There is no field for another file, so the two functions of NeMo-Run that render are wrapped here, once; for
every other launcher they do what they did. Source: nemo_run 0.11.1, core/execution/slurm.py and utils.py.
What always holds: a script without our part is never submitted in silence. Does not cover: DGX Cloud and Kubeflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from nemo_run.core.execution import slurm as nemo_slurm

__all__ = ["serve"]

STOCK = ("ft_launcher_slurm.j2", "ft_launcher.j2")
"""The file of the two macros in NeMo-Run 0.11 and 0.6."""
MARK = "holdfast_requeue"
"""A name that is in each script with our part."""

_served: dict[type, Callable[[Any], Mapping[str, Any]]] = {}
_values: ContextVar[Mapping[str, Any] | None] = ContextVar("holdfast_job_template", default=None)


def serve(launcher: type, values: Callable[[Any], Mapping[str, Any]]) -> None:
    """Scripts for launchers of this type have our part, with `values` of the launcher to fill in."""
    _served[launcher] = values
    if not hasattr(nemo_slurm.fill_template, "__wrapped__"):
        nemo_slurm.fill_template = _with_our_part(nemo_slurm.fill_template)
        request = nemo_slurm.SlurmBatchRequest
        request.materialize = _for_its_launcher(request.materialize)


def _for_its_launcher(materialize: Callable[..., str]) -> Callable[..., str]:
    @wraps(materialize)
    def materialized(request: Any) -> str:
        values = _served.get(type(request.launcher))
        if values is None:
            return materialize(request)
        token = _values.set(values(request.launcher))
        try:
            script = materialize(request)
        finally:
            _values.reset(token)
        if MARK not in script:
            raise RuntimeError(
                f"nemo_run {version('nemo_run')} does not make job scripts from the template "
                f"{STOCK[0]} any more: use a version that holdfast was tested with, 0.11.1"
            )
        return script

    return materialized


def _with_our_part(fill_template: Callable[..., str]) -> Callable[..., str]:
    @wraps(fill_template)
    def filled(template_name: str, variables: dict[str, Any], template_dir: str | None = None) -> str:
        values = _values.get()
        if values is None:
            return fill_template(template_name, variables, template_dir)
        folder = template_dir or Path(nemo_slurm.__file__).parent / "templates"
        ours = files(__package__).joinpath("templates/job.sh.j2").read_text(encoding="utf-8")
        loader = jinja2.ChoiceLoader(
            [jinja2.DictLoader(dict.fromkeys(STOCK, ours)), jinja2.FileSystemLoader(folder)]
        )
        environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined)
        environment.globals.update(values)
        script: str = environment.get_template(template_name).render(**variables)
        return script

    return filled
