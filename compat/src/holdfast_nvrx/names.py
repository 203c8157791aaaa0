"""Names of Holdfast under the names of the original's modules. Data."""

from __future__ import annotations

FAULT_TOLERANCE = "holdfast.fault_tolerance"
LIGHTNING = "holdfast.ptl_resiliency"
STRAGGLER = "holdfast.straggler"

_DETECTOR = {
    "": "CallableId Detector Findings Report Statistic StragglerId Thresholds Verdict find_stragglers",
    ".straggler": "CallableId Detector",
    ".reporting": "Report StragglerId",
    ".statistics": "Statistic",
}
_NAMES = {
    "fault_tolerance": (
        FAULT_TOLERANCE,
        (
            "FaultToleranceConfig HeartbeatTimeouts RankMonitorClient RankMonitorClientError "
            "RankMonitorServer SectionTimeouts WorkloadAction WorkloadControlRequest"
        ),
    ),
    "fault_tolerance.config": (FAULT_TOLERANCE, "FaultToleranceConfig"),
    "fault_tolerance.data": (
        FAULT_TOLERANCE,
        (
            "FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR HeartbeatTimeouts SectionTimeouts WorkloadAction "
            "WorkloadControlRequest"
        ),
    ),
    "fault_tolerance.rank_monitor_client": (FAULT_TOLERANCE, "RankMonitorClient RankMonitorClientError"),
    "fault_tolerance.rank_monitor_server": (FAULT_TOLERANCE, "RankMonitorLogger RankMonitorServer"),
    "ptl_resiliency": (
        LIGHTNING,
        (
            "FaultToleranceCallback FaultToleranceSectionsCallback HoldfastCallback PreemptionCallback "
            "SimulatedFaultParams StragglerDetectionCallback"
        ),
    ),
    "ptl_resiliency._utils": (LIGHTNING, "SimulatedFaultParams"),
    "ptl_resiliency.fault_tolerance_callback": (LIGHTNING, "FaultToleranceCallback SimulatedFaultParams"),
    "ptl_resiliency.fault_tolerance_sections_callback": (
        LIGHTNING,
        "FaultToleranceSectionsCallback SimulatedFaultParams",
    ),
    "ptl_resiliency.straggler_det_callback": (LIGHTNING, "StragglerDetectionCallback"),
    **{f"straggler{module}": (STRAGGLER, names) for module, names in _DETECTOR.items()},
    **{f"attribution.straggler{module}": (STRAGGLER, names) for module, names in _DETECTOR.items()},
}
NAMES = {module: (home, tuple(names.split())) for module, (home, names) in _NAMES.items()}
"""Module below `nvidia_resiliency_ext`: module of Holdfast, public names."""

FILES = {
    "fault_tolerance.dict_utils": "dict_utils",
    "fault_tolerance.launcher": "launcher",
}
"""Module below `nvidia_resiliency_ext`: file in `modules`."""

FILES_WITHOUT_ORIGINAL = {"shared_utils.inject_fault": "inject_fault"}

PACKAGES_WITHOUT_ORIGINAL = ("attribution", "shared_utils", "inprocess.tools")

EXCEPTIONS = ("HealthCheckError", "InternalError", "RestartAbort", "RestartError", "TimeoutError")
"""Stubs that an `except` clause can name."""

MEMBERS = {"LayerFlag": ("BACKFILL", "RESERVE"), "Mode": ("ACTIVE", "INACTIVE", "INITIALIZED", "TERMINATED")}
"""Stubs of enumerations, whose members are arguments of calls that refuse."""

_STUBS = {
    "inprocess": "CallWrapper Compose FrozenState Mode State Wrapper",
    "inprocess.abort": "Abort AbortTorchDistributed AbortTransformerEngine",
    "inprocess.exception": " ".join(EXCEPTIONS),
    "inprocess.finalize": "Finalize ThreadedFinalize",
    "inprocess.health_check": "CudaHealthCheck FaultCounter HealthCheck",
    "inprocess.initialize": "Initialize RetryController",
    "inprocess.nested_restarter": (
        "NestedRestarterAborted NestedRestarterCallback NestedRestarterFinalized "
        "NestedRestarterHandlingCompleted NestedRestarterHandlingStarting NestedRestarterLogger"
    ),
    "inprocess.rank_assignment": "Layer LayerFlag RankAssignment Tree",
    "inprocess.state": "FrozenState Mode State",
}
STUBS = {module: tuple(names.split()) for module, names in _STUBS.items()}
"""Classes that can be imported, subclassed and used as annotations without the original, and not called."""

INSTEAD = {
    "checkpointing": "local and asynchronous checkpoints: use torch.distributed.checkpoint (save, async_save), and "
    "in Megatron-LM --async-strategy mcore",
    "inprocess": "restarts within the process: start the training with ft_launcher, which restarts its ranks",
    "ptl_resiliency.local_checkpoint_callback": "local checkpoints: use Lightning's ModelCheckpoint on a disk that "
    "outlives the node",
}
"""Module below `nvidia_resiliency_ext`: what Holdfast does not offer, and what replaces it."""
