"""Every setting of releases 0.5, 0.6 and main, and of older ones without effect here: the list is frozen.

It repeats the product's table on purpose. No line is ever removed.
"""

from __future__ import annotations

from typing import NamedTuple

NEEDED, HERE = "", "no effect here"


class Setting(NamedTuple):
    """`values`: the default first, then another allowed value, then values of the wrong type.

    A setting that takes effect has no message, and is no part of the product's table any more. Its option may have
    another `key` now.
    """

    name: str
    message: str
    values: tuple[object, ...]
    is_key: bool = True
    more_flags: tuple[str, ...] = ()
    is_effective: bool = False
    key: str = ""


STATE_PATH = "/sys/class/infiniband/{nic}/ports/1/state"

SETTINGS = [
    Setting("node_health_check_interval", NEEDED, (5.0, 7, "often", 0), is_effective=True),
    Setting("restart_check_interval", NEEDED, (60.0, 7, "often", 0)),
    Setting("enable_nic_monitor", NEEDED, (False, True, "maybe", 2), is_effective=True),
    Setting("pci_topo_file", NEEDED, (None, "/etc/topo.xml", 5)),
    Setting(
        "link_down_path_template", NEEDED, (None, "/sys/{nic}/down", "/sys/{port}/down", 5), is_effective=True
    ),
    Setting("skip_section_response", NEEDED, (True, False, "maybe", 2)),
    Setting("use_infra_group_rank", NEEDED, (True, False, "maybe", 2), is_effective=True),
    Setting("enable_nic_healthcheck", NEEDED, (True, False, "maybe", 2), is_effective=True),
    Setting(
        "link_state_path_template",
        NEEDED,
        (STATE_PATH, "/sys/{dev_name}/state", "/sys/state", 5),
        is_effective=True,
    ),
    Setting(
        "enable_dist_storage_healthcheck",
        NEEDED,
        (False, True, "maybe", 2),
        more_flags=("dist-storage-health-check",),
        is_effective=True,
    ),
    Setting(
        "storage_healthcheck_path",
        NEEDED,
        (None, "/data,/home", "data", 5),
        more_flags=("storage-health-check-path",),
        is_effective=True,
    ),
    Setting("segment", NEEDED, (None, 4, "many", 0, 1.5), is_effective=True),
    Setting("numa_bind_strict", HERE, (True, False, "maybe", 2)),
    Setting("gpu_memory_reclaim_timeout", NEEDED, (50.0, 0, "long", -1), is_effective=True),
    Setting("gpu_memory_tolerance_mb", NEEDED, (512.0, 100, "few", -1), is_effective=True),
    Setting("gpu_memory_poll_interval", NEEDED, (2.0, 0.5, "often", 0)),
    Setting("check_remaining_processes", NEEDED, (False, True, "maybe", 2)),
    Setting("max_no_progress_cycles", NEEDED, (2, -1, "few", -2, 1.5), is_effective=True),
    Setting("min_progress_iterations", NEEDED, (1, 200, "few", -1, 1.5), is_effective=True),
    Setting("checkpoint_iteration_file", NEEDED, (None, "/ckpt/latest.txt", 5), is_effective=True),
    Setting("install_exception_hook", NEEDED, (False, True, "maybe", 2), is_effective=True),
    Setting("num_warmup_iterations", NEEDED, (0, 5, "few", -1, 1.5), is_effective=True),
    Setting("cycle_info_dir", HERE, (None, "/cycles", 5)),
    Setting("attribution_endpoint", HERE, (None, "host:8000", 5)),
    Setting("attribution_stop_action", HERE, (None, "stop", 5)),
    Setting("attribution_export_url", HERE, (None, "https://host/x", 5)),
    Setting("rdzv_impl", HERE, ("barrier", "legacy", "etcd"), is_key=False),
    Setting("node_health_check_endpoint", HERE, (None, "unix:///run/x.sock", "tcp://host:1"), is_key=False),
    Setting("no_restart_exit_code", NEEDED, (93, 42, "few", 256, -1), is_key=False, is_effective=True),
    Setting("cycle_info_job_id", HERE, (None, "4711"), is_key=False),
    Setting("per_cycle_applog_prefix", NEEDED, (None, "job"), is_key=False, is_effective=True),
    Setting("nvrx_logfile", NEEDED, (None, "ft.log"), is_key=False, is_effective=True, key="launcher_log"),
    Setting("enable_log_server", HERE, (False, True, "maybe", 2), is_key=False),
    Setting("log_server_port", HERE, (None, 50051, "http", 70000), is_key=False),
    Setting("log_server_log_prefix", HERE, (None, "/logs/server"), is_key=False),
    Setting("log_server_graceful_shutdown_timeout", HERE, (None, 60.0, "long", -1), is_key=False),
    Setting("log_aggregator_count", HERE, (None, 2, "few", -1), is_key=False),
    Setting("log_leaf_max_queue_chunks", HERE, (None, 100, "few", -1), is_key=False),
    Setting("attribution_startup_timeout", HERE, (None, 20.0, "long", -1), is_key=False),
    Setting("attribution_llm_api_key_file", HERE, (None, "/secrets/key"), is_key=False),
    Setting("attribution_llm_base_url", HERE, (None, "https://host/v1"), is_key=False),
    Setting("attribution_llm_model", HERE, (None, "some/model"), is_key=False),
    Setting("attribution_analysis_backend", HERE, (None, "mcp"), is_key=False),
    Setting("attribution_compute_timeout", HERE, (None, 20.0, "long", -1), is_key=False),
    Setting("attribution_log_level", HERE, (None, "DEBUG", "LOUD"), is_key=False),
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
