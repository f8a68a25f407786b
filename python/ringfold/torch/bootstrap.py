"""From torch's store to a communicator.

The store (TCPStore, FileStore, HashStore, whatever `init_process_group` made) carries two kinds of entries under the
group's prefix: `here/RANK`, by which rank 0 learns whether all ranks can share memory, with a random number; and `meet`,
where rank 0 is met, with what the group's secret follows from:

* Where the job has a secret (RINGFOLD_SECRET or RINGFOLD_SECRET_FILE), the random numbers of all ranks. The group's secret
  is an HMAC of them under the job's: who reads the store cannot join, and who writes to it can bring back no old group.
* Otherwise the group's secret itself, made by rank 0. Anybody who can read the store can join, except that the ranks of one
  host also check that the other end belongs to the same user.

Ranks must agree on which of the two it is; nothing falls back to the second.

A process may end its groups and make new ones, to which torch gives the same names again, and the store still has what was
said the first time. So the ranks count in the store how often they came (`joined`), and each time has entries of its own.
"""

import logging
import secrets
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from ringfold import _native
from ringfold._native import Meeting
from ringfold.errors import BootstrapError

_SECRET_BYTES = 32
_NUMBER_BYTES = 16
_MEETING = "meet"
_OF_JOB, _OF_GROUP = "job", "group"
"""Whose the secret is that `meet` leads to."""

log = logging.getLogger("ringfold")


class Joined(NamedTuple):
    """A group of ranks that have come together."""

    communicator: _native.Communicator
    key: bytes | None
    """Known to the group's ranks alone; `None` where the job has no secret."""


class _Meet(NamedTuple):
    """What rank 0 says: where it is met, and what the group's secret follows from."""

    address: str
    whose: str
    text: str
    """All ranks' random numbers, or the secret."""


def connect(store: Any, rank: int, world_size: int, timeout: timedelta) -> Joined:
    """Brings the ranks that share `store` together. Blocks until all are there, at most `timeout`."""
    meeting, address, secret, key = None, None, None, None
    if world_size > 1:
        store = _entries(store, world_size)
        number = secrets.token_hex(_NUMBER_BYTES)
        store.set(_here(rank), f"{_native.host_id()} {number}")
        if rank == 0:
            meeting, meet = _open(store, world_size, timeout)
        else:
            store.wait([_MEETING], timeout)
            meet = _Meet(*store.get(_MEETING).decode().split())
        address, (secret, key) = meet.address, _secret_and_key(meet, rank, number)
    communicator = _native.Communicator.connect(
        rank=rank,
        world_size=world_size,
        address=None if meeting else address,
        meeting=meeting,
        secret=secret,
        timeout=timeout.total_seconds(),
        connect_timeout=timeout.total_seconds(),
    )
    if rank == 0 and key is None and communicator.hosts > 1:
        _warn_of_open_store()
    return Joined(communicator, key)


def _secret_and_key(meet: _Meet, rank: int, number: str) -> tuple[str, bytes | None]:
    """The secret by which the group meets, and its key. Refuses what is not this rank's idea of the job."""
    has_secret = _native.derived_key("ringfold.torch: probe", b"") is not None
    if has_secret is not (meet.whose == _OF_JOB):
        with_it, without = ("this rank", "rank 0") if has_secret else ("rank 0", "this rank")
        raise BootstrapError(
            f"{with_it} has a secret of the job, and {without} has none; give RINGFOLD_SECRET or RINGFOLD_SECRET_FILE to all"
        )
    if meet.whose != _OF_JOB:
        return meet.text, None
    if meet.text.split(",")[rank : rank + 1] != [number]:
        raise BootstrapError(
            "the store's entry of rank 0 is not of this group: somebody else has written to the store"
        )
    secret, key = (
        _native.derived_key(f"ringfold.torch: {what}", meet.text.encode())
        for what in ("join", "seal")
    )
    assert secret is not None
    return secret.hex(), key


def _entries(store: Any, world_size: int) -> Any:
    """The part of the store for this time: the first `world_size` ranks to come are the first time, and so on."""
    came = store.add(f"joined/{world_size}", 1) - 1
    return dist.PrefixStore(f"{world_size}/{came // world_size}", store)


def _open(store: Any, world_size: int, timeout: timedelta) -> tuple[Meeting | None, _Meet]:
    """Decides where the ranks meet, and tells them."""
    keys = [_here(rank) for rank in range(world_size)]
    store.wait(keys, timeout)
    hosts, numbers = zip(*(store.get(key).decode().split() for key in keys), strict=True)
    if len(set(hosts)) == 1:
        meeting, address = None, f"unix:@ringfold-{secrets.token_hex(_SECRET_BYTES // 2)}"
    else:
        meeting = Meeting.open(_host_of(store))
        address = meeting.address
    if _native.derived_key("ringfold.torch: probe", b"") is not None:
        meet = _Meet(address, _OF_JOB, ",".join(numbers))
    else:
        meet = _Meet(address, _OF_GROUP, secrets.token_hex(_SECRET_BYTES))
    store.set(_MEETING, " ".join(meet))
    return meeting, meet


def _here(rank: int) -> str:
    """The entry by which a rank says that it has come."""
    return f"here/{rank}"


def _warn_of_open_store() -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        log.warning(
            "ranks on several hosts and no secret: anybody who can read torch's store can join the job; set RINGFOLD_SECRET_FILE "
            "on all ranks"
        )


_has_warned = False


def _host_of(store: Any) -> str | None:
    """The host that the ranks reach the store at, if it is that kind of store: a good address for this one, too."""
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    host = getattr(store, "host", None)
    return host if isinstance(host, str) else None
