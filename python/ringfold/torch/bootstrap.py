"""From torch's store to a communicator.

The store (TCPStore, FileStore, HashStore, whatever `init_process_group` made) carries three kinds of entries under the
group's prefix: `host/RANK`, by which rank 0 learns whether all ranks can share memory; `meet`, where it is met; and with it
a secret made for this group. Whoever can read the store can join: it is as private as torch's own.

A process may end its groups and make new ones, to which torch gives the same names again, and the store still has what was
said the first time. So the ranks count in the store how often they came (`joined`), and each time has entries of its own.
"""

import secrets
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ringfold import _native
from ringfold._native import Meeting

_SECRET_BYTES = 32
_MEETING = "meet"


def connect(store: Any, rank: int, world_size: int, timeout: timedelta) -> _native.Communicator:
    """Brings the ranks that share `store` together. Blocks until all are there, at most `timeout`."""
    meeting, address, secret = None, None, None
    if world_size > 1:
        store = _entries(store, world_size)
        store.set(f"host/{rank}", _native.host_id())
        if rank == 0:
            meeting, address, secret = _open(store, world_size, timeout)
        else:
            store.wait([_MEETING], timeout)
            address, secret = store.get(_MEETING).decode().split()
    return _native.Communicator.connect(
        rank=rank,
        world_size=world_size,
        address=None if meeting else address,
        meeting=meeting,
        secret=secret,
        timeout=timeout.total_seconds(),
        connect_timeout=timeout.total_seconds(),
    )


def _entries(store: Any, world_size: int) -> Any:
    """The part of the store for this time: the first `world_size` ranks to come are the first time, and so on."""
    came = store.add(f"joined/{world_size}", 1) - 1
    return dist.PrefixStore(f"{world_size}/{came // world_size}", store)


def _open(store: Any, world_size: int, timeout: timedelta) -> tuple[Meeting | None, str, str]:
    """Decides where the ranks meet, and tells them."""
    keys = [f"host/{rank}" for rank in range(world_size)]
    store.wait(keys, timeout)
    hosts = {store.get(key) for key in keys}
    secret = secrets.token_hex(_SECRET_BYTES)
    if len(hosts) == 1:
        meeting, address = None, f"unix:@ringfold-{secrets.token_hex(_SECRET_BYTES // 2)}"
    else:
        meeting = Meeting.open(_host_of(store))
        address = meeting.address
    store.set(_MEETING, f"{address} {secret}")
    return meeting, address, secret


def _host_of(store: Any) -> str | None:
    """The host that the ranks reach the store at, if it is that kind of store: a good address for this one, too."""
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    host = getattr(store, "host", None)
    return host if isinstance(host, str) else None
