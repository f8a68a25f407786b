"""Authentication of moved bytes, so that no forged pickle is loaded.

torch's object collectives move pickled objects as `uint8` tensors, and loading a pickle executes
code. Connections between hosts are not signed beyond their handshake. Therefore, in a group that
has a key (its job has a secret) and sends over a network, every call that moves `uint8` has a
trailer behind each part that one rank sends to another:

    bytes | number: u64 | HMAC-SHA256(key, header, bytes)

The header identifies the part: the collective, the sender, the receiver or all, the tag, the
sequence number and the length. All ranks count collectives alike, so a part of another call, rank
or group fails; a collective is counted when none of its requests has been refused. A message's
number is its sender's count, and a receiver accepts each only once. A failure ends the group with
`CorruptError`, before the bytes are delivered.

The parts with trailers are in copies, which cost time for every `uint8` tensor of such a group, and
for no other type.
"""

import ctypes
import hmac
import struct
from collections.abc import Iterator
from typing import NamedTuple

import torch

from ringfold import _native
from ringfold._native import Request
from ringfold.errors import CorruptError
from ringfold.torch.issue import Call, Counts, changed, noted, widened
from ringfold.torch.options import Terms
from ringfold.torch.tensors import Numbers, Side, moved

_NUMBER = struct.Struct("<Q")
_MAC_BYTES = 32
TRAILER_BYTES = _NUMBER.size + _MAC_BYTES
# The call's name, sender, receiver, tag, number, size in bytes.
_HEADER = struct.Struct("<16sIIIQQ")
_ALL = 0xFFFFFFFF
"""The receiver, in the header, of a part that all ranks receive."""

Share = tuple[int | None, int]
"""The rank that sends or receives a part (`None`: the sender is not known yet), and the part's size
in bytes.
"""


class Seal:
    """A group's key and its counters."""

    def __init__(self, key: bytes, communicator: _native.Communicator) -> None:
        self._key = key
        self._communicator = communicator
        self.rank = communicator.rank
        self.world_size = communicator.world_size
        self._collectives = 0
        self._sent: dict[tuple[int, int], int] = {}
        self._received: dict[tuple[int, int], Received] = {}

    def allow(self, request: Request) -> None:
        """Raise if the core refuses a request."""
        self._communicator.check(request)

    def next_collective(self) -> int:
        """The sequence number of a collective."""
        self._collectives += 1
        return self._collectives

    def next_message(self, peer: int, tag: int) -> int:
        """The sequence number of a message to `peer`."""
        number = self._sent[peer, tag] = self._sent.get((peer, tag), 0) + 1
        return number

    def close(self, part: torch.Tensor, name: str, to: int, tag: int, number: int) -> None:
        """Fill the trailer of `part`, which this rank sends."""
        memory = bytes_of(part)
        size = len(memory) - TRAILER_BYTES
        _NUMBER.pack_into(memory, size, number)
        memory[size + _NUMBER.size :] = self._mac(memory, size, (name, self.rank, to, tag, number))

    def check(
        self, part: torch.Tensor, name: str, source: int, to: int, tag: int, number: int | None
    ) -> None:
        """Raise, and abort the group, unless `source` sent `part`, unchanged and once; `number` is
        `None` for a message.
        """
        memory = bytes_of(part)
        size = len(memory) - TRAILER_BYTES
        (found,) = _NUMBER.unpack_from(memory, size)
        expected = self._mac(memory, size, (name, source, to, tag, found))
        is_genuine = hmac.compare_digest(expected, memory[size + _NUMBER.size :])
        if number is None:
            is_due = is_genuine and self._received.setdefault((source, tag), Received()).take(found)
        else:
            is_due = found == number
        if not (is_genuine and is_due):
            raise self._refusal(source, name, size)

    def _mac(self, memory: memoryview, size: int, what: tuple[str, int, int, int, int]) -> bytes:
        name, source, to, tag, number = what
        header = _HEADER.pack(name.encode(), source, to, tag, number, size)
        mac = hmac.new(self._key, header, "sha256")
        mac.update(memory[:size])
        return mac.digest()

    def _refusal(self, source: int, name: str, size: int) -> CorruptError:
        text = (
            f"{size} bytes of {name} from rank {source} failed authentication: changed or replayed "
            "in transit"
        )
        self._communicator.abort(text)
        error = CorruptError(text)
        error.peer = source
        return error


class Received:
    """The numbers of a stream's messages that have arrived; they may be checked in any order."""

    def __init__(self) -> None:
        self._below = 0
        self._above: set[int] = set()

    def take(self, number: int) -> bool:
        """Record a message's number; return whether it is new."""
        if number <= self._below or number in self._above:
            return False
        self._above.add(number)
        while self._below + 1 in self._above:
            self._below += 1
            self._above.remove(self._below)
        return True


class Check(NamedTuple):
    """A part that this rank receives, and its expected identity."""

    part: torch.Tensor
    """The part with its trailer."""
    plain: torch.Tensor
    """The destination of the part's bytes."""
    source: int | None
    to: int
    tag: int
    request: int
    """The index of the call's request that receives the part."""


class Closing(NamedTuple):
    """A part that this rank sends, whose trailer is still to be filled."""

    part: torch.Tensor
    to: int
    tag: int
    request: int
    """The index of the call's request that sends the part."""


class SealedCall(Call):
    """A call that moves data, in a group with a `Seal`: like `Call`, but bytes get trailers."""

    __slots__ = ("_checks", "_closings", "_numbers", "_seal")

    def __init__(self, seal: Seal, name: str, terms: Terms) -> None:
        super().__init__(name, terms)
        self._seal = seal
        self._checks: list[Check] = []
        self._closings: list[Closing] = []
        # Sequence numbers by sealed request; `None` until known, and for messages.
        self._numbers: dict[int, int | None] = {}

    def is_hosted(self, tensor: torch.Tensor) -> bool:
        """Like `Call.is_hosted`, but true for moved bytes, whose trailers the host computes."""
        return moved(tensor).name == "uint8" or super().is_hosted(tensor)

    def ask(
        self,
        numbers: Numbers,
        counts: Counts,
        given: Side | None,
        filled: Side | None,
        *,
        root: int | None = 0,
        tag: int = 0,
    ) -> None:
        """Add requests like `Call.ask`, with trailers behind moved bytes."""
        if numbers.name != "uint8":
            super().ask(numbers, counts, given, filled, root=root, tag=tag)
            return
        # Checked with the caller's lengths, before trailers are added.
        self._seal.allow(
            self.request(numbers, counts, self.terms.operation, given, filled, root, tag)
        )
        if self.passage is not None:
            self.passage.bring_now()
        # Bytes are on the host, where sides are in one piece.
        assert not isinstance(given, list) and not isinstance(filled, list)
        seal, lengths = self._seal, widened(counts, numbers.width)
        gives, gets = shares_of(self.name, seal.rank, seal.world_size, lengths, root)
        self._numbers[len(self.requests)] = None
        closed = None if given is None else self._closed(given, gives, tag)
        if filled is None or filled is given:
            opened = closed if filled is given else None
        else:
            opened = self._opened(filled, gets, tag)
        with_trailers = changed(lengths, lambda count: count + TRAILER_BYTES)
        super().ask(_BYTES, with_trailers, closed, opened, root=root, tag=tag)
        self.noted[-1] = noted(given, filled, counts, root, tag)

    def admit(self, communicator: _native.Communicator) -> None:
        """Do the same as `Call.admit`, then number the parts and fill their trailers."""
        super().admit(communicator)
        if self.name not in _MESSAGES:
            for request in self._numbers:
                self._numbers[request] = self._seal.next_collective()
        for part, to, tag, request in self._closings:
            number = self._numbers[request]
            number = self._seal.next_message(to, tag) if number is None else number
            self._seal.close(part, self._bound_name, to, tag, number)
        self._closings.clear()

    def _closed(self, given: torch.Tensor, gives: list[Share], tag: int) -> torch.Tensor:
        """The substitute for `given`, whose trailers are still to be filled."""
        closed = room_for(gives)
        parts = zip(
            split(closed, gives, TRAILER_BYTES), split(plain_bytes(given), gives), strict=True
        )
        for (to, part), (_, plain) in parts:
            assert to is not None
            part[: plain.numel()] = plain
            self._closings.append(Closing(part, to, tag, len(self.requests)))
        return closed

    def _opened(self, filled: torch.Tensor, gets: list[Share], tag: int) -> torch.Tensor:
        """The substitute for `filled`, whose bytes `finish` copies to it."""
        opened = room_for(gets)
        to = _ALL if self.name in _FOR_ALL else self._seal.rank
        parts = zip(
            split(opened, gets, TRAILER_BYTES), split(plain_bytes(filled), gets), strict=True
        )
        for (source, part), (_, plain) in parts:
            self._checks.append(Check(part, plain, source, to, tag, len(self.requests)))
        return opened

    @property
    def _bound_name(self) -> str:
        """The name of the call in a part's header, the same at both ends."""
        return "message" if self.name in _MESSAGES else self.name

    @property
    def is_needed(self) -> bool:
        """Whether `finish` has work to do."""
        return bool(self._checks) or super().is_needed

    def finish(self) -> None:
        """Check the received parts, once, and copy them to their destination."""
        checks, self._checks = self._checks, []
        for check in checks:
            source = self.works[check.request].source if check.source is None else check.source
            number = self._numbers[check.request]
            self._seal.check(check.part, self._bound_name, source, check.to, check.tag, number)
        # All parts are verified before any is delivered.
        for check in checks:
            # Detached by this thread, which may not be in the call's inference mode.
            check.plain.detach().copy_(check.part[: check.plain.numel()])
        super().finish()


_BYTES = Numbers("uint8")
_MESSAGES = frozenset({"send", "recv"})
_FOR_ALL = frozenset({"all_gather", "broadcast"})


def shares_of(
    name: str, rank: int, world_size: int, counts: Counts, peer: int | None
) -> tuple[list[Share], list[Share]]:
    """The parts that this rank sends, if it sends, and those that it receives, if it receives, in
    memory order. `peer` is the root of a collective, or the other end of a message.
    """
    given, got = counts if isinstance(counts, tuple) else (counts, counts)
    sent, received = by_rank(given, world_size), by_rank(got, world_size)
    match name:
        case "all_gather":
            return [(_ALL, sent[rank])], list(enumerate(received))
        case "all_to_all":
            return list(enumerate(sent)), list(enumerate(received))
        case "broadcast":
            return [(_ALL, sent[0])], [(peer, received[0])]
        case "gather":
            return [(peer, sent[rank])], list(enumerate(received))
        case "scatter":
            return list(enumerate(sent)), [(peer, received[rank])]
    assert name in _MESSAGES
    return [(peer, sent[0])], [(peer, received[0])]


def by_rank(counts: int | list[int], world_size: int) -> list[int]:
    """One count per rank."""
    return [counts] * world_size if isinstance(counts, int) else counts


def room_for(shares: list[Share]) -> torch.Tensor:
    """Memory for the parts and their trailers."""
    count = sum(size + TRAILER_BYTES for _, size in shares)
    return torch.empty(count, dtype=torch.uint8, device="cpu")


def split(
    memory: torch.Tensor, shares: list[Share], extra: int = 0
) -> Iterator[tuple[int | None, torch.Tensor]]:
    """The parts of `memory`, each with its rank."""
    start = 0
    for rank, size in shares:
        yield rank, memory[start : start + size + extra]
        start += size + extra


def plain_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a plain tensor, sharing its memory."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def bytes_of(part: torch.Tensor) -> memoryview:
    """The memory of a part, which is never empty."""
    return memoryview((ctypes.c_ubyte * part.numel()).from_address(part.data_ptr())).cast("B")
