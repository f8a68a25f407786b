"""Tensors in registered memory, which the peers of this host read and write where it is.

`empty` makes such tensors, `register` moves one that exists, and DistributedDataParallel's buckets are registered by
themselves (`Buckets`). See docs/registered.md for what registered memory is.

**No stale registration is ever used.** A call finds registered memory by the address of its tensor. A registration holds its
tensor, so the storage cannot be freed under it; memory of `empty` *is* the storage and goes with it. When a storage is
resized, which moves it, its new address is not registered, and before memory of a registration is used the core asks the kernel whether the shared pages are
still mapped there: if the old block went back to the system they are not, and if the allocator gave it to somebody else they
are what that tensor consists of.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

from ringfold import _native
from ringfold._native import Buffer, Request
from ringfold.errors import InvalidArgument, RingfoldError
from ringfold.registration import Registration

BUCKET_BYTES_MIN = 256 << 10
"""Smaller tensors are copied about as fast as they are reached."""
FIRST_AGREEMENT = 16
"""The call at which ranks first agree on what to register; then at twice the number, and so on, and at every `AGREEMENTS_APART`th."""
AGREEMENTS_APART = 256
WINDOW = 512
"""The calls that an agreement looks back on: no iteration has as many buckets."""
PERSISTENT_TIMES = 2
"""A storage that came this often is one that stays: those of before the rebuild of buckets come once."""
_OURS = 2
"""References to a storage that nobody but a registration uses: the tensor's and the Python object's."""


def communicator(group: Any = None) -> _native.Communicator:
    """The core's communicator of a process group (the default one unless given)."""
    group = dist.distributed_c10d._get_default_group() if group is None else group
    if not hasattr(group, "communicator"):
        group = group._get_backend(torch.device("cpu"))
    found: _native.Communicator | None = getattr(group, "communicator", None)
    if found is None:
        raise InvalidArgument(
            "the group's backend is not ringfold; give one made with `new_group(backend='ringfold')`"
        )
    return found


def empty(*shape: Any, dtype: torch.dtype | None = None, group: Any = None) -> torch.Tensor:
    """A tensor of zeros in registered memory of `group` (the default one unless given).

    Every rank of the group calls it, as it calls a collective, and blocks until all have; shapes may differ. The memory lives as
    long as the tensor or a view of it, goes without regard to the other ranks, and cannot be resized.
    """
    lengths = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
    dtype = torch.get_default_dtype() if dtype is None else dtype
    count = torch.Size(lengths).numel()
    memory = communicator(group).alloc(count * dtype.itemsize)
    if count == 0:
        return torch.empty(lengths, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(lengths)


def register(tensor: torch.Tensor, group: Any = None) -> Registration:
    """Moves the memory of a contiguous tensor into shared memory, at the same address, until the registration is closed.

    Every rank of the group calls it, as it calls a collective, and blocks until all have; shapes may differ. Nobody may use
    the tensor meanwhile.
    """
    tensor = tensor.detach()
    return Registration(communicator(group).register(Buffer(tensor, True)), tensor)


class Buckets:
    """Registers the gradient buckets of DistributedDataParallel once they have proved to stay.

    A bucket is taken for one when it is all-reduced in place within a backward pass, is a whole storage, large, and has come
    before. Ranks must register together, but may differ in what they find. So they agree: at call numbers that are fixed
    beforehand each says which of the last calls were on storages that stay, and what all say is registered. These calls block
    until all ranks are there. The buckets that were before DistributedDataParallel rebuilt them never come
    again, so they are not registered; those of a model that is gone are let go at the next agreement.
    """

    def __init__(self, native: _native.Communicator) -> None:
        self._native = native
        self._is_useful = (
            native.hosts == 1 and native.world_size > 1 and _native.registers_buckets()
        )
        self._calls = 0
        self._seen: dict[int, tuple[StorageWeakRef, int, int]] = {}
        self._registered: dict[int, Registration] = {}

    def look(self, tensor: torch.Tensor) -> None:
        """Takes notice of an all-reduce of a plain tensor, before it is made."""
        if (
            tensor.nbytes < BUCKET_BYTES_MIN
            or not self._is_useful
            or torch._C._current_graph_task_id() < 0
        ):
            return
        self._calls += 1
        self._remember(tensor)
        if is_time_to_agree(self._calls):
            self._agree()

    def close(self) -> None:
        """Lets all of them go."""
        for registration in self._registered.values():
            registration.close()
        self._registered.clear()
        self._seen.clear()

    def __len__(self) -> int:
        return len(self._registered)

    def _remember(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.nbytes() != tensor.nbytes:
            return
        # A weak reference keeps the storage's name from being used again, not its memory.
        weak, times, _ = self._seen.get(storage._cdata, (None, 0, 0))
        if weak is None or weak.expired():
            weak, times = StorageWeakRef(storage), 0
        self._seen[storage._cdata] = (weak, times + 1, self._calls)

    def _agree(self) -> None:
        """Registers what all ranks find worth it."""
        self._forget_the_dead()
        mine = self._candidates()
        votes = torch.zeros(WINDOW, dtype=torch.uint8)
        votes[list(mine)] = 1
        self._everywhere(votes)
        for age in votes.nonzero().flatten().tolist():
            self._register(mine[age])

    def _candidates(self) -> dict[int, torch.Tensor]:
        """The storages that stay, by how many calls ago they came last."""
        found = {}
        for name, (_, times, last) in self._seen.items():
            age = self._calls - last
            if times >= PERSISTENT_TIMES and age < WINDOW and name not in self._registered:
                storage = torch.UntypedStorage._new_with_weak_ptr(name)
                if storage is not None:
                    found[age] = torch.empty(0, dtype=torch.uint8).set_(storage)
        return found

    def _everywhere(self, votes: torch.Tensor) -> None:
        """Leaves the votes that all ranks cast. Comes after all calls before it, so nothing is under way afterwards."""
        memory = (votes.data_ptr(), votes.nbytes)
        self._native.run(
            Request.raw("all_reduce", "uint8", votes.numel(), memory, memory, op="min", owner=votes)
        )

    def _register(self, tensor: torch.Tensor) -> None:
        name = tensor.untyped_storage()._cdata
        try:
            self._registered[name] = Registration(
                self._native.register(Buffer(tensor, True)), tensor
            )
        except RingfoldError:
            # Refused on all ranks alike; calls go on as before.
            self._seen.pop(name)

    def _forget_the_dead(self) -> None:
        for name in [name for name, (weak, _, _) in self._seen.items() if weak.expired()]:
            del self._seen[name]
        for name, registration in list(self._registered.items()):
            storage = registration.array.untyped_storage()
            if torch._C._storage_Use_Count(storage._cdata) <= _OURS:
                del storage
                registration.close()
                del self._registered[name], self._seen[name]


def is_time_to_agree(calls: int) -> bool:
    """Whether call number `calls` is one at which ranks agree."""
    is_power_of_two = calls & (calls - 1) == 0
    return calls >= FIRST_AGREEMENT and (is_power_of_two or calls % AGREEMENTS_APART == 0)
