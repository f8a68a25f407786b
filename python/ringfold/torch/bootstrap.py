"""Make a communicator from torch's store.

The store (TCPStore, FileStore, HashStore, or whatever `init_process_group` created) holds these
entries under the group's prefix and size:

* `first`: a random number of rank 0, which names its attempt to join.
* `NUMBER/here/RANK`: the host and a random number of a rank that takes part in that attempt, and
  the jobs that it is in (`beside`).
* `NUMBER/meet`: the address of rank 0 or of a job that all ranks are in, the random numbers of all
  ranks, and the input of the group's secret.

The group's secret depends on the job:

* If the job has a secret (RINGFOLD_SECRET or RINGFOLD_SECRET_FILE), the group's secret is an HMAC
  of the random numbers under the job's secret: a client that reads the store cannot join, and one
  that writes to it cannot replay an old group.
* Otherwise rank 0 generates the group's secret, and `meet` holds it. Any client that can read the
  store can join, except that the ranks of one host also check that the other end belongs to the
  same user.

All ranks must use the same variant; there is no fallback to the second.

A store may hold entries of earlier attempts: of groups to which torch gave the same name, and of
ranks that were killed while they joined. No rank counts attempts, so ranks cannot disagree about
the number. A rank accepts `meet` only if that entry lists the random number that the rank
generated; otherwise the rank waits until `first` changes. At the end of its attempt, rank 0 marks
the attempt as over in `first` and `meet`, and deletes the other entries.
"""

import logging
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from ringfold import _native
from ringfold._native import RendezvousListener
from ringfold.errors import BootstrapError
from ringfold.torch import beside

_SECRET_BYTES = 32
_NUMBER_BYTES = 16
_FIRST = "first"
_MEETING = "meet"
_OF_JOB, _OF_GROUP = "job", "group"
"""The origin of the group's secret."""
_OVER = "over"
"""Value of `first` and `meet` after the attempt has ended."""
_PAUSE_S = 0.02
"""The polling interval of a rank that found the entries of an earlier attempt."""

log = logging.getLogger("ringfold")


class Joined(NamedTuple):
    """A group of ranks that have joined."""

    communicator: _native.Communicator
    key: bytes | None
    """A key that only the group's ranks know; `None` if the job has no secret."""
    store: Any
    """The part of the store that only this group uses."""


class _Meet(NamedTuple):
    """Rank 0's entry: its address, and the input of the group's secret."""

    address: str
    whose: str
    numbers: str
    """All ranks' random numbers."""
    secret: str
    """The group's secret, unless derived from the job's secret."""


class _Place(NamedTuple):
    """One rank's view of an attempt to join."""

    store: Any
    rank: int
    world_size: int
    number: str
    """This rank's random number."""
    deadline: float
    jobs: beside.Jobs
    """The jobs that this process is in."""
    settings: Mapping[str, Any]
    """The group's own settings."""

    @property
    def left(self) -> timedelta:
        """The time until the deadline; at least a moment, because 0 means no limit to torch."""
        return timedelta(seconds=max(self.deadline - time.monotonic(), 0.001))

    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline

    def announce(self, attempt: str) -> Any:
        """Announce this rank in an attempt, and return the attempt's part of the store."""
        entries = dist.PrefixStore(attempt, self.store)
        words = [_native.host_id(), self.number, *beside.listed(self.jobs)]
        entries.set(_here(self.rank), " ".join(words))
        return entries


def connect(
    store: Any,
    rank: int,
    world_size: int,
    timeout: timedelta,
    jobs: beside.Jobs | None = None,
    **settings: Any,
) -> Joined:
    """Join the ranks that share `store`. Blocks until all ranks have joined, at most `timeout`.

    `jobs` are the jobs that this process is in, `settings` the group's own settings.
    """
    if world_size == 1:
        return Joined(_communicator(rank, world_size, timeout, **settings), None, store)
    sized = dist.PrefixStore(str(world_size), store)
    deadline = time.monotonic() + timeout.total_seconds()
    number = secrets.token_hex(_NUMBER_BYTES)
    place = _Place(sized, rank, world_size, number, deadline, jobs or {}, settings)
    if rank != 0:
        entries, meet = _follow(place)
        secret, key = _secret_and_key(meet)
        communicator = beside.connect(
            place.jobs, meet.address, timeout, **settings
        ) or _communicator(
            rank, world_size, timeout, address=meet.address, secret=secret, **settings
        )
        return Joined(communicator, key, entries)
    entries = _lead(place)
    try:
        listener, meet = _open(entries, place)
        secret, key = _secret_and_key(meet)
        communicator = beside.connect(
            place.jobs, meet.address, timeout, **settings
        ) or _communicator(
            rank,
            world_size,
            timeout,
            address=None if listener else meet.address,
            listener=listener,
            secret=secret,
            **settings,
        )
    finally:
        _end(place, entries)
    if key is None and communicator.hosts > 1:
        _warn_of_open_store()
    return Joined(communicator, key, entries)


def _communicator(
    rank: int, world_size: int, timeout: timedelta, **how: Any
) -> _native.Communicator:
    timeout_s = timeout.total_seconds()
    return _native.Communicator.connect(
        rank=rank, world_size=world_size, timeout=timeout_s, connect_timeout=timeout_s, **how
    )


def _secret_and_key(meet: _Meet) -> tuple[str, bytes | None]:
    """The secret and the key of the group. Raises if the entry does not match this rank's job."""
    has_secret = _native.derived_key("ringfold.torch: probe", b"") is not None
    if has_secret is not (meet.whose == _OF_JOB):
        with_it, without = ("this rank", "rank 0") if has_secret else ("rank 0", "this rank")
        raise BootstrapError(
            f"{with_it} has a job secret, but {without} has none; set RINGFOLD_SECRET or "
            "RINGFOLD_SECRET_FILE on all ranks"
        )
    if meet.whose != _OF_JOB:
        return meet.secret, None
    secret, key = (
        _native.derived_key(f"ringfold.torch: {what}", meet.numbers.encode())
        for what in ("join", "seal")
    )
    assert secret is not None
    return secret.hex(), key


def _lead(place: _Place) -> Any:
    """Begin an attempt to join, as rank 0, and return its part of the store."""
    last = _attempt(place)
    entries = place.announce(place.number)
    place.store.set(_FIRST, place.number)
    if last is not None:
        # Rank 0 was killed in that attempt; this wakes the ranks that wait for its `meet`.
        dist.PrefixStore(last, place.store).set(_MEETING, _OVER)
    return entries


def _follow(place: _Place) -> tuple[Any, _Meet]:
    """Wait for an attempt that lists this rank; return its part of the store and rank 0's entry."""
    attempt = None
    while True:
        attempt = _next_attempt(place, attempt)
        entries = place.announce(attempt)
        entries.wait([_MEETING], place.left)
        text = entries.get(_MEETING).decode()
        if text != _OVER and _lists(meet := _Meet(*text.split(" ")), place):
            return entries, meet


def _next_attempt(place: _Place, last: str | None) -> str:
    """Wait for rank 0's next attempt after `last`, and return its name."""
    if last is None:
        place.store.wait([_FIRST], place.left)
    while (attempt := _attempt(place)) in (None, last):
        if place.is_over():
            raise BootstrapError(
                "rank 0's entries in the store belong to an earlier attempt to join or to another "
                "client, and rank 0 did not begin a new attempt in time"
            )
        time.sleep(_PAUSE_S)
    assert attempt is not None
    return attempt


def _attempt(place: _Place) -> str | None:
    """The name of rank 0's attempt, if any."""
    if not place.store.check([_FIRST]):
        return None
    name: str = place.store.get(_FIRST).decode()
    return None if name == _OVER else name


def _lists(meet: _Meet, place: _Place) -> bool:
    """Whether `meet` belongs to the attempt in which this rank announced itself."""
    return meet.numbers.split(",")[place.rank : place.rank + 1] == [place.number]


def _open(entries: Any, place: _Place) -> tuple[RendezvousListener | None, _Meet]:
    """Wait for all ranks' entries, choose rank 0's address, and publish it."""
    keys = [_here(rank) for rank in range(place.world_size)]
    entries.wait(keys, place.left)
    ranks = [each.decode().split() for each in values(entries, keys)]
    hosts, numbers = ([rank[index] for rank in ranks] for index in range(2))
    if (known := beside.chosen([rank[2:] for rank in ranks])) is not None:
        listener, address = None, known
    elif len(set(hosts)) == 1:
        listener, address = None, f"unix:@ringfold-{secrets.token_hex(_SECRET_BYTES // 2)}"
    else:
        listener = RendezvousListener.open(_host_of(entries))
        address = listener.address
    if _native.derived_key("ringfold.torch: probe", b"") is not None:
        meet = _Meet(address, _OF_JOB, ",".join(numbers), "")
    else:
        meet = _Meet(address, _OF_GROUP, ",".join(numbers), secrets.token_hex(_SECRET_BYTES))
    entries.set(_MEETING, " ".join(meet))
    return listener, meet


def values(entries: Any, keys: list[str]) -> list[bytes]:
    """The values of existing entries, in one request if the store supports that."""
    if entries.has_extended_api():
        values: list[bytes] = entries.multi_get(keys)
        return values
    return [entries.get(key) for key in keys]


def _end(place: _Place, entries: Any) -> None:
    """End rank 0's attempt after all ranks have joined or rank 0 has failed."""
    # Both entries stay: a rank that has just seen one waits for its value.
    place.store.set(_FIRST, _OVER)
    entries.set(_MEETING, _OVER)
    # Not every store can delete; remaining entries are recognised as old.
    with suppress(RuntimeError):
        for rank in range(place.world_size):
            entries.delete_key(_here(rank))


def _here(rank: int) -> str:
    """The key under which a rank announces itself."""
    return f"here/{rank}"


def _warn_of_open_store() -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        log.warning(
            "ranks on several hosts and no secret: any client that can read torch's store can join "
            "the job; set RINGFOLD_SECRET_FILE "
            "on all ranks"
        )


_has_warned = False


def _host_of(store: Any) -> str | None:
    """The host at which the ranks reach the store, if the store has one; also a good address for
    rank 0.
    """
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    host = getattr(store, "host", None)
    return host if isinstance(host, str) else None
