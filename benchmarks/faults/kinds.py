"""Every kind of fault of the corpus, by name, and what is none. Pure.

A kind is added in `truths/`, with its truth, before anybody looks at what the rules make of it; what is done for it is
in `deeds/`, under the same name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from .kind import Kind
from .truths.collectives import COLLECTIVES
from .truths.data import DATA
from .truths.ends import ENDS
from .truths.healthy import HEALTHY, Healthy
from .truths.jobs import JOBS
from .truths.later_collectives import LATER_COLLECTIVES
from .truths.later_ends import LATER_ENDS
from .truths.later_waits import LATER_WAITS
from .truths.waits import WAITS

_ALL = (*ENDS, *WAITS, *DATA, *COLLECTIVES, *JOBS, *LATER_ENDS, *LATER_WAITS, *LATER_COLLECTIVES)

KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _ALL})
HARMLESS: Mapping[str, Healthy] = MappingProxyType({each.name: each for each in HEALTHY})

if twice := [name for name, times in Counter([*(k.name for k in _ALL), *HARMLESS]).items() if times > 1]:
    raise ValueError(f"two kinds have one name: {', '.join(twice)}")
if len(HARMLESS) != len(HEALTHY):
    raise ValueError("two healthy jobs have one name")
