"""The single path from torch's calls to the core's.

A `Call` collects requests, substitutes for tensors that cannot be used in place, and the result for
torch. `Issuer.issue` executes it: at once if the caller waits anyway, else started, with a
`RingfoldWork`. Work common to every call (profiler, recorder, coalescing) is done here.

Invariants: requests are started in the order of the calls, which must be the same on all ranks.
Only a call with `asyncOp` off blocks here.
"""

from collections.abc import Callable, Sequence
from time import time_ns

import torch
import torch.distributed as dist

from ringfold import _native
from ringfold._native import Request
from ringfold.torch.flight_dump import failed
from ringfold.torch.flight_recorder import Noted, Record, Trace
from ringfold.torch.options import Terms
from ringfold.torch.tensors import Numbers, Staging, is_truncated
from ringfold.torch.work import CompletedWork, RingfoldWork

Counts = int | list[int] | tuple[list[int], list[int]]

NOWHERE = (0, 0)
"""The memory of a rank without input or output."""


def memory(tensor: torch.Tensor | None) -> tuple[int, int]:
    """Address and bytes of a plain tensor."""
    return NOWHERE if tensor is None else (tensor.data_ptr(), tensor.nbytes)


class Call(Staging):
    """One call of torch, as requests to the core."""

    __slots__ = ("name", "noted", "outputs", "requests", "terms", "works", "world_size")

    def __init__(self, name: str, terms: Terms, world_size: int = 1) -> None:
        super().__init__()
        self.world_size = world_size
        """The operation, of calls that reduce."""
        self.name = name
        """The collective's name in `ringfold`."""
        self.terms = terms
        self.requests: list[Request] = []
        self.noted: list[Noted] = []
        """For the flight recorder."""
        self.outputs: list[torch.Tensor] = []
        self.works: list[_native.Work] = []
        """The handles of the requests, once they are started."""

    def ask(
        self,
        numbers: Numbers,
        counts: Counts,
        given: torch.Tensor | None,
        filled: torch.Tensor | None,
        *,
        root: int | None = 0,
        tag: int = 0,
    ) -> None:
        """Add a request on plain tensors; counts are in elements of torch."""
        terms = self.terms
        operation = terms.operation
        if operation == "avg" and given is not None and is_truncated(given.dtype, operation):
            operation = "sum"
            if filled is not None:
                self.divide(filled, self.world_size)
        source = memory(given)
        self.noted.append(noted(given, filled, counts, root, tag))
        self.requests.append(
            Request.raw(
                self.name,
                numbers.name,
                counts if numbers.width == 1 else widened(counts, numbers.width),
                source,
                source if filled is given else memory(filled),
                op=operation,
                factor=terms.factor,
                root=root,
                tag=tag,
                timeout=terms.timeout_s,
                owner=(given, filled),
            )
        )


def widened(counts: Counts, width: int) -> Counts:
    """The same counts if an element of torch is `width` elements of the core."""
    if isinstance(counts, int):
        return counts * width
    if isinstance(counts, tuple):
        return [count * width for count in counts[0]], [count * width for count in counts[1]]
    return [count * width for count in counts]


def noted(
    given: torch.Tensor | None,
    filled: torch.Tensor | None,
    counts: Counts,
    root: int | None,
    tag: int,
) -> Noted:
    """The recorded facts of a request: no tensor."""
    if given is filled:
        if given is None:
            return (None, None, None, counts, root, tag)
        shape = given.shape
        return (shape, shape, given.dtype, counts, root, tag)
    if given is None:
        assert filled is not None
        return (None, filled.shape, filled.dtype, counts, root, tag)
    return (given.shape, None if filled is None else filled.shape, given.dtype, counts, root, tag)


class Issuer:
    """Executes calls on one communicator, and records them. Any thread may use it."""

    def __init__(self, communicator: _native.Communicator, trace: Trace) -> None:
        self.communicator = communicator
        self._trace = trace
        self._done = CompletedWork()
        self._coalesced: list[RingfoldWork] | None = None
        # The request of the last `sum_now`.
        self._sum_terms = Terms(False, 0.0)

    def issue(self, call: Call) -> dist.Work:
        """Execute `call`, or start it."""
        if torch.autograd._profiler_enabled():
            with torch.autograd.profiler.record_function(f"ringfold:{call.name}"):
                return self._issue(call)
        return self._issue(call)

    def _issue(self, call: Call) -> dist.Work:
        record = self._trace.begin(call)
        try:
            if call.terms.is_async or self._coalesced is not None:
                return self._start(call, record)
            for request in call.requests:
                self.communicator.run(request)
            if call.is_needed:
                call.finish()
            record.completed_ns = time_ns()
            return self._done
        except BaseException as error:
            failed(record, error)
            raise

    def _start(self, call: Call, record: Record) -> dist.Work:
        if len(call.requests) == 1:
            started = [self.communicator.start(call.requests[0])]
        else:
            # Grouped, so that the tuner knows their number.
            started = self.communicator.start_group(call.requests)
        record.works = call.works = started
        finish: Callable[[], None] | None = call.finish if call.is_needed else None
        work = RingfoldWork(started, call.outputs, finish, record)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def sum_now(self, tensor: torch.Tensor, name: str, timeout_s: float) -> dist.Work | None:
        """Sum a plain tensor in place and wait: a shorter `issue` for such calls.

        Returns `None` if the call needs `issue`. Small calls take a fraction of a microsecond in
        the core, so every step in Python counts.
        """
        if self._coalesced is not None or torch.autograd._profiler_enabled():
            return None
        if self._sum_terms.timeout_s != timeout_s:
            self._sum_terms = Terms(False, timeout_s)
        shape, count = tensor.shape, tensor.numel()
        noted = ((shape, shape, tensor.dtype, count, 0, 0),)
        record = self._trace.begin_collective("all_reduce", self._sum_terms, noted)
        try:
            self.communicator.sum_at(name, count, tensor.data_ptr(), timeout_s)
        except BaseException as error:
            failed(record, error)
            raise
        record.completed_ns = time_ns()
        return self._done

    def start_coalescing(self) -> None:
        """Only start calls, until `end_coalescing`."""
        self._coalesced = []

    def end_coalescing(self) -> dist.Work:
        """One handle for all calls since `start_coalescing`."""
        works, self._coalesced = self._coalesced or [], None
        return together(works)


def together(works: Sequence[RingfoldWork]) -> dist.Work:
    """One handle for several calls."""
    calls = [call for work in works for call in work.calls]
    outputs = [output for work in works for output in work.result()]

    def finish() -> None:
        for work in works:
            work.wait()

    return RingfoldWork(calls, outputs, finish)
