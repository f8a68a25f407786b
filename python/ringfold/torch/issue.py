"""The one way by which calls of torch become calls of the core.

A `Call` collects requests, stand-ins for tensors that cannot be worked on in place, and what torch gets as the result;
`Issuer.issue` carries it out: at once when the caller waits anyway, else started, with a `RingfoldWork` for it. Whatever is
done for every call (profiler, recorder, coalescing) is done here.

Invariants: requests are started in the order of the calls, which must be the same on all ranks. Nothing here blocks except
a call with `asyncOp` off.
"""

from collections.abc import Callable, Sequence


import torch
import torch.distributed as dist

from ringfold import _native
from ringfold._native import Request
from ringfold.torch.options import Terms
from ringfold.torch.tensors import Numbers, Staging
from ringfold.torch.work import CompletedWork, RingfoldWork

Counts = int | list[int] | tuple[list[int], list[int]]

NOWHERE = (0, 0)
"""The memory of a rank that gives, or gets, nothing."""


def memory(tensor: torch.Tensor | None) -> tuple[int, int]:
    """Address and bytes of a plain tensor."""
    return NOWHERE if tensor is None else (tensor.data_ptr(), tensor.nbytes)


class Call(Staging):
    """What one call of torch asks of the core."""

    __slots__ = ("name", "outputs", "requests", "terms")

    def __init__(self, name: str, terms: Terms) -> None:
        super().__init__()
        self.name = name
        """As `ringfold` spells the collective."""
        self.terms = terms
        self.requests: list[Request] = []
        self.outputs: list[torch.Tensor] = []

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
        """Adds a request on plain tensors; counts are in elements of torch."""
        terms = self.terms
        self.requests.append(
            Request.raw(
                self.name,
                numbers.name,
                counts if numbers.width == 1 else widened(counts, numbers.width),
                memory(given),
                memory(filled),
                op=terms.operation,
                factor=terms.factor,
                root=root,
                tag=tag,
                timeout=terms.timeout_s,
                owner=(given, filled),
            )
        )


def widened(counts: Counts, width: int) -> Counts:
    """The same counts when an element of torch is `width` of the core's."""
    if isinstance(counts, int):
        return counts * width
    if isinstance(counts, tuple):
        return [count * width for count in counts[0]], [count * width for count in counts[1]]
    return [count * width for count in counts]


class Issuer:
    """Carries calls out on one communicator. Any thread may use it."""

    def __init__(self, communicator: _native.Communicator) -> None:
        self.communicator = communicator
        self._done = CompletedWork()
        self._coalesced: list[RingfoldWork] | None = None

    def issue(self, call: Call) -> dist.Work:
        """Carries `call` out, or starts it."""
        if torch.autograd._profiler_enabled():
            with torch.autograd.profiler.record_function(f"ringfold:{call.name}"):
                return self._issue(call)
        return self._issue(call)

    def _issue(self, call: Call) -> dist.Work:
        if not call.terms.is_async and self._coalesced is None:
            for request in call.requests:
                self.communicator.run(request)
            if call.is_needed:
                call.finish()
            return self._done
        started = [self.communicator.start(request) for request in call.requests]
        finish: Callable[[], None] | None = call.finish if call.is_needed else None
        work = RingfoldWork(started, call.outputs, finish)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def start_coalescing(self) -> None:
        """From here on calls only start, until `end_coalescing`."""
        self._coalesced = []

    def end_coalescing(self) -> dist.Work:
        """One handle for all calls since `start_coalescing`."""
        works, self._coalesced = self._coalesced or [], None
        return together(works)


def together(works: Sequence[RingfoldWork]) -> dist.Work:
    """One handle for several."""
    calls = [call for work in works for call in work.calls]
    outputs = [output for work in works for output in work.result()]

    def finish() -> None:
        for work in works:
            work.wait()

    return RingfoldWork(calls, outputs, finish)


