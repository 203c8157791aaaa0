"""Every setting of releases 0.5, 0.6 and main, and of older ones without effect here: the list is frozen.

It repeats the product's table on purpose. No line is ever removed.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

HERE = "no effect here"


class Setting(NamedTuple):
    """`values`: the default first, then another allowed value, then values of the wrong type.

    A setting that takes effect has no message, and is no part of the product's table any more. Its option may have
    another `key` now.
    """

    name: str
    values: tuple[object, ...]
    message: str = ""
    is_key: bool = True
    more_flags: tuple[str, ...] = ()
    is_effective: bool = False
    key: str = ""


effective = partial(Setting, is_effective=True)
STATE_PATH = "/sys/class/infiniband/{nic}/ports/1/state"

SETTINGS = [
    effective("node_health_check_interval", (5.0, 7, "often", 0)),
    Setting("restart_check_interval", (60.0, 7, "often", 0)),
    effective("enable_nic_monitor", (False, True, "maybe", 2)),
    Setting("pci_topo_file", (None, "/etc/topo.xml", 5)),
    effective("link_down_path_template", (None, "/sys/{nic}/down", "/sys/{port}/down", 5)),
    Setting("skip_section_response", (True, False, "maybe", 2)),
    effective("use_infra_group_rank", (True, False, "maybe", 2)),
    effective("enable_nic_healthcheck", (True, False, "maybe", 2)),
    effective("link_state_path_template", (STATE_PATH, "/sys/{dev_name}/state", "/sys/state", 5)),
    effective(
        "enable_dist_storage_healthcheck",
        (False, True, "maybe", 2),
        more_flags=("dist-storage-health-check",),
    ),
    effective(
        "storage_healthcheck_path",
        (None, "/data,/home", "data", 5),
        more_flags=("storage-health-check-path",),
    ),
    effective("segment", (None, 4, "many", 0, 1.5)),
    Setting("numa_bind_strict", (True, False, "maybe", 2), message=HERE),
    effective("gpu_memory_reclaim_timeout", (50.0, 0, "long", -1)),
    effective("gpu_memory_tolerance_mb", (512.0, 100, "few", -1)),
    Setting("gpu_memory_poll_interval", (2.0, 0.5, "often", 0)),
    Setting("check_remaining_processes", (False, True, "maybe", 2)),
    effective("max_no_progress_cycles", (2, -1, "few", -2, 1.5)),
    effective("min_progress_iterations", (1, 200, "few", -1, 1.5)),
    effective("checkpoint_iteration_file", (None, "/ckpt/latest.txt", 5)),
    effective("install_exception_hook", (False, True, "maybe", 2)),
    effective("num_warmup_iterations", (0, 5, "few", -1, 1.5)),
    Setting("cycle_info_dir", (None, "/cycles", 5), message=HERE),
    Setting("attribution_endpoint", (None, "host:8000", 5), message=HERE),
    Setting("attribution_stop_action", (None, "stop", 5), message=HERE),
    Setting("attribution_export_url", (None, "https://host/x", 5), message=HERE),
    Setting("rdzv_impl", ("barrier", "legacy", "etcd"), message=HERE, is_key=False),
    Setting(
        "node_health_check_endpoint", (None, "unix:///run/x.sock", "tcp://host:1"), message=HERE, is_key=False
    ),
    effective("no_restart_exit_code", (93, 42, "few", 256, -1), is_key=False),
    Setting("cycle_info_job_id", (None, "4711"), message=HERE, is_key=False),
    effective("per_cycle_applog_prefix", (None, "job"), is_key=False),
    effective("nvrx_logfile", (None, "ft.log"), is_key=False, key="launcher_log"),
    Setting("enable_log_server", (False, True, "maybe", 2), message=HERE, is_key=False),
    Setting("log_server_port", (None, 50051, "http", 70000), message=HERE, is_key=False),
    Setting("log_server_log_prefix", (None, "/logs/server"), message=HERE, is_key=False),
    Setting("log_server_graceful_shutdown_timeout", (None, 60.0, "long", -1), message=HERE, is_key=False),
    Setting("log_aggregator_count", (None, 2, "few", -1), message=HERE, is_key=False),
    Setting("log_leaf_max_queue_chunks", (None, 100, "few", -1), message=HERE, is_key=False),
    Setting("attribution_startup_timeout", (None, 20.0, "long", -1), message=HERE, is_key=False),
    Setting("attribution_llm_api_key_file", (None, "/secrets/key"), message=HERE, is_key=False),
    Setting("attribution_llm_base_url", (None, "https://host/v1"), message=HERE, is_key=False),
    Setting("attribution_llm_model", (None, "some/model"), message=HERE, is_key=False),
    Setting("attribution_analysis_backend", (None, "mcp"), message=HERE, is_key=False),
    Setting("attribution_compute_timeout", (None, 20.0, "long", -1), message=HERE, is_key=False),
    Setting("attribution_log_level", (None, "DEBUG", "LOUD"), message=HERE, is_key=False),
]

VARIABLE = "NVRX_GPUS_PER_NUMA"
"""Has neither key nor flag."""


def shown(setting: Setting) -> str:
    """As reports name it."""
    return setting.name if setting.is_key else f"--ft-{setting.name.replace('_', '-')}"


def flags(setting: Setting) -> list[str]:
    """The documented spellings, with and without the extra names; any other mixture is covered elsewhere."""
    found = []
    for name in (setting.name, *(each.replace("-", "_") for each in setting.more_flags)):
        dashed = name.replace("_", "-")
        found += [f"--ft-{dashed}", f"--ft-{name}", f"--ft_{name}", f"--ft-param-{dashed}"]
        found += [f"--ft-param-{name}", f"--ft_param_{name}"]
    return found


def variables(setting: Setting) -> list[str]:
    """The environment variables of the setting, also by its extra names."""
    names = (setting.name, *(each.replace("-", "_") for each in setting.more_flags))
    return [f"PET_{prefix}_{name.upper()}" for name in names for prefix in ("FT", "FT_PARAM")]
