"""Groups of ringfold in programs that use torchcomms.

With torchcomms installed and TORCH_DISTRIBUTED_USE_TORCHCOMMS=1, torch makes groups by torchcomms,
which does not know ringfold. torch 2.13 does so for all backends and fails for ringfold; later
versions do so in some of their functions. This module answers for torch's functions whether
torchcomms is switched on: it is not for a group that ringfold serves. All other groups of the
program are made by torchcomms as before.
"""

import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.distributed import distributed_c10d

NAME = "ringfold"
_QUESTION = "_use_torchcomms_enabled"


def install() -> None:
    """Keep torchcomms away from groups of ringfold. Repeated calls have no effect."""
    asked = getattr(distributed_c10d, _QUESTION, None)
    if asked is not None and not hasattr(asked, "is_of_ringfold"):
        setattr(distributed_c10d, _QUESTION, _except_for_ringfold(asked))


def _except_for_ringfold(original: Callable[[], bool]) -> Callable[[], bool]:
    """torch's function that answers whether torchcomms is on, changed for groups of ringfold."""

    def is_on() -> bool:
        return original() and not _is_of_ringfold(sys._getframe(1))

    is_on.is_of_ringfold = True  # type: ignore[attr-defined]
    return is_on


def _is_of_ringfold(asking: FrameType) -> bool:
    """Whether the torch function that asks works on a group of ringfold.

    A function that has a group's backends makes the group. Other functions have the group they work
    on; or else they make one beside the default group or by splitting it.
    """
    known = asking.f_locals
    config, backend = known.get("backend_config"), known.get("backend")
    if isinstance(config, distributed_c10d.BackendConfig):
        return NAME in config.get_device_backend_map().values()
    if isinstance(backend, str) and _names_ringfold(backend):
        return True
    group = known.get("parent_pg") or known.get("group") or distributed_c10d.GroupMember.WORLD
    return group is not None and _serves(group)


def _names_ringfold(backend: str) -> bool:
    """Whether a backend's name, or the list of a group's devices and backends, has ringfold."""
    return NAME in re.split("[:,]", backend.lower())


def _serves(group: Any) -> bool:
    """Whether ringfold serves a device of the group."""
    from ringfold.torch.backend import Group

    backends = distributed_c10d._world.pg_backend_config.get(group, "")
    return isinstance(group, Group) or _names_ringfold(backends)
