"""Average gradients in packs during backward, for training loops without DDP (after MegEngine's
ParamPack).

    average = make_allreduce_cb("mean", backend="shm", pack_bytes=10 << 20)
    average.attach(model)
    for x, y in batches:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        average.wait()
        optimizer.step()

A *pack* is one buffer for gradients of one type, in the order in which they become ready. A full
pack is all-reduced at once, while backward computes the other gradients. The first step has no
packs: it records the order, and in `wait` all ranks agree on rank 0's order and reduce everything.
From then on, the packs start in the agreed order on every rank, regardless of the order in which
gradients become ready on that rank: a pack waits for those before it.

A gradient becomes a view of its pack. The gradient is copied once if autograd made a separate
tensor, and not at all if autograd accumulates into the existing view
(`zero_grad(set_to_none=False)`). Behind the gradients, a pack has a mark for each: 1 if this rank
has a gradient. A sum of marks above 0 tells a rank without a gradient that others have one. A
parameter that got a gradient on no rank keeps `grad = None`, and the optimizer ignores it.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ringfold.errors import InvalidArgumentError, RingfoldError
from ringfold.torch.hooks.buckets import in_shape_of

PACK_BYTES = 10 << 20
OPERATIONS = {"mean": dist.ReduceOp.AVG, "sum": dist.ReduceOp.SUM}
# MegEngine's name for a backend that uses shared memory, as ringfold does among ranks of one host.
ALIASES = {"shm": "ringfold"}


def make_allreduce_cb(
    op: str = "mean", backend: str | None = None, group: Any = None, pack_bytes: int = PACK_BYTES
) -> "PackedAllReduce":
    """Return an object that averages (`mean`) or adds up (`sum`) a model's gradients over the
    ranks; `attach` the model to it.

    backend: the torch backend that carries the packs: `ringfold` (also called `shm`), `gloo`, and
        so on; by default the group's own. If it is not the group's own, a new group of the same
        ranks is made, so all ranks of the job must make this call.
    group: the process group; by default the default group.
    pack_bytes: the size at which a pack is sent. A larger gradient has a pack of its own.
    """
    if op not in OPERATIONS:
        raise InvalidArgumentError(f"unknown op `{op}`; use one of {', '.join(OPERATIONS)}")
    if pack_bytes <= 0:
        raise InvalidArgumentError(f"pack_bytes {pack_bytes} is not above 0")
    name = ALIASES.get(backend, backend) if backend is not None else None
    if name is None or name == dist.get_backend(group):
        return PackedAllReduce(op, group, pack_bytes)
    made = dist.new_group(dist.get_process_group_ranks(group or dist.group.WORLD), backend=name)
    return PackedAllReduce(op, made, pack_bytes, owns_group=True)


class Pack:
    """Gradients that are reduced together."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        first = parameters[0]
        self.parameters = parameters
        count = sum(parameter.numel() for parameter in parameters)
        # The marks, and one more element: whether a rank's parameters have changed.
        self.buffer = torch.zeros(
            count + len(parameters) + 1, dtype=first.dtype, device=first.device
        )
        self.views: list[torch.Tensor] = []
        begin = 0
        for parameter in parameters:
            self.views.append(
                in_shape_of(parameter, self.buffer[begin : begin + parameter.numel()])
            )
            begin += parameter.numel()
        self.marks = self.buffer[begin:-1]
        self.changed = self.buffer[-1]
        self.missing = len(parameters)
        self.present = [False] * len(parameters)
        self.work: Any = None

    def add(self, slot: int) -> None:
        """Add a parameter's gradient."""
        parameter, view = self.parameters[slot], self.views[slot]
        if parameter.grad is not view:
            if parameter.grad.layout != torch.strided:
                raise InvalidArgumentError("sparse gradients cannot be packed")
            view.copy_(parameter.grad)
            parameter.grad = view
        self.missing -= not self.present[slot]
        self.present[slot] = True

    def launch(self, op: str, group: Any, changed: bool) -> None:
        """Start the all-reduce; parameters without a gradient on this rank count as zero."""
        for view, present in zip(self.views, self.present, strict=True):
            if not present:
                view.zero_()
        self.marks.copy_(torch.tensor(self.present, device="cpu"))
        self.changed.fill_(changed)
        wire = torch.view_as_real(self.buffer) if self.buffer.is_complex() else self.buffer
        self.work = dist.all_reduce(wire, OPERATIONS[op], group=group, async_op=True)

    def wait(self) -> bool:
        """Wait for the all-reduce and set every parameter's gradient; return whether some rank's
        parameters have changed.
        """
        self.work.wait()
        if not all(self.present):
            for slot, mark in enumerate(self.marks.tolist()):
                if not self.present[slot] and mark != 0:
                    self.parameters[slot].grad = self.views[slot]
        self.missing = len(self.parameters)
        self.present = [False] * len(self.parameters)
        self.work = None
        return bool(self.changed != 0)


class Place(NamedTuple):
    """The place of a parameter's gradient."""

    pack: Pack
    slot: int


class PackedAllReduce:
    """All-reduces the gradients of a model's parameters in packs. Made by `make_allreduce_cb`.

    All ranks attach the same parameters, and run the same steps: one backward pass per step, or
    several of which all but the last are within `no_sync`; then `wait`. Which parameters get
    gradients may differ between ranks and steps; frozen or unfrozen ones are detected, and the
    ranks agree on new packs. With op `sum`, gradients must be zeroed or removed between steps.

    The parameters themselves are never sent: start with equal ones (the same seed, or a broadcast).
    """

    def __init__(self, op: str, group: Any, pack_bytes: int, owns_group: bool = False) -> None:
        self.op = op
        self.group = group
        self.pack_bytes = pack_bytes
        self._owns_group = owns_group
        self._parameters: dict[str, torch.nn.Parameter] = {}
        self._names: dict[int, str] = {}
        self._handles: dict[str, Any] = {}
        # Backward may call from several threads if parameters are on several devices.
        self._lock = threading.Lock()
        self._syncs = True
        # Without packs: the names in the order in which gradients became ready in this step.
        self._order: dict[str, None] = {}
        self._packs: list[Pack] = []
        self._places: dict[str, Place] = {}
        self._launched = 0

    def attach(self, parameters: torch.nn.Module | Iterable[torch.nn.Parameter]) -> None:
        """Average the gradients of these parameters: a module's, or a list in the same order on all
        ranks.
        """
        if isinstance(parameters, torch.nn.Module):
            named = list(parameters.named_parameters())
        else:
            named = [("", parameter) for parameter in parameters]
        for name, parameter in named:
            if id(parameter) in self._names:
                raise InvalidArgumentError("a parameter is already attached")
            number = len(self._parameters)
            if not name or name in self._parameters:
                # Several modules may have a `weight`.
                name = f"{number}.{name}"
            self._parameters[name] = parameter
            self._names[id(parameter)] = name
        self._forget_packs()
        self._watch()

    def detach(self) -> None:
        """Detach from the parameters; the object can no longer be used. Gradients keep their
        values.
        """
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        self._parameters.clear()
        self._names.clear()
        self._forget_packs()
        if self._owns_group:
            dist.destroy_process_group(self.group)
            self._owns_group = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only accumulate gradients in backward passes within the block; the next pass outside
        reduces them.
        """
        self._syncs = False
        try:
            yield
        finally:
            self._syncs = True

    def __call__(self, parameter: torch.nn.Parameter) -> None:
        """Report that the gradient of `parameter` is ready. Called by autograd; loops that compute
        gradients themselves may call it, too.
        """
        if not self._syncs:
            return
        name = self._names[id(parameter)]
        with self._lock:
            place = self._places.get(name)
            if name in self._order or (place is not None and place.pack.present[place.slot]):
                raise RingfoldError(
                    f"the gradient of `{name}` became ready twice; call wait() after backward, and "
                    "put all backward passes "
                    "of a step but the last into no_sync()"
                )
            if place is None:
                self._order[name] = None
                return
            place.pack.add(place.slot)
            while self._launched < len(self._packs) and self._packs[self._launched].missing == 0:
                self._launch()

    def wait(self) -> None:
        """Reduce the remaining gradients and wait: afterwards the gradients are the same on all
        ranks.

        Blocks until all ranks have called `wait`. Errors of the all-reduces are raised here.
        """
        if self._packs:
            self._wait_for_packs()
        else:
            self._watch()
            self._packs = self._reduce_at_once(self._trainable())
            self._places = {
                self._names[id(parameter)]: Place(pack, slot)
                for pack in self._packs
                for slot, parameter in enumerate(pack.parameters)
            }
        self._order.clear()
        self._launched = 0

    def _wait_for_packs(self) -> None:
        with self._lock:
            while self._launched < len(self._packs):
                self._collect(self._packs[self._launched])
                self._launch()
        # A list, because `any` of a generator would stop at the first changed pack.
        if any([pack.wait() for pack in self._packs]):
            # New parameters have gradients already, which no pack has reduced.
            self._watch()
            self._reduce_at_once([name for name in self._trainable() if name not in self._places])
            self._forget_packs()

    def _trainable(self) -> list[str]:
        return [name for name, parameter in self._parameters.items() if parameter.requires_grad]

    def _watch(self) -> None:
        """Register a hook for every parameter that takes part."""
        for name in self._trainable():
            if name not in self._handles:
                self._handles[name] = self._parameters[name].register_post_accumulate_grad_hook(
                    self
                )

    def _forget_packs(self) -> None:
        self._packs = []
        self._places = {}

    def _collect(self, pack: Pack) -> None:
        """Add gradients from earlier passes that this pass did not touch."""
        for slot, parameter in enumerate(pack.parameters):
            if not pack.present[slot] and parameter.grad is not None:
                pack.add(slot)

    def _launch(self) -> None:
        changed = False
        if self._launched == len(self._packs) - 1:
            changed = set(self._trainable()) != set(self._places)
        self._packs[self._launched].launch(self.op, self.group, changed)
        self._launched += 1

    def _reduce_at_once(self, names: list[str]) -> list[Pack]:
        """Agree with all ranks on packs for these parameters, and reduce them."""
        packs = self._packs_in(self._agree(names))
        for pack in packs:
            self._collect(pack)
            pack.launch(self.op, self.group, changed=False)
        for pack in packs:
            pack.wait()
        return packs

    def _agree(self, names: list[str]) -> list[str]:
        """`names` in the order in which rank 0's gradients became ready; raises on all ranks if the
        parameters differ.
        """
        mine = [
            (name, str(self._parameters[name].dtype), tuple(self._parameters[name].shape))
            for name in names
        ]
        # Names without a gradient come last, in the order in which backward would have reached
        # them.
        wanted = set(names)
        order = [name for name in self._order if name in wanted]
        order += [name for name in reversed(names) if name not in self._order]
        everyone: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(everyone, (mine, order), group=self.group)
        for rank, (theirs, _) in enumerate(everyone):
            if theirs != everyone[0][0]:
                raise InvalidArgumentError(
                    "the parameters of ranks differ: "
                    f"{first_difference(everyone[0][0], theirs, rank)}"
                )
        agreed: list[str] = everyone[0][1]
        return agreed

    def _packs_in(self, order: list[str]) -> list[Pack]:
        """Packs by type and device, in the order in which they become full; incomplete ones come
        last.
        """
        full: list[list[torch.nn.Parameter]] = []
        filling: dict[tuple[torch.dtype, torch.device], list[torch.nn.Parameter]] = {}
        for name in order:
            parameter = self._parameters[name]
            pack = filling.setdefault((parameter.dtype, parameter.device), [])
            pack.append(parameter)
            if sum(one.numel() * one.element_size() for one in pack) >= self.pack_bytes:
                full.append(filling.pop((parameter.dtype, parameter.device)))
        return [Pack(parameters) for parameters in (*full, *filling.values())]


def first_difference(ours: list[Any], theirs: list[Any], rank: int) -> str:
    """Description of the first difference between the parameters of rank 0 and another rank."""
    for mine, other in zip(ours, theirs, strict=False):
        if mine != other:
            return (
                f"rank 0 has `{mine[0]}` {mine[1]} {list(mine[2])}, "
                f"rank {rank} has `{other[0]}` {other[1]} {list(other[2])}"
            )
    return f"rank 0 has {len(ours)} of them, rank {rank} has {len(theirs)}"
