"""torch's collectives, with the signatures that its C++ and Python callers use.

A mixin of both process group classes. Names and arguments are torch's, in all spellings of its
versions; `opts` is an option object, or omitted as in the simple forms
(`allreduce(tensor, op, timeout)`). All ranks make the same calls in the same order. With
`opts.asyncOp` (which C++ callers leave on), a call returns a `RingfoldWork` at once; otherwise the
call returns when it has completed. Tensors must not be accessed in between. Errors are those of
`ringfold.errors`.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ringfold._native import ShortestSum
from ringfold.errors import InvalidArgumentError
from ringfold.torch import sparse
from ringfold.torch.device import DeviceSide
from ringfold.torch.issue import Call, Issuer
from ringfold.torch.memory import BUCKET_BYTES_MIN, Buckets
from ringfold.torch.options import SUM, Terms, terms
from ringfold.torch.tensors import Numbers, is_plain, listed, moved, numbers, same_type

Tensors = list[torch.Tensor]


class Collectives:
    """All collectives of torch over a communicator of the core."""

    _issuer: Issuer
    _shortest: ShortestSum
    _side: DeviceSide
    _call: Callable[[str, Terms], Call]
    buckets: Buckets
    _rank: int
    _world_size: int
    _timeout_s: float

    def allreduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None
    ) -> dist.Work:
        """Each tensor becomes the reduction of all ranks' tensors."""
        done = self._shortest.all_reduce(tensors, opts)
        if done is not None:
            return done
        # torch's own forms: options, or an operation and a timeout.
        if opts is None:
            opts = SUM if op is None else op
        return self._all_reduce(tensors, opts, timeout)

    def _all_reduce(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> dist.Work:
        """`allreduce` of any tensors."""
        said = terms(opts, self._timeout_s, timeout=timeout)
        call = Call("all_reduce", said, self._world_size)
        large = []
        for tensor in tensors if type(tensors) is list else listed(tensors):
            if tensor.is_sparse:
                return sparse.all_reduce(self, tensor, said)
            plain = tensor if is_plain(tensor) else call.target(tensor, is_read=True)
            if plain.nbytes >= BUCKET_BYTES_MIN:
                large.append(plain)
            call.ask(numbers(tensor, said.operation), tensor.numel(), plain, plain)
            call.outputs.append(tensor)
        if large:
            self.buckets.look(large, call.requests)
        return self._issuer.issue(call)

    allreduce_sparse = allreduce
    # Does not call `allreduce`: the profiler would observe the call twice.
    allreduce_coalesced = _all_reduce

    def broadcast(
        self,
        tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> dist.Work:
        """Each tensor becomes a copy of the root's tensor."""
        call = self._call("broadcast", terms(opts, self._timeout_s, root=root, timeout=timeout))
        is_root = call.terms.root == self._rank
        for tensor in listed(tensors):
            plain = call.source(tensor) if is_root else call.target(tensor)
            call.ask(
                moved(tensor),
                tensor.numel(),
                plain if is_root else None,
                plain,
                root=call.terms.root,
            )
            call.outputs.append(tensor)
        return self._issuer.issue(call)

    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> dist.Work:
        """The root's tensor becomes the reduction of all ranks' tensors; others stay unchanged."""
        said = terms(opts, self._timeout_s, op, root, timeout)
        call = Call("reduce", said, self._world_size)
        is_root = call.terms.root == self._rank
        for tensor in listed(tensors):
            plain = call.target(tensor, is_read=True) if is_root else call.source(tensor)
            kind = numbers(tensor, call.terms.operation)
            call.ask(kind, tensor.numel(), plain, plain if is_root else None, root=call.terms.root)
            call.outputs.append(tensor)
        return self._issuer.issue(call)

    def allgather(
        self, output_lists: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> dist.Work:
        """Tensor `i` of an output list becomes rank `i`'s input, and must have its size. Inputs may
        differ in size.
        """
        call = self._call("all_gather", terms(opts, self._timeout_s, timeout=timeout))
        inputs = listed(inputs)
        for outputs, given in zip(lists(output_lists, len(inputs)), inputs, strict=True):
            self._gather_parts(call, outputs, given)
        return self._issuer.issue(call)

    def allgather_coalesced(
        self, output_lists: Any, inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        """Tensor `j` of list `i` becomes rank `i`'s input `j`."""
        call = self._call("all_gather", terms(opts, self._timeout_s))
        self._check_ranks(len(output_lists), "lists of outputs")
        for index, given in enumerate(inputs):
            self._gather_parts(call, [outputs[index] for outputs in output_lists], given)
        return self._issuer.issue(call)

    def all_gather_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        """The output becomes the concatenation of all ranks' inputs."""
        return Collectives.all_gather_single_coalesced(self, [output], [given], opts, timeout)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> dist.Work:
        """Each output becomes the concatenation of all ranks' inputs of the same index."""
        call = self._call("all_gather", terms(opts, self._timeout_s, timeout=timeout))
        for output, given in zip(outputs, inputs, strict=True):
            same_type([output], given)
            if output.numel() != given.numel() * self._world_size:
                raise InvalidArgumentError(
                    f"an output of {output.numel()} elements for {self._world_size} inputs of "
                    f"{given.numel()}"
                )
            call.ask(moved(given), given.numel(), call.source(given), call.target(output))
            call.outputs.append(output)
        return self._issuer.issue(call)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self,
        output_lists: Any,
        inputs: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> dist.Work:
        """At the root, tensor `i` of the output list becomes rank `i`'s input."""
        call = self._call("gather", terms(opts, self._timeout_s, root=root, timeout=timeout))
        for index, given in enumerate(listed(inputs)):
            filled = None
            if call.terms.root == self._rank:
                outputs = lists(output_lists, 1)[index]
                self._check_equal(outputs, given, "outputs")
                filled = call.divided(outputs)
                call.outputs.extend(outputs)
            plain = call.source(given)
            call.ask(moved(given), given.numel(), plain, filled, root=call.terms.root)
        return self._issuer.issue(call)

    def gather_single(
        self,
        output: torch.Tensor | None,
        given: torch.Tensor,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> dist.Work:
        """At the root, the output becomes the concatenation of all ranks' inputs."""
        call = self._call("gather", terms(opts, self._timeout_s, root=root, timeout=timeout))
        filled = None
        if call.terms.root == self._rank:
            if output is None or output.numel() != given.numel() * self._world_size:
                raise InvalidArgumentError(
                    f"the root's output must hold {self._world_size} inputs of {given.numel()} "
                    "elements"
                )
            filled = call.target(output)
            call.outputs.append(output)
        plain = call.source(given)
        call.ask(moved(given), given.numel(), plain, filled, root=call.terms.root)
        return self._issuer.issue(call)

    gather_into_tensor = gather_single

    def scatter(
        self,
        outputs: Any,
        input_lists: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> dist.Work:
        """The output becomes tensor `rank` of the root's list."""
        call = self._call("scatter", terms(opts, self._timeout_s, root=root, timeout=timeout))
        for index, output in enumerate(listed(outputs)):
            given = None
            if call.terms.root == self._rank:
                parts = lists(input_lists, 1)[index]
                self._check_equal(parts, output, "inputs")
                given = call.joined(parts)
            call.ask(
                moved(output), output.numel(), given, call.target(output), root=call.terms.root
            )
            call.outputs.append(output)
        return self._issuer.issue(call)

    def reduce_scatter(
        self,
        outputs: Any,
        input_lists: Any,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        """The output becomes the reduction of all ranks' list entry `rank`. Sizes may differ."""
        said = terms(opts, self._timeout_s, op, timeout=timeout)
        call = Call("reduce_scatter", said, self._world_size)
        outputs = listed(outputs)
        for output, parts in zip(outputs, lists(input_lists, len(outputs)), strict=True):
            self._check_ranks(len(parts), "inputs")
            same_type(parts, output)
            if parts[self._rank].numel() != output.numel():
                raise InvalidArgumentError(
                    f"an output of {output.numel()} elements for an input of "
                    f"{parts[self._rank].numel()}"
                )
            kind = numbers(output, call.terms.operation)
            counts = [part.numel() for part in parts]
            call.ask(kind, evened(counts), call.joined(parts), call.target(output))
            call.outputs.append(output)
        return self._issuer.issue(call)

    def reduce_scatter_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        """The output becomes this rank's part of the reduction of all inputs, divided into equal
        parts.
        """
        return Collectives.reduce_scatter_single_coalesced(
            self, [output], [given], opts, op, timeout
        )

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self,
        outputs: Tensors,
        inputs: Tensors,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        """Each output becomes this rank's part of the reduction of all inputs of the same index,
        divided into equal parts.
        """
        said = terms(opts, self._timeout_s, op, timeout=timeout)
        call = Call("reduce_scatter", said, self._world_size)
        for output, given in zip(outputs, inputs, strict=True):
            same_type([output], given)
            if given.numel() != output.numel() * self._world_size:
                raise InvalidArgumentError(
                    f"an input of {given.numel()} elements for {self._world_size} outputs of "
                    f"{output.numel()}"
                )
            kind = numbers(output, call.terms.operation)
            call.ask(kind, output.numel(), call.source(given), call.target(output))
            call.outputs.append(output)
        return self._issuer.issue(call)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> dist.Work:
        """Output `i` becomes rank `i`'s input `rank`. Sizes may differ."""
        call = self._call("all_to_all", terms(opts, self._timeout_s, timeout=timeout))
        self._check_ranks(len(outputs), "outputs")
        self._check_ranks(len(inputs), "inputs")
        same_type([*outputs, *inputs], inputs[0])
        counts = [part.numel() for part in inputs], [part.numel() for part in outputs]
        call.ask(moved(inputs[0]), counts, call.joined(inputs), call.divided(outputs))
        call.outputs.extend(outputs)
        return self._issuer.issue(call)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        """Part `i` of the output becomes part `rank` of rank `i`'s input. Parts along axis 0 are
        equal, or have the numbers of rows in the splits.
        """
        call = self._call("all_to_all", terms(opts, self._timeout_s, timeout=timeout))
        same_type([output], given)
        counts = (
            self._split(given, input_splits, "input"),
            self._split(output, output_splits, "output"),
        )
        call.ask(moved(given), counts, call.source(given), call.target(output))
        call.outputs.append(output)
        return self._issuer.issue(call)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> dist.Work:
        """Wait until all ranks have called `barrier`. If the group has a lane, the current stream
        of its device is synchronized first.
        """
        self._side.synchronize()
        call = Call("barrier", terms(opts, self._timeout_s, timeout=timeout))
        call.ask(_BYTES, 0, None, None)
        return self._issuer.issue(call)

    def start_coalescing(self) -> None:
        """Begin coalescing: later calls are only started."""
        self._issuer.start_coalescing()

    def end_coalescing(self) -> dist.Work:
        """Return one handle for all calls since `start_coalescing`."""
        return self._issuer.end_coalescing()

    def _start_coalescing(self, device: torch.device) -> None:
        self._issuer.start_coalescing()

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        return self._issuer.end_coalescing()

    def _gather_parts(self, call: Call, outputs: Tensors, given: torch.Tensor) -> None:
        self._check_ranks(len(outputs), "outputs")
        same_type(outputs, given)
        counts = [output.numel() for output in outputs]
        if counts[self._rank] != given.numel():
            raise InvalidArgumentError(
                f"output {self._rank} has {counts[self._rank]} elements for this rank's input of "
                f"{given.numel()}"
            )
        call.ask(moved(given), evened(counts), call.source(given), call.divided(outputs))
        call.outputs.extend(outputs)

    def _split(self, tensor: torch.Tensor, splits: Sequence[int], what: str) -> list[int]:
        """The number of elements of each part."""
        rows = tensor.shape[0] if tensor.dim() else 0
        if not splits:
            if rows % self._world_size:
                raise InvalidArgumentError(
                    f"axis 0 of the {what}, of length {rows}, cannot be divided among "
                    f"{self._world_size} ranks; pass split sizes"
                )
            splits = [rows // self._world_size] * self._world_size
        self._check_ranks(len(splits), f"{what} splits")
        if sum(splits) != rows or min(splits) < 0:
            raise InvalidArgumentError(
                f"{what} splits {list(splits)} do not add up to the length of axis 0, {rows}"
            )
        row = tensor.numel() // rows if rows else 0
        return [split * row for split in splits]

    def _check_ranks(self, count: int, what: str) -> None:
        if count != self._world_size:
            raise InvalidArgumentError(f"{count} {what}; one for each of {self._world_size} ranks")

    def _check_equal(self, parts: Tensors, part: torch.Tensor, what: str) -> None:
        self._check_ranks(len(parts), what)
        same_type(parts, part)
        for rank, other in enumerate(parts):
            if other.numel() != part.numel():
                raise InvalidArgumentError(
                    f"{what} of {other.numel()} elements for rank {rank} and {part.numel()} for "
                    "this one; they must be equal here"
                )


_BYTES = Numbers("uint8")


def lists(given: Any, count: int) -> list[Tensors]:
    """`given` as lists of tensors; the simple forms pass one list."""
    if given and isinstance(given[0], torch.Tensor):
        given = [given]
    if len(given) != count:
        raise InvalidArgumentError(f"{len(given)} lists of tensors for {count} tensors")
    return [list(tensors) for tensors in given]


def evened(counts: list[int]) -> int | list[int]:
    """`counts` as one count if all are equal, which is the common and the faster case."""
    return counts[0] if min(counts) == max(counts) else counts
