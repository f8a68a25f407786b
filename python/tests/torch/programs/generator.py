"""Draws random programs from a seed; all ranks draw the same programs."""

import random
from dataclasses import replace
from typing import TypeAlias

from programs.steps import (
    AVERAGED, BY_BIT, COMPLEX, EVEN, FLOAT8, FLOATS, FORMS, INTEGERS, Barrier, Call, Close, Fakes,
    Fork, Form, Late, Many, Memory, Message, Messages, Objects, Open, Restart, Settle, Step, Train,
)  # fmt: skip

FEATURES: dict[str, bool] = {
    "many calls": True,
    "dropped copies": True,
    "any byte as bool": True,
    "fake tensors": True,
    "messages to oneself": True,
    "calls seen by modes": True,
    "lazy negation seen by modes": False,
    "default device": True,
    "forks that register": True,
}
"""Features of programs, and whether the backend supports them; unsupported ones are not drawn."""
ON = frozenset(name for name, is_on in FEATURES.items() if is_on)

COUNTS = (0, 1, 1, 2, 3, 5, 12, 17, 60, 1000, 1024, 4097)
LARGE_COUNTS = (20_000, 65_536, 131_073, 300_000)
LAYOUTS = ("flat", "flat", "matrix", "strided", "column", "transposed", "channels_last", "shifted")
LINES = ("flat", "flat", "strided", "column", "shifted")
"""Layouts of one axis, for calls that divide it."""
HOWS = ("wait", "limit", "poll", "future", "callback", "thread", "drop")
MODES = ("logged", "counted", "inference", "profiled", "no_grad")
MEMORY_BYTES = (4096, 100_000, 1 << 20)
DEPTHS = (5, 20, 100, 500, 2000)
DEEP_DEPTHS = (4095, 4097, 10_000, 30_000, 100_000)
DEEP = 0.02
"""Share of the greatest depths among steps of many calls."""
LONGEST_DELAY_US = 6000
LATE_MS = (1, 5, 20)
STEPS = (6, 22)

Sizes: TypeAlias = tuple[int, ...]


class Generator:
    """Draws one program."""

    def __init__(
        self, seed: int, index: int, ranks: int, deep: float, features: frozenset[str]
    ) -> None:
        self.random = random.Random(f"{seed}/{index}/{ranks}")
        self.ranks, self.features, self.deep = ranks, features, deep
        self.open: dict[int, Open] = {0: Open(0, tuple(range(ranks)), "new_group")}
        self.opened = 0
        self.trains = self.tags = 0

    def draw(self) -> list[Step]:
        """Return the steps; at their end, no call is in progress and no group is open."""
        kinds = [
            (self.calls, 12), (self.messages, 3), (self.objects, 2), (self.open_one, 2),
            (self.close_one, 1), (self.memory, 1), (self.fork, 2), (self.late, 1),
            (self.barrier, 1), (self.many, 0.6), (self.settle, 2), (self.fakes, 1),
            (self.train, 0.2), (self.restart, 0.2),
        ]  # fmt: skip
        draws, weights = zip(*kinds, strict=True)
        steps: list[Step] = []
        for _ in range(self.random.randint(*STEPS)):
            steps += self.random.choices(draws, weights)[0]()
        steps += [Settle()]
        for group in sorted(self.open.keys() - {0}):
            steps.append(Close(group, True))
        return steps

    def some(self, *values: int) -> int:
        """Return one of several numbers."""
        return self.random.choice(values)

    def chance(self, of_one: float) -> bool:
        """Return true with probability `of_one`."""
        return self.random.random() < of_one

    def has(self, feature: str) -> bool:
        """Return whether the backend supports a feature."""
        return feature in self.features

    def group(self, named: bool = False) -> Open:
        """Return an open group; if `named`, one that torch knows by name."""
        found = [one for one in self.open.values() if not (named and one.way == "split")]
        return self.random.choice(found)

    def calls(self) -> list[Step]:
        """Draw one call, or several simultaneous ones."""
        if self.chance(0.4):
            return [self.call()]
        return [
            replace(self.call(), how=self.random.choice(HOWS))
            for _ in range(self.random.randint(1, 6))
        ]

    def call(self) -> Call:
        """Draw any collective call; its `how` is `now` or `drop`."""
        form = self.random.choice(list(FORMS.values()))
        group = self.group(named=form.is_functional)
        members = len(group.members)
        dtype, op = self.dtype(form)
        layouts = self.layouts(form, dtype)
        is_bits = not form.reduces and not {"negative", "conjugate"} & set(layouts)
        how = "drop" if self.chance(0.1) else "now"
        counts, matrix = self.sizes(form, members)
        if layouts == ("scalar",):
            counts = (1,) * members
        return Call(
            group.group,
            form.name,
            dtype,
            counts,
            matrix,
            op,
            self.random.choice((0.5, 2.0)) if op == "PREMUL_SUM" else 1.0,
            self.random.randrange(members),
            self.random.randrange(1000),
            is_bits and (dtype != "bool" or self.has("any byte as bool")),
            layouts,
            form.blocks in ("gathered", "dealt")
            and not (form.is_list or form.is_functional)
            and self.chance(0.3),
            how,
            self.random.choice(("own", "own", "registered", "either")),
            self.mode(layouts),
        )

    def mode(self, layouts: tuple[str, ...]) -> str:
        """Draw the context of a call."""
        # torch's dispatcher passes copies of such tensors, and discards what is written to them.
        is_lazy = bool({"negative", "conjugate"} & set(layouts))
        if self.chance(0.8) or (is_lazy and not self.has("lazy negation seen by modes")):
            return ""
        return self.random.choice(MODES + ("elsewhere",) * self.has("default device"))

    def dtype(self, form: Form) -> tuple[str, str]:
        """Draw a type, and an operation that exists for it."""
        if form.name == "sparse_all_reduce":
            return self.random.choice(("float32", "float64", "int64")), "SUM"
        if not form.reduces:
            types = (*INTEGERS, *FLOATS, "bool", *COMPLEX, *FLOAT8)
            return self.random.choice(types), "SUM"
        dtype = self.random.choice((*INTEGERS, *FLOATS, *FLOATS, "bool", *COMPLEX))
        ops = ["SUM", "SUM"]
        if dtype in AVERAGED:
            ops.append("AVG")
        if dtype in FLOATS + COMPLEX and not form.is_functional:
            ops.append("PREMUL_SUM")
        if dtype not in COMPLEX:
            ops += ["PRODUCT", "MIN", "MAX"]
        if dtype in INTEGERS + ("bool",):
            ops += BY_BIT
        return dtype, self.random.choice(ops)

    def layouts(self, form: Form, dtype: str) -> tuple[str, ...]:
        """Draw the memory layouts of a call's tensors."""
        if form.name == "sparse_all_reduce":
            return ("flat",)
        if self.chance(0.4):
            return ("flat",)
        if self.chance(0.1) and form.blocks == "whole" and not form.is_functional:
            return ("scalar",)
        is_line = not form.is_list and form.blocks != "whole"
        kinds: tuple[str, ...] = LINES if is_line else LAYOUTS
        if dtype in ("float32", "float64"):
            kinds += ("negative", "graded")
        if dtype in COMPLEX and form.name in ("gather", "reduce"):
            kinds += ("conjugate",)
        return tuple(self.random.choice(kinds) for _ in range(self.random.randint(1, 3)))

    def sizes(self, form: Form, members: int) -> tuple[Sizes, tuple[Sizes, ...]]:
        """Draw the sizes of blocks, and those between all pairs."""
        most = self.random.choice(LARGE_COUNTS if self.chance(0.03) else COUNTS)
        if form.blocks == "exchanged":
            if self.chance(0.4):
                return (most,) * members, ((most,) * members,) * members
            rows = tuple(self.uneven(members, most) for _ in range(members))
            return (most,) * members, rows
        if form.is_list and form.name not in EVEN and self.chance(0.5):
            return self.uneven(members, most), ()
        return (most,) * members, ()

    def uneven(self, members: int, most: int) -> Sizes:
        """Draw a size for each member."""
        return tuple(self.some(0, most, self.random.randint(0, most)) for _ in range(members))

    def messages(self) -> list[Step]:
        """Draw messages among ranks of the job."""
        way = self.random.choice(("started", "batch", "waiting"))
        pairs = [
            (source, target)
            for source in range(self.ranks)
            for target in range(self.ranks)
            if source != target or (way == "batch" and self.has("messages to oneself"))
        ]
        dtypes = (*INTEGERS, *FLOATS, "bool", *COMPLEX, *FLOAT8)
        drawn = tuple(
            Message(
                *self.random.choice(pairs),
                self.tag(),
                self.random.choice(dtypes),
                self.random.choice(LARGE_COUNTS if self.chance(0.03) else COUNTS),
                self.random.randrange(1000),
                self.random.choice(("flat", "strided", "column", "transposed")),
            )
            for _ in range(self.random.randint(1, 6))
        )
        return [Messages(drawn, way, way != "batch" and self.chance(0.3))]

    def tag(self) -> int:
        """Return a tag that no other message of the program has.

        A receive from any rank takes the first message with its tag.
        """
        self.tags += 1
        return self.tags

    def objects(self) -> list[Step]:
        """Draw one collective of objects."""
        names = ("all_gather", "broadcast", "gather", "scatter", "send")
        name, root = self.random.choice(names), self.random.randrange(self.ranks)
        return [Objects(name, root, self.random.randrange(1000))]

    def open_one(self) -> list[Step]:
        """Open a group of some ranks."""
        if len(self.open) > 3:
            return []
        self.opened += 1
        members = self.random.sample(range(self.ranks), self.random.randint(1, self.ranks))
        ways = ["new_group", "split"]
        if self.may_be_local(members):
            ways.append("local")
        way = self.random.choice(ways)
        if way != "split":
            members.sort()
        found = Open(self.opened, tuple(members), way)
        self.open[self.opened] = found
        return [found]

    def may_be_local(self, members: list[int]) -> bool:
        """Return whether a group may be made by its members alone.

        torch names such a group after its members and the number of groups of each rank. All
        members must have the same number, but not the number at which an open group of the same
        members was made.
        """
        local = [set(one.members) for one in self.open.values() if one.way == "local"]
        if set(members) in local:
            return False
        named = [set(one.members) for one in self.open.values() if one.way != "split"]
        return all(each >= set(members) or not each & set(members) for each in named)

    def close_one(self) -> list[Step]:
        """Close a group."""
        if len(self.open) == 1:
            return []
        group = self.random.choice(sorted(self.open.keys() - {0}))
        del self.open[group]
        return [Close(group, self.chance(0.5))]

    def memory(self) -> list[Step]:
        """Register memory, possibly while a rank forks."""
        group = self.group().group
        found: list[Step] = [
            Memory(group, self.random.choice(MEMORY_BYTES), self.chance(0.5)) for _ in range(2)
        ]
        if self.has("forks that register") and self.chance(0.5):
            found.insert(0, replace(self.fork()[0], delay_us=self.random.randrange(1000)))
        return found

    def fork(self) -> list[Fork]:
        """Draw a fork during the following steps."""
        rank, delay_us = self.random.randrange(self.ranks), self.random.randrange(LONGEST_DELAY_US)
        way = "multiprocessing" if self.chance(0.2) else "os"
        return [Fork(rank, delay_us, way, self.chance(0.3))]

    def late(self) -> list[Step]:
        """Draw a late rank."""
        return [Late(self.random.randrange(self.ranks), self.random.choice(LATE_MS))]

    def barrier(self) -> list[Step]:
        """Draw a barrier."""
        if self.chance(0.2):
            return [Barrier(0, True)]
        return [Barrier(self.group().group)]

    def many(self) -> list[Step]:
        """Draw many simultaneous calls; the greatest depths are rare."""
        depth = self.random.choice(DEPTHS)
        if self.has("many calls") and self.chance(self.deep):
            depth = self.random.choice(DEEP_DEPTHS)
        kind = self.random.choice(("sums", "broadcasts", "messages"))
        if kind == "messages" and not self.has("many calls"):
            # Each message takes two calls.
            depth //= 2
        late, late_ms = self.random.randrange(self.ranks), self.random.choice(LATE_MS)
        return [Many(depth, late, late_ms, kind, self.chance(0.3) and kind != "messages")]

    def settle(self) -> list[Step]:
        """Draw the end of all calls in progress."""
        return [Settle()]

    def fakes(self) -> list[Step]:
        """Draw calls on fake tensors."""
        if not self.has("fake tensors"):
            return []
        ranks = self.random.sample(range(self.ranks), self.random.randint(1, self.ranks))
        return [Fakes(tuple(sorted(ranks)), self.group(named=True).group)]

    def train(self) -> list[Step]:
        """Draw training, at most once."""
        self.trains += 1
        if self.trains > 1:
            return []
        salt = self.random.randrange(1000)
        return [Train(self.random.randint(1, 3), salt, self.random.choice((1, 200, 1 << 20)))]

    def restart(self) -> list[Step]:
        """Draw another job's group; all other groups end with the previous job's."""
        self.open = {0: self.open[0]}
        return [Restart()]


def drawn(
    seed: int, index: int, ranks: int, deep: float = DEEP, features: frozenset[str] = ON
) -> list[Step]:
    """Draw program number `index` of a seed.

    `deep` is the share of the greatest depths among steps of many calls.
    """
    return Generator(seed, index, ranks, deep, features).draw()
