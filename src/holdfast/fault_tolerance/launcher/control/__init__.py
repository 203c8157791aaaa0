"""The node controller: one pure state machine that decides for one node of a job.

No torch, no clock, no I/O, no thread: the driver sends events and carries out actions.
Reading order: :mod:`.records` (what the nodes agree on), :mod:`.messages` (events and actions), :mod:`.node` (the state
and its phases), :mod:`.controller` (`step`), then the phases: :mod:`.gathering`, :mod:`.running`, :mod:`.stopping`.
:mod:`.agreed_stop` decides at which step all ranks stop.
"""

from __future__ import annotations

from .controller import begin as begin
from .controller import next_deadline as next_deadline
from .controller import step as step
from .controller import watched_keys as watched_keys
