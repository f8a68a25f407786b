"""Groups beside others: ranks that already share an open group use its control plane.

Such a group has no server, thread, socket or process descriptor of its own. In the store, each rank
lists the jobs that it is in, and rank 0 chooses a job that all ranks are in. The job's rank 0 must
be in the group, too: its process has the server, and a group must not depend on processes other
than its members'. Ranks without a common job make a job of their own.
"""

import secrets
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from ringfold import _native

Jobs = dict[str, tuple[int, _native.Communicator]]
"""The jobs that this process is in: its rank in the job, and an open communicator."""

_NUMBER_BYTES = 8
_PREFIX = "job:"


def jobs(communicators: Iterable[_native.Communicator]) -> Jobs:
    """The jobs of those communicators beside which other communicators can be made."""
    found: Jobs = {}
    for communicator in communicators:
        place = communicator.job
        if place is not None:
            found.setdefault(f"{place[0]:x}", (place[1], communicator))
    return found


def listed(own: Jobs) -> list[str]:
    """The words of this rank's entry in the store."""
    return [f"{job}={rank}" for job, (rank, _) in own.items()]


def chosen(entries: Sequence[Sequence[str]]) -> str | None:
    """The address of a new group in a job that all ranks are in, by the words of their entries;
    `None` if there is no such job.
    """
    places = [dict(word.split("=") for word in words) for words in entries]
    for job in places[0]:
        ranks = [place.get(job) for place in places]
        # A process with several ranks lists one of them.
        if None not in ranks and "0" in ranks and len(set(ranks)) == len(ranks):
            number = secrets.token_hex(_NUMBER_BYTES)
            return f"{_PREFIX}{job}:{number}:{','.join(map(str, ranks))}"
    return None


def connect(
    own: Jobs, address: str, timeout: timedelta, **settings: Any
) -> _native.Communicator | None:
    """Join the group with this address; `None` if the group is a job of its own."""
    if not address.startswith(_PREFIX):
        return None
    job, number, ranks = address.removeprefix(_PREFIX).split(":")
    timeout_s = timeout.total_seconds()
    return own[job][1].connect_beside(
        [int(rank) for rank in ranks.split(",")], int(number, 16), timeout_s, timeout_s, **settings
    )
