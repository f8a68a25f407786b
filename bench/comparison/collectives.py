"""Compared collectives: the meaning of their sizes, and their minimum memory traffic.

Sizes are those of nccl-tests, as in `ringfold perf`: bytes of the whole vector, or of all ranks'
shares together.
"""

from dataclasses import dataclass

FLOAT_BYTES = 4
# Granularity of a rank's share, as in `ringfold perf`.
SHARE_FLOATS = 4
SUFFIXES = {"K": 10, "M": 20, "G": 30}


@dataclass(frozen=True)
class Collective:
    name: str
    # Placements that all libraries have: MPI's broadcast has one buffer, nccl-tests' all_to_all
    # two.
    placements: tuple[str, ...]
    # Whether each rank has a share of the whole.
    has_shares: bool = False
    # How often the whole vector is read and written at least: (constant, factor of the number of
    # ranks).
    read: tuple[int, int] = (0, 0)
    written: tuple[int, int] = (0, 0)

    def count(self, ranks: int, size: int) -> int:
        """Return the element count of a call of about `size` bytes: of the vector or a share."""
        exact = size // FLOAT_BYTES // (ranks if self.has_shares else 1)
        if exact == 0:
            return min(size, 1)
        return exact - exact % SHARE_FLOATS if self.has_shares and exact >= SHARE_FLOATS else exact

    def bytes(self, ranks: int, size: int) -> int:
        """Return the actual size of `count` elements."""
        return self.count(ranks, size) * FLOAT_BYTES * (ranks if self.has_shares else 1)

    def traffic_bytes(self, ranks: int, size: int) -> int:
        """Return the minimum memory traffic without caches: inputs are read, outputs written.

        For all_reduce 2 x ranks x size. In place, some collectives move slightly less.
        """
        constant, factor = (a + b for a, b in zip(self.read, self.written, strict=True))
        return (constant + factor * ranks) * size


ONCE, BY_ALL, BY_OTHERS = (1, 0), (0, 1), (-1, 1)
BOTH = ("out", "in")
COLLECTIVES = {
    collective.name: collective
    for collective in (
        Collective("all_reduce", BOTH, read=BY_ALL, written=BY_ALL),
        Collective("broadcast", ("in",), read=ONCE, written=BY_OTHERS),
        Collective("reduce", BOTH, read=BY_ALL, written=ONCE),
        Collective("all_gather", BOTH, has_shares=True, read=ONCE, written=BY_ALL),
        Collective("reduce_scatter", BOTH, has_shares=True, read=BY_ALL, written=ONCE),
        Collective("all_to_all", ("out",), has_shares=True, read=BY_ALL, written=BY_ALL),
        Collective("gather", BOTH, has_shares=True, read=ONCE, written=ONCE),
        Collective("scatter", BOTH, has_shares=True, read=ONCE, written=ONCE),
        Collective("barrier", ("out",)),
    )
}


def bytes_of(text: str) -> int:
    """Parse a size such as 8, 64K or 1M, in binary units as in `ringfold perf`."""
    digits, suffix = (text[:-1], text[-1].upper()) if text[-1:].upper() in SUFFIXES else (text, "")
    if not digits.isdecimal():
        raise ValueError(f"{text!r} is not a size; write for example 8, 64K or 1M")
    return int(digits) << SUFFIXES.get(suffix, 0)


def text_of(size: int) -> str:
    """Return the shortest notation of a size: the inverse of `bytes_of`."""
    for suffix, shift in reversed(SUFFIXES.items()):
        if size and size % (1 << shift) == 0:
            return f"{size >> shift}{suffix}"
    return str(size)
