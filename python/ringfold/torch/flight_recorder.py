"""The last calls of the groups of this process.

Each group has a `Trace`, which puts a `Record` of every call into one ring buffer for the whole
process. A record costs a call about half a microsecond: one object, two clock readings, the
tensors' shapes; no text. The shortest calls (`_native.ShortestSum`) put no object into the ring: a
`Record` of theirs is made when it is read. All other work is done on demand: `flight_dump` writes
the ring in PyTorch's format, `watch` finds stuck calls.

Invariants: no record holds a tensor, a communicator or a lane, because records outlive the group.
Any thread may record and read. A forked child starts with an empty ring.
"""

import itertools
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from math import prod
from time import time_ns
from types import CodeType, FrameType
from typing import Any, NamedTuple, Protocol

import torch

from ringfold import _native
from ringfold.errors import (
    AbortedError,
    CorruptError,
    MismatchError,
    PeerFailedError,
    RingfoldError,
    RingfoldTimeoutError,
)
from ringfold.torch.options import Terms

FATAL = (AbortedError, CorruptError, MismatchError, PeerFailedError, RingfoldTimeoutError)
"""The errors after which a group is unusable."""
MESSAGES = frozenset({"send", "recv"})
"""Point-to-point calls; all others are collectives."""
FRAMES_MAX = 32
"""Maximum number of stack frames in a record."""
RANKS_MAX = 8
"""Maximum number of a group's ranks that a text names."""

Noted = tuple[Sequence[int] | None, Sequence[int] | None, torch.dtype | None, Any, int | None, int]
"""Shapes of inputs and outputs, element type, counts, root or peer, tag."""


SumParts = tuple["Trace", int, int, str, list[int], float, int, int]
"""The arguments of `Record.of_sum`."""


class Settings(NamedTuple):
    """Settings from the environment; see docs/reference/env.md."""

    records: int
    has_frames: bool
    dump: str | None
    signal: str | None
    stall_s: float
    ends_process: bool


class Call(Protocol):
    """The recorded facts of a call."""

    name: str
    terms: Terms
    noted: list[Noted]


_NAMES = {"float8_e4m3": "float8_e4m3fn"}
"""torch's names of types that have another name in ringfold."""


class Record:
    """One call. `works` are the core's handles of a started call; a blocking call has none."""

    __slots__ = (
        "completed_ns", "created_ns", "error", "frames", "id", "message", "name", "noted", "number",
        "terms", "trace", "works",
    )  # fmt: skip

    def __init__(
        self,
        trace: "Trace",
        number: int,
        message: int,
        name: str,
        terms: Terms,
        noted: Sequence[Noted],
        number_of_record: int | None = None,
    ) -> None:
        self.trace = trace
        ring = trace.recorder.ring
        self.id = ring.next_id() if number_of_record is None else number_of_record
        self.number = number
        """Sequence number among the group's collectives; for a message, among those with the same
        peer, tag and direction.
        """
        self.message = message
        """Sequence number among all messages of the group; 0 for a collective."""
        self.name = name
        self.terms = terms
        self.noted = noted
        self.frames: list[tuple[CodeType, int]] | None = None
        self.works: Sequence[_native.Work | _native.DeviceWork] | None = None
        self.error: str | None = None
        self.completed_ns = 0
        self.created_ns = time_ns()

    @staticmethod
    def of_sum(
        trace: "Trace",
        number_of_record: int,
        number: int,
        dtype: str,
        shape: list[int],
        timeout_s: float,
        created_ns: int,
        completed_ns: int,
    ) -> "Record":
        """The record of a sum in place, as the ring holds it."""
        kind = getattr(torch, _NAMES.get(dtype, dtype))
        noted: Noted = (shape, shape, kind, prod(shape), 0, 0)
        terms = Terms(False, timeout_s)
        record = Record(trace, number, 0, "all_reduce", terms, (noted,), number_of_record)
        record.created_ns, record.completed_ns = created_ns, completed_ns
        return record

    def complete(self) -> None:
        """Record that the call was seen to complete successfully."""
        if not self.completed_ns:
            self.completed_ns = time_ns()
            self.works = None

    @property
    def is_message(self) -> bool:
        """Whether the call is point-to-point."""
        return self.message > 0

    @property
    def is_on_device(self) -> bool:
        """Whether a lane executes the call."""
        works = self.works
        return bool(works and isinstance(works[0], _native.DeviceWork))

    @property
    def is_pending(self) -> bool:
        """Whether the call has neither completed nor failed. Detects completions that no one waited
        for.
        """
        if self.completed_ns or self.error is not None:
            return False
        if self.works and all(work.done() for work in self.works):
            try:
                for work in self.works:
                    work.wait()
                self.complete()
            except RingfoldError as error:
                self.error = str(error)
                self.works = None
            return False
        return True

    def settle(self) -> None:
        """Record the outcome of the call, if it has ended."""
        _ = self.is_pending

    def __str__(self) -> str:
        """The call in torch's terms, for users; ranks are those of the job."""
        number = f"message {self.message}" if self.is_message else f"collective {self.number}"
        shapes = [
            shape
            for given, filled, *_ in self.noted
            if (shape := given if given is not None else filled) is not None
        ]
        what = (
            f" of {self.noted[0][2]} " + ", ".join(str(list(shape)) for shape in shapes)
            if shapes
            else ""
        )
        return f"{self.name}{self._roles()}{what}, {number} of group {self.trace}"

    def _roles(self) -> str:
        """The call's operation, root or peer, as text."""
        root, tag = self.noted[0][4:] if self.noted else (None, 0)
        who = "any rank" if root is None else f"rank {self.trace.ranks[root]}"
        operation = f"({self.terms.operation.upper()})"
        if self.is_message:
            return f"{' to' if self.name == 'send' else ' from'} {who}" + (
                f" (tag {tag})" if tag else ""
            )
        return {
            "all_reduce": operation,
            "reduce_scatter": operation,
            "reduce": f"{operation} to {who}",
            "gather": f" to {who}",
            "broadcast": f" from {who}",
            "scatter": f" from {who}",
        }.get(self.name, "")


class Trace:
    """One group's part of the recorder: its identity and its progress."""

    def __init__(
        self,
        communicator: _native.Communicator,
        name: str,
        ranks: Sequence[int],
        rank: int,
        description: str = "",
    ) -> None:
        self.recorder = recorder()
        self._communicator = weakref.ref(communicator)
        self._lane: Callable[[], _native.Lane | None] = lambda: None
        self.id = next(self.recorder.groups)
        self.name = name
        self.description = description
        self.ranks = list(ranks)
        """The members, by their ranks in the job."""
        self.rank = rank
        self.dump: str | None = None
        """The file of the group's dump, once written."""
        self._remember = self.recorder.ring.append
        self.has_frames = self.recorder.settings.has_frames
        """Whether records have the program's stack."""
        self.counter = _native.Counter()
        """Counts the collectives made."""
        self._messages = itertools.count(1)
        self._streams = Counter[tuple[Any, ...]]()
        self.recorder.traces.add(self)

    def begin(self, call: Call) -> Record:
        """Record that `call` is about to be made."""
        if call.name not in MESSAGES:
            return self.begin_collective(call.name, call.terms, call.noted)
        stream = stream_of(call)
        self._streams[stream] += 1
        return self._add(
            Record(
                self, self._streams[stream], next(self._messages), call.name, call.terms, call.noted
            )
        )

    def begin_collective(self, name: str, terms: Terms, noted: Sequence[Noted]) -> Record:
        """Record that a collective is about to be made."""
        return self._add(Record(self, self.counter.next(), 0, name, terms, noted))

    def _add(self, record: Record) -> Record:
        if self.has_frames:
            record.frames = list(frames())
        self._remember(record)
        return record

    def retract(self, record: Record) -> None:
        """Remove the record of a refused call, which other ranks do not count."""
        if record.is_message:
            self._streams[stream_of(record)] -= 1
        else:
            self.counter.retract()
        # Another thread's record may have taken its place.
        with suppress(ValueError):
            self.recorder.ring.remove(record)

    @property
    def communicator(self) -> _native.Communicator | None:
        """The group's communicator, unless the group is gone."""
        return self._communicator()

    @property
    def lane(self) -> _native.Lane | None:
        """The lane of the group's calls on device tensors, from the first one until the group is
        gone.
        """
        return self._lane()

    @lane.setter
    def lane(self, lane: _native.Lane) -> None:
        self._lane = weakref.ref(lane)

    def fault(self) -> RingfoldError | None:
        """The error that ended the group, or its calls on a device."""
        for part in self.communicator, self.lane:
            if part is not None and (error := part.fault()) is not None:
                return error
        return None

    @property
    def own(self) -> int:
        """This process' rank in the job."""
        return self.ranks[self.rank]

    def __str__(self) -> str:
        words = [self.description] if self.description else []
        if self.ranks != list(range(len(self.ranks))):
            more = ", …" if len(self.ranks) > RANKS_MAX else ""
            words.append("ranks " + ", ".join(map(str, self.ranks[:RANKS_MAX])) + more)
        return f"`{self.name}`" + (f" ({', '.join(words)})" if words else "")


def stream_of(call: "Call | Record") -> tuple[Any, ...]:
    """The key of the messages among which a message is numbered: name, peer and tag."""
    return (call.name, *call.noted[0][4:]) if call.noted else (call.name,)


class Recorder:
    """The process' ring, and its live groups."""

    def __init__(self) -> None:
        self.settings = Settings(*_native.diagnosis())
        self.ring = _native.FlightRing(self.settings.records)
        self.groups = itertools.count()
        self.traces: weakref.WeakSet[Trace] = weakref.WeakSet()
        self.writing = threading.Lock()
        """Held while a dump is written."""

    def records(self) -> list[Record]:
        """A copy of the ring, oldest first."""
        return [
            each if isinstance(each, Record) else Record.of_sum(*each)
            for each in self.ring.records()
        ]

    def live(self) -> list[Trace]:
        """The live groups."""
        return copied(self.traces)


def copied(items: Iterable[Any]) -> list[Any]:
    """A copy of a collection to which other threads add."""
    while True:
        try:
            return list(items)
        except RuntimeError:
            # Another thread has added an item meanwhile.
            continue


_recorder: Recorder | None = None


def recorder() -> Recorder:
    """The process' recorder; created with the first group."""
    global _recorder
    if _recorder is None:
        _recorder = Recorder()
    return _recorder


def _forget() -> None:
    """Drop the recorder in a forked child: its calls are the parent's."""
    global _recorder
    _recorder = None


os.register_at_fork(after_in_child=_forget)


def frames() -> Iterator[tuple[CodeType, int]]:
    """The program's stack, innermost frame first, without this package."""
    frame: FrameType | None = sys._getframe(1)
    found = 0
    here = os.path.dirname(__file__)
    while frame is not None and found < FRAMES_MAX:
        if not frame.f_code.co_filename.startswith(here):
            yield frame.f_code, frame.f_lineno
            found += 1
        frame = frame.f_back
