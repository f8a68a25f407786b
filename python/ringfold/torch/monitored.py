"""`monitored_barrier`: a barrier that reports missing ranks, without side effects.

The barrier uses the group's store, so it works regardless of the data connections, and even if the
group has failed. Each barrier of a group has a number. A rank announces itself by setting
`monitored/NUMBER/RANK`. Rank 0 waits for all, and writes the missing ranks to
`monitored/NUMBER/verdict`, an empty list on success. A rank that arrives later reads the verdict,
fails, and is in step again. When rank 0 finds all ranks at a barrier, the keys of earlier barriers
are no longer needed.

Error texts are those of gloo, which programs look for.
"""

import itertools
import time
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ringfold.errors import InvalidArgumentError, RingfoldError

PAUSE_S = 0.001
PAUSE_MAX_S = 0.1
"""Initial and maximum polling interval of the store, in seconds: a thousand waiting ranks are no
load for the store.
"""
VERDICT_GRACE_S = 5.0
"""Time after rank 0's deadline within which its verdict may arrive, in seconds."""


class MonitoredBarrierError(RingfoldError):
    """Not all ranks reached the barrier."""

    missing: list[int]
    """The missing ranks, as far as this rank knows."""


class MonitoredBarrier:
    """A mixin of both process group classes, beside `Collectives`."""

    _store: Any
    _rank: int
    _world_size: int
    _timeout_s: float
    _barriers: "Barriers"

    def monitored_barrier(
        self, timeout: Any = None, wait_all_ranks: bool = False, **_: Any
    ) -> None:
        """Block until all ranks have called `monitored_barrier`; on rank 0, at most `timeout` (by
        default the group's).

        On failure, rank 0 raises an error that names the first missing rank, or with
        `wait_all_ranks` all of them; the other ranks raise an error, too. The group is not
        affected.
        """
        timeout = getattr(timeout, "timeout", timeout)
        if timeout is not None and not isinstance(timeout, timedelta):
            timeout = timedelta(seconds=timeout)
        timeout_s = (
            self._timeout_s
            if timeout is None or timeout < timedelta(0)
            else timeout.total_seconds()
        )
        if self._rank == 0:
            self._barriers.lead(timeout_s, wait_all_ranks)
        else:
            self._barriers.follow(timeout_s)

    monitoredBarrier = monitored_barrier  # noqa: N815: C++ may look for this name


class Barriers:
    """The monitored barriers of a group."""

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._numbers = itertools.count(1)
        self._uncleared = 1

    def lead(self, timeout_s: float, wait_all_ranks: bool) -> None:
        """Run rank 0's part of a barrier."""
        number = next(self._numbers)
        self._store.set(key(number, 0), "here")
        keys = {rank: key(number, rank) for rank in range(1, self._world_size)}
        came = self._wait(list(keys.values()), timeout_s)
        missing = (
            [] if came else [rank for rank, name in keys.items() if not self._store.check([name])]
        )
        self._store.set(verdict(number), ",".join(map(str, missing)))
        if not missing:
            self._clear(number)
            return
        after_ms = round(timeout_s * 1000)
        if timeout_s <= 0:
            raise failure(
                f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {after_ms} ms.", missing
            )
        if wait_all_ranks:
            raise failure(
                f"[Rank 0]: Ranks {listed(missing)} failed to pass monitoredBarrier in {after_ms} "
                "ms",
                missing,
            )
        more = f" ({listed(missing[1:])} did not, either)" if missing[1:] else ""
        raise failure(
            f"[Rank 0]: Rank {missing[0]} failed to pass monitoredBarrier in {after_ms} ms{more}",
            missing,
        )

    def follow(self, timeout_s: float) -> None:
        """Run the part of a rank other than rank 0 in a barrier."""
        try:
            why, missing = self._come(next(self._numbers), timeout_s)
        except RuntimeError as error:
            raise self._stranded(f"The store does not answer: {error}", [0]) from error
        if missing:
            raise self._stranded(why, missing)

    def _come(self, number: int, timeout_s: float) -> tuple[str, list[int]]:
        """Wait for the barrier's verdict; return the error text and the missing ranks."""
        self._store.set(key(number, self._rank), "here")
        if not self._wait([key(number, 0)], timeout_s):
            return "Rank 0 did not reach the barrier.", [0]
        # Rank 0 may have arrived late; its own timeout begins then.
        if not self._wait([verdict(number)], timeout_s + VERDICT_GRACE_S):
            return "Rank 0 reached the barrier, but did not answer.", [0]
        found = self._store.get(verdict(number)).decode()
        missing = [int(rank) for rank in found.split(",")] if found else []
        return (
            "Please check rank 0 logs for faulty rank. Ranks that did not arrive in time: "
            f"{listed(missing)}.",
            missing,
        )

    def _stranded(self, why: str, missing: list[int]) -> MonitoredBarrierError:
        return failure(
            f"[Rank {self._rank}]: Rank {self._rank} successfully reached monitoredBarrier, but "
            "received errors while waiting "
            f"for send/recv from rank 0. {why}",
            missing,
        )

    def _wait(self, names: list[str], timeout_s: float) -> bool:
        """Wait for the keys; return whether they arrived in time. Polls, because a blocking wait in
        the store ignores Ctrl-C and other ranks.
        """
        deadline, pause_s = time.monotonic() + timeout_s, PAUSE_S
        while not self._store.check(names):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        return True

    def _clear(self, reached: int) -> None:
        """Delete the keys of the barriers before the one that all ranks have reached."""
        for number in range(self._uncleared, reached):
            for name in (verdict(number), *(key(number, rank) for rank in range(self._world_size))):
                self._store.delete_key(name)
        self._uncleared = reached


def key(number: int, rank: int) -> str:
    """The key under which a rank announces itself."""
    return f"monitored/{number}/{rank}"


def verdict(number: int) -> str:
    """The key under which rank 0 reports the missing ranks."""
    return f"monitored/{number}/verdict"


def listed(ranks: list[int]) -> str:
    """Ranks as text, for programs that parse them as gloo lists them."""
    return ", ".join(map(str, ranks))


def failure(text: str, missing: list[int]) -> MonitoredBarrierError:
    """A `MonitoredBarrierError` with this text and these missing ranks."""
    error = MonitoredBarrierError(text)
    error.missing = missing
    return error


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """`torch.distributed.monitored_barrier` for groups of ringfold, on every version of torch
    (2.13's accepts gloo only).

    `timeout` is a `timedelta` or seconds. See `MonitoredBarrier.monitored_barrier`. No effect on a
    rank outside the group.
    """
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        warnings.warn(
            "this rank is not in the group; monitored_barrier does nothing here", stacklevel=2
        )
        return
    found = dist.distributed_c10d._get_default_group() if group is None else group
    if not isinstance(found, MonitoredBarrier):
        found = found._get_backend(torch.device("cpu"))
    if not hasattr(found, "_barriers"):
        raise InvalidArgumentError(
            "the group's backend is not ringfold; use torch.distributed.monitored_barrier"
        )
    found.monitored_barrier(timeout, wait_all_ranks)
