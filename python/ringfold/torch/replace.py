"""Groups of ringfold for programs that ask for the backend gloo by name.

With RINGFOLD_TORCH_REPLACE=gloo, torch makes a group of ringfold wherever a program asks for gloo:
by `init_process_group`, `new_group` or a device mesh, for all devices or for one
(`cpu:gloo,cuda:nccl`), or without a name. To the program, the group is one of gloo: `get_backend`
and the group's own name are "gloo".

All torch functions that make groups call one function, `_new_process_group_helper`, which this
module wraps. A program that constructs torch's class `ProcessGroupGloo` itself gets that class.

The members of a group agree before anything is made. Each writes to the group's part of the store
whether it can replace gloo, and reads the words of all others. A rank on which the variable is not
set writes no word. Instead, it makes its gloo group at once, and gloo writes the rank's address to
the store: that address counts as a refusal. If one rank refuses, all ranks make a group of gloo.
All ranks read the same words, so they decide the same. A rank that writes neither within the
group's timeout is reported in an error.
"""

import functools
import inspect
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ringfold import _native
from ringfold.errors import BootstrapError, UnsupportedError
from ringfold.torch.bootstrap import values
from ringfold.torch.monitored import PAUSE_MAX_S, PAUSE_S

GLOO, NAME = "gloo", "ringfold"
_MAKER = "_new_process_group_helper"
_YES, _NO = b"ringfold", b"gloo"

_NEEDED = ("store", "group_rank", "group_size", "group_name", "timeout")
"""The arguments of `_new_process_group_helper` that describe the group."""

log = logging.getLogger("ringfold")


class _Place(NamedTuple):
    """One rank's view of the group that torch makes."""

    store: Any
    """The store that the group is made with."""
    rank: int
    world_size: int
    name: str
    timeout: timedelta
    gloo_device: str
    """The first device for which gloo was asked."""

    @property
    def words(self) -> Any:
        """The part of the store in which the ranks agree."""
        return dist.PrefixStore(f"ringfold:replace/{self.name}", self.store)

    def spoken(self, ranks: list[int]) -> int:
        """The number of ranks at the beginning of the list that have written their words."""
        low, high = 0, len(ranks)
        # All ranks at once first; then by halves, so that each search takes few operations.
        end = high
        while low < high:
            if self.words.check([str(rank) for rank in ranks[low:end]]):
                low = end
            else:
                high = end - 1
            end = (low + high + 1) // 2
        return low

    def has_gloo(self, rank: int) -> bool:
        """Whether gloo has announced this rank."""
        of_group = dist.PrefixStore(f"{self.name}/", self.store)
        of_device = dist.PrefixStore(f"{self.gloo_device}/", of_group)
        found: bool = of_device.check([f"0/{rank}"])
        return found


def install() -> None:
    """Let torch make groups of ringfold in gloo's place, if RINGFOLD_TORCH_REPLACE says so."""
    maker = getattr(distributed_c10d, _MAKER)
    if _native.replaced_backend() != GLOO or getattr(maker, "is_of_ringfold", False):
        return
    known = {*_NEEDED, "backend", "global_ranks_in_group"}
    if not known <= inspect.signature(maker).parameters.keys():
        raise UnsupportedError(
            f"torch {torch.__version__} makes groups differently, so RINGFOLD_TORCH_REPLACE has no "
            "effect; unset it and ask for the backend `ringfold` by name"
        )
    setattr(distributed_c10d, _MAKER, _replacing(maker))


def _replacing(maker: Callable[..., Any]) -> Callable[..., Any]:
    """torch's function that makes groups, changed to replace gloo."""
    signature = inspect.signature(maker)

    @functools.wraps(maker)
    def make(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        said = bound.arguments
        asked_for = said["backend"]
        devices = distributed_c10d.BackendConfig(asked_for).get_device_backend_map()
        of_gloo = [device for device, name in devices.items() if name == GLOO]
        if not of_gloo or not _is_member(said["global_ranks_in_group"]):
            return maker(*args, **kwargs)
        ours = devices | dict.fromkeys(of_gloo, NAME)
        place = _Place._make([*(said[name] for name in _NEEDED), of_gloo[0]])
        if not _agree(place, _obstacle(set(ours.values()), said)):
            return maker(*args, **kwargs)
        mixed = ",".join(f"{device}:{name}" for device, name in ours.items())
        said["backend"] = NAME if asked_for == GLOO else mixed
        group, store = maker(*bound.args, **bound.kwargs)
        _forget(place)
        _rename(group, asked_for, of_gloo)
        return group, store

    make.is_of_ringfold = True  # type: ignore[attr-defined]
    return make


def _is_member(ranks: list[int]) -> bool:
    """Whether this process is in the group with these ranks; the default group lists none."""
    return not ranks or dist.get_rank() in ranks


def _obstacle(backends: set[str], said: dict[str, Any]) -> str | None:
    """What keeps this rank from replacing gloo in the group, if anything."""
    # Loaded with the first group, because it loads much of torch.
    from ringfold.torch import backend

    if said.get("enable_reconfigure"):
        return "ringfold's groups cannot be reconfigured"
    if backends != {NAME} and not issubclass(backend.group_class(backends), dist.Backend):
        return (
            "with another backend beside it, ringfold needs torch 2.14, without "
            "TORCH_DISTRIBUTED_DEBUG=DETAIL"
        )
    return None


def _agree(place: _Place, obstacle: str | None) -> bool:
    """Whether all ranks of the group replace gloo; the same on all of them."""
    refusals = [] if obstacle is None else [place.rank]
    if place.world_size > 1:
        place.words.set(str(place.rank), _NO if refusals else _YES)
        refusals = _refusals(place)
    if refusals:
        reason = obstacle or f"not so on its ranks {refusals}; set the variable on all ranks"
        _say_once(f"RINGFOLD_TORCH_REPLACE=gloo: gloo itself serves a group: {reason}")
    elif (dist.get_rank() if dist.is_initialized() else place.rank) == 0:
        _say_once("RINGFOLD_TORCH_REPLACE=gloo: ringfold serves the groups that ask for gloo")
    return not refusals


def _refusals(place: _Place) -> list[int]:
    """Wait for all ranks' words, and return the ranks that do not replace gloo."""
    deadline = time.monotonic() + place.timeout.total_seconds()
    refusals = []
    silent = list(range(place.world_size))
    while silent := silent[place.spoken(silent) :]:
        if _is_of_gloo(place, silent[0], deadline):
            refusals.append(silent.pop(0))
    spoken = [rank for rank in range(place.world_size) if rank not in refusals]
    words = values(place.words, list(map(str, spoken)))
    refusals += [rank for rank, word in zip(spoken, words, strict=True) if word != _YES]
    return sorted(refusals)


def _is_of_gloo(place: _Place, rank: int, deadline: float) -> bool:
    """Wait for a rank's word or for its address of gloo; whether there is only an address."""
    pause_s = PAUSE_S
    while True:
        # A rank writes its word before gloo announces the rank.
        has_gloo = place.has_gloo(rank)
        if place.spoken([rank]):
            return False
        if has_gloo:
            return True
        if time.monotonic() > deadline:
            raise BootstrapError(
                f"rank {rank} of a group of {place.world_size} ranks has not agreed in time that "
                "ringfold replaces gloo: it has not asked for the group, or "
                "RINGFOLD_TORCH_REPLACE=gloo is not set there; set it on all ranks"
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


def _forget(place: _Place) -> None:
    """Delete this rank's word: the group has been made, so all ranks have read it."""
    # Not every store can delete.
    with suppress(RuntimeError):
        place.words.delete_key(str(place.rank))


def _rename(group: Any, asked_for: str, devices: Iterable[str]) -> None:
    """Let the group answer as the one that the program asked for."""
    from ringfold.torch.backend import Group

    world = distributed_c10d._world
    _, store = world.pg_map[group]
    world.pg_map[group] = (distributed_c10d.Backend(asked_for), store)
    world.pg_backend_config[group] = str(distributed_c10d.BackendConfig(asked_for))
    of_devices = [] if isinstance(group, Group) else [torch.device(device) for device in devices]
    for part in (group, *map(group._get_backend, of_devices)):
        if isinstance(part, Group):
            part.alias = GLOO


@functools.cache
def _say_once(text: str) -> None:
    """Log a warning; once in a process."""
    log.warning("%s", text)
