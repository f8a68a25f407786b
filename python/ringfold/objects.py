"""Collectives of Python objects, sent as pickles by two collectives of bytes each.

The first collective exchanges the lengths. A length of -1 means that an object could not be
pickled: all ranks then raise, and none waits. Unpickling runs code of the object's sender: a rank
trusts the other ranks of its job, which have proved that they know the job's secret.
"""

import pickle
from array import array
from collections.abc import Sequence
from typing import Any

from ringfold.errors import InvalidArgumentError

# The length of an object that could not be pickled.
_FAILED = -1


class ObjectCollectives:
    """The communicator methods for any object that `pickle` supports."""

    rank: Any
    world_size: Any
    broadcast: Any
    all_gather: Any
    gather: Any

    def _is_grouping(self) -> bool:
        raise NotImplementedError

    def broadcast_object(
        self, thing: Any = None, root: int = 0, *, timeout: float | None = None
    ) -> Any:
        """Every rank gets a copy of the root's object; the root gets the object itself.

        Blocks; `timeout`, in seconds, applies to each of the two collectives used. If the object
        cannot be pickled, the root raises `pickle`'s error and the others raise
        `InvalidArgumentError`; the communicator remains usable.
        """
        self._refuse_in_group()
        is_root = self.rank == root
        pickled, problem = _pickled(thing) if is_root else (bytearray(), None)
        length = array("q", [len(pickled) if problem is None else _FAILED])
        self.broadcast(length, root, out=length, timeout=timeout)
        _check(problem, {root: length[0]})
        data = pickled if is_root else bytearray(length[0])
        self.broadcast(data, root, out=data, timeout=timeout)
        return thing if is_root else pickle.loads(data)

    def all_gather_object(self, thing: Any, *, timeout: float | None = None) -> list[Any]:
        """Every rank gets copies of all ranks' objects, in rank order.

        Blocks and fails as `broadcast_object` does. Objects may differ in type and size.
        """
        pickled, lengths = self._lengths(thing, timeout)
        data = bytearray(sum(lengths))
        self.all_gather(pickled, counts=lengths, out=data, timeout=timeout)
        return _unpickled(data, lengths)

    def gather_object(
        self, thing: Any, root: int = 0, *, timeout: float | None = None
    ) -> list[Any] | None:
        """The root gets copies of all ranks' objects, in rank order; the others get `None`.

        Blocks and fails as `broadcast_object` does.
        """
        pickled, lengths = self._lengths(thing, timeout)
        data = bytearray(sum(lengths)) if self.rank == root else None
        self.gather(pickled, root, counts=lengths, out=data, timeout=timeout)
        return None if data is None else _unpickled(data, lengths)

    def _lengths(self, thing: Any, timeout: float | None) -> tuple[bytearray, list[int]]:
        """This rank's pickle, and the lengths of all ranks' pickles."""
        self._refuse_in_group()
        pickled, problem = _pickled(thing)
        own = array("q", [len(pickled) if problem is None else _FAILED])
        lengths = array("q", bytes(own.itemsize * self.world_size))
        self.all_gather(own, out=lengths, timeout=timeout)
        _check(problem, dict(enumerate(lengths)))
        return pickled, list(lengths)

    def _refuse_in_group(self) -> None:
        if self._is_grouping():
            raise InvalidArgumentError(
                "objects cannot be exchanged in a group: lengths are needed before bytes"
            )


def _pickled(thing: Any) -> tuple[bytearray, Exception | None]:
    """The pickle of an object, or the error that prevented it."""
    try:
        return bytearray(pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)), None
    # An object's own methods may raise anything.
    except Exception as error:
        return bytearray(), error


def _check(problem: Exception | None, lengths: dict[int, int]) -> None:
    """Raise if an object of any rank could not be pickled."""
    if problem is not None:
        raise problem
    for rank, length in lengths.items():
        if length < 0:
            raise InvalidArgumentError(
                f"rank {rank} could not pickle its object; see rank {rank}'s error"
            )


def _unpickled(data: bytearray, lengths: Sequence[int]) -> list[Any]:
    things, begin = [], 0
    view = memoryview(data)
    for length in lengths:
        things.append(pickle.loads(view[begin : begin + length]))
        begin += length
    return things
