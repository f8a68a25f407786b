"""An endless program of everything that a rank can do, in an order drawn from a seed.

Every rank draws the same steps, and compares every result with the expected one.
"""

import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import calls
import numpy as np
from calls import PERIOD, Call
from harness import Rank, Wrong, blamed

import ringfold

REGISTERED = 20000
# Delay after which a thread forks, in the middle of another thread's calls.
FORK_S = 0.004
# Methods over messages for any number of ranks, by collective. A call with even counts may name a
# method; for all others, the tuner chooses.
METHODS = {
    "all_reduce": (
        "flat",
        "ring",
        "tree",
        "recursive_doubling",
        "rabenseifner",
        "direct",
        "one_shot",
        "hierarchical",
        "leader",
        "multi_leader",
    ),
    "broadcast": ("flat", "ring", "tree", "direct", "hierarchical", "leader"),
    "reduce": ("flat", "ring", "tree", "direct", "hierarchical", "leader"),
    "all_gather": ("ring", "direct", "hierarchical", "leader"),
    "reduce_scatter": ("ring", "direct", "hierarchical", "leader"),
    "all_to_all": ("direct", "hierarchical"),
    "gather": ("direct", "leader"),
    "scatter": ("direct", "leader"),
}


def by(call: Call, method: str) -> Call:
    """Return the call with this method.

    With counts for each pair, only two ranks know their exchange, so only the tuner may choose."""
    return call if call.matrix else replace(call, algorithm=method)


class InPart(Exception):
    """An error in a part of the communicator; `members` are the ranks of the part in the whole."""

    def __init__(self, error: ringfold.RingfoldError, members: Sequence[int]) -> None:
        super().__init__(str(error))
        self.kind = type(error).__name__
        self.blamed = tuple(members[rank] for rank in blamed(error))


class Program:
    """Steps of one rank."""

    def __init__(
        self, rank: Rank, comm: ringfold.Communicator, seed: int, most: int = calls.COUNTS[-1]
    ) -> None:
        self.me, self.comm, self.most = rank, comm, most
        self.methods = METHODS if rank.place.lab else {}
        self.random = random.Random(seed)
        self.ranks = comm.world_size
        self.forker = self.random.choice([None, *range(self.ranks)])
        self.fork_at = self.random.randrange(30)
        self.forks_while_it_waits = self.random.random() < 0.5
        self.steps = 0
        self.registered = comm.empty(REGISTERED, "int32")

    def step(self) -> None:
        """Take the next step."""
        if self.comm.rank == self.forker and self.steps == self.fork_at:
            if self.forks_while_it_waits:
                threading.Timer(FORK_S, self.me.fork_that_lives_on, [self.scribble]).start()
            else:
                self.me.fork_that_lives_on(self.scribble)
        self.steps += 1
        kinds = [
            self.call,
            self.calls_under_way,
            self.group,
            self.memory,
            self.messages,
            self.allocate,
            self.register,
            self.split,
        ]
        self.random.choices(kinds, [12, 4, 2, 4, 4, 1, 1, 1])[0]()

    def scribble(self) -> None:
        """Use registered memory in a forked child, where it is private to the child."""
        self.registered[:] = self.registered.sum()

    def call(self) -> None:
        """Make one blocking call."""
        call = calls.drawn(self.random, self.ranks, most=self.most)
        methods = self.methods.get(call.collective)
        if methods and self.random.random() < 0.5:
            call = by(call, self.random.choice(methods))
        call.check(self.comm.rank, call.make(self.comm))

    def calls_under_way(self) -> None:
        """Make several simultaneous calls, and wait for them in any order."""
        drawn = [
            calls.drawn(self.random, self.ranks, most=5000)
            for _ in range(self.random.randint(1, 5))
        ]
        works = [(call, call.make(self.comm, asynchronous=True)) for call in drawn]
        self.random.shuffle(works)
        for call, work in works:
            call.check(self.comm.rank, work.wait())

    def group(self) -> None:
        """Make a group of calls."""
        drawn = [calls.drawn(self.random, self.ranks, most=5000) for _ in range(2)]
        with self.comm.group():
            works = [call.make(self.comm) for call in drawn]
        for call, work in zip(drawn, works, strict=True):
            call.check(self.comm.rank, work.result())

    def memory(self) -> None:
        """Make a call in registered memory."""
        self._in_place(self.registered)

    def _in_place(self, x: Any) -> None:
        call = Call(
            "all_reduce", x.dtype.name, (len(x),) * self.ranks, salt=self.random.randrange(PERIOD)
        )
        x[:] = call.input(self.comm.rank)
        call.check(self.comm.rank, call.make(self.comm, in_place=x))

    def messages(self) -> None:
        """Send a message to the next rank, and receive one from the previous rank.

        The receive may or may not name the source.
        """
        if self.ranks == 1:
            return
        rank, count, salt = (
            self.comm.rank,
            self.random.choice([count for count in calls.COUNTS if count <= self.most]),
            self.random.randrange(PERIOD),
        )
        is_for_any, tag = self.random.random() < 0.3, self.steps
        call = Call("sendrecv", "float32", (count,) * self.ranks, salt=salt)
        sending = self.comm.send(call.input(rank), (rank + 1) % self.ranks, tag, async_=True)
        x, sender = np.zeros(count, "float32"), (rank - 1) % self.ranks
        if is_for_any:
            x, found = self.comm.recv(x, None, tag)
            if found != sender:
                raise Wrong(f"a message of rank {sender} came from {found}")
        else:
            self.comm.recv(x, sender, tag)
        call.check(rank, x)
        sending.wait()

    def allocate(self) -> None:
        """Allocate registered memory, which replaces the old memory half of the time."""
        x = self.comm.empty(self.random.choice((10, REGISTERED, 10 * REGISTERED)), "float32")
        self._in_place(x)
        if self.random.random() < 0.5:
            self.registered = self.comm.empty(REGISTERED, "int32")

    def register(self) -> None:
        """Register memory for a call."""
        with self.comm.register(np.zeros(self.random.choice((100, REGISTERED)), "float64")) as x:
            self._in_place(x)

    def split(self) -> None:
        """Make a call among some of the ranks, in another order."""
        colors = [self.random.choice((None, 1, 2)) for _ in range(self.ranks)]
        part = self.comm.split(colors[self.comm.rank], -self.comm.rank)
        members = [
            rank for rank in reversed(range(self.ranks)) if colors[rank] == colors[self.comm.rank]
        ]
        call = calls.drawn(self.random, self.ranks, most=1000)
        if part is None:
            return
        if (part.rank, part.world_size) != (members.index(self.comm.rank), len(members)):
            raise Wrong(f"rank {part.rank} of {part.world_size} in a part of {members}")
        total = Call("all_reduce", call.dtype, call.counts[: len(members)], salt=call.salt)
        try:
            total.check(part.rank, total.make(part))
            part.close()
        except ringfold.RingfoldError as error:
            raise InPart(error, members) from error
