"""Tensors in registered memory, which the peers on this host read and write in place.

`empty` makes such tensors, `register` moves an existing one, and DistributedDataParallel's buckets
are registered automatically (`Buckets`). See docs/explanation/registered.md for registered memory.

**A stale registration is never used.** A call finds registered memory by the address of its tensor.
A registration holds its tensor, so the storage cannot be freed while it is registered; memory of
`empty` *is* the storage and is freed with it. Resizing a storage moves it, and its new address is
not registered. Before the core uses memory of a registration, it asks the kernel whether the shared
pages are still mapped at that address. If the old block was returned to the system, those pages are
no longer mapped. If the allocator reused the block, the pages are the memory of the new tensor.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

from ringfold import _native
from ringfold._native import Buffer, Request
from ringfold.errors import InvalidArgumentError, RingfoldError
from ringfold.registration import Registration

BUCKET_BYTES_MIN = 256 << 10
"""Minimum size of a bucket; smaller tensors are copied about as fast as accessed remotely."""
FIRST_AGREEMENT = 16
"""Number of the call at which ranks first agree on registrations; then at each doubling, and at
every `AGREEMENTS_APART`th call.
"""
AGREEMENTS_APART = 256
WINDOW = 512
"""The number of calls that an agreement considers: no iteration has as many buckets."""
PERSISTENT_TIMES = 2
"""Sightings after which a storage is permanent: buckets from before the rebuild are seen once."""
_OURS = 2
"""The reference count of a storage that only a registration uses: the tensor's and the Python
object's.
"""


def communicator(group: Any = None) -> _native.Communicator:
    """The core's communicator of a process group (by default the default group)."""
    group = dist.distributed_c10d._get_default_group() if group is None else group
    if not hasattr(group, "communicator"):
        group = group._get_backend(torch.device("cpu"))
    found: _native.Communicator | None = getattr(group, "communicator", None)
    if found is None:
        raise InvalidArgumentError(
            "the group's backend is not ringfold; give one made with "
            "`new_group(backend='ringfold')`"
        )
    return found


def empty(*shape: Any, dtype: torch.dtype | None = None, group: Any = None) -> torch.Tensor:
    """A tensor of zeros in registered memory of `group` (by default the default group).

    A collective call that blocks until all ranks of the group have made it; shapes may differ. The
    memory lives as long as the tensor or a view of it, and cannot be resized; freeing it does not
    involve the other ranks.
    """
    lengths = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
    dtype = torch.get_default_dtype() if dtype is None else dtype
    count = torch.Size(lengths).numel()
    memory = communicator(group).alloc(count * dtype.itemsize)
    if count == 0:
        return torch.empty(lengths, dtype=dtype, device="cpu")
    return torch.frombuffer(memory, dtype=dtype, count=count).view(lengths)


def register(tensor: torch.Tensor, group: Any = None) -> Registration:
    """Move the memory of a contiguous tensor into shared memory, at the same address, until the
    registration is closed.

    A collective call that blocks until all ranks of the group have made it; shapes may differ. The
    tensor must not be used meanwhile.
    """
    tensor = tensor.detach()
    return Registration(communicator(group).register(Buffer(tensor, True)), tensor)


class Buckets:
    """Registers the gradient buckets of DistributedDataParallel once they have proved permanent.

    A tensor counts as a bucket if it is all-reduced in place within a backward pass, is a whole
    storage, large, and was seen before. Ranks must register together, but may find different
    buckets, so they agree. At fixed call numbers, each rank votes for those of the last calls that
    were on permanent storages; storages with the votes of all ranks are registered. These calls
    block until all ranks have made them. Buckets from before DistributedDataParallel rebuilt them
    are never seen again, so they are not registered; those of a model that is gone are released at
    the next agreement.
    """

    def __init__(self, native: _native.Communicator) -> None:
        self._native = native
        self._is_useful = native.hosts < native.world_size and _native.registers_buckets()
        self._calls = 0
        self._seen: dict[int, tuple[StorageWeakRef, int, int]] = {}
        self._registered: dict[int, Registration] = {}

    def look(self, tensors: Sequence[torch.Tensor], requests: Sequence[Request]) -> None:
        """Observe an in-place all-reduce of large tensors before it is made."""
        if not self._is_useful or torch._C._current_graph_task_id() < 0:
            return
        for request in requests:
            # Ranks must count alike, so a refused call does not count.
            self._native.check(request)
        for tensor in tensors:
            if tensor.is_cpu:
                self._calls += 1
                self._remember(tensor)
                if is_time_to_agree(self._calls):
                    self._agree()

    def close(self) -> None:
        """Release all registrations."""
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
        # A weak reference prevents the storage's key from being reused, but does not keep its
        # memory.
        weak, times, _ = self._seen.get(storage._cdata, (None, 0, 0))
        if weak is None or weak.expired():
            weak, times = StorageWeakRef(storage), 0
        self._seen[storage._cdata] = (weak, times + 1, self._calls)

    def _agree(self) -> None:
        """Register the buckets that all ranks agree on."""
        self._forget_the_dead()
        mine = self._candidates()
        votes = torch.zeros(WINDOW, dtype=torch.uint8, device="cpu")
        for age in mine:
            votes[age] = 1
        self._everywhere(votes)
        for age in votes.nonzero().flatten().tolist():
            self._register(mine[age])

    def _candidates(self) -> dict[int, torch.Tensor]:
        """The permanent storages, by the number of calls since they were last seen."""
        found = {}
        for name, (_, times, last) in self._seen.items():
            age = self._calls - last
            if times >= PERSISTENT_TIMES and age < WINDOW and name not in self._registered:
                storage = torch.UntypedStorage._new_with_weak_ptr(name)
                if storage is not None:
                    found[age] = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
        return found

    def _everywhere(self, votes: torch.Tensor) -> None:
        """Keep the votes that all ranks cast. Runs after all earlier calls, so none is in progress
        afterwards.
        """
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
            # Refused on all ranks alike; calls continue as before.
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
    """Whether ranks agree on registrations at call number `calls`."""
    is_power_of_two = calls & (calls - 1) == 0
    return calls >= FIRST_AGREEMENT and (is_power_of_two or calls % AGREEMENTS_APART == 0)
