"""What a user's policy wants of the launcher when a rank fails, and what is done if the policy itself fails.

What always holds: a policy that raises, or returns anything but a request, is logged and counts as no request.
Does not cover: exceptions of other ranks; each rank's policy sees its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.callbacks.completion import flag_path
from holdfast.fault_tolerance import WorkloadAction, WorkloadControlRequest
from holdfast.prefixed_log import Prefixed

if TYPE_CHECKING:
    from .supervised_training import SupervisedTraining

Policy = Callable[[Any], Any]


def follow(policy: Policy | None, exception: BaseException, training: SupervisedTraining) -> None:
    """Ask the launcher for what the policy wants; a request to shut down first makes the finished flag."""
    request = request_of(policy, exception, training.log)
    if request is None:
        return
    if request.action is WorkloadAction.ShutdownWorkload:
        if flag_path() is not None:
            training.log.warning("Shutdown workload requested, so creating finished flag file.")
        training.create_flag()
    training.client.send_workload_control_request(request)


def request_of(
    policy: Policy | None,
    exception: BaseException,
    log: Prefixed,
) -> WorkloadControlRequest | None:
    """The policy's request; None for nothing."""
    if policy is None:
        return None
    try:
        request = policy(exception)
    except Exception as error:
        log.error(
            "exc_handling_policy failed on %r with %r; the launcher is asked for nothing", exception, error
        )
        return None
    if request is None or (
        isinstance(request, WorkloadControlRequest) and isinstance(request.action, WorkloadAction)
    ):
        return request
    log.error(
        "exc_handling_policy returned %r on %r, which is neither None nor a WorkloadControlRequest; the launcher is "
        "asked for nothing",
        request,
        exception,
    )
    return None
