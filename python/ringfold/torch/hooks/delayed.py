"""Double buffering: the optimizer uses the previous step's averaged gradients while this step's are
in flight (as in ChainerMN).

    w(t+1) = w(t) - update(mean over ranks of g(w(t-1)))

The exchange has a whole step's time. It costs one step of staleness and two more buffers of the
gradients' size. The first step has no gradients to use: `DelayedOptimizer` skips its update (zeros
would still decay weights and move them by momentum). Its `flush` applies the gradients that are in
flight at the end, so that n steps make n updates.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ringfold.errors import InvalidArgumentError
from ringfold.torch.hooks.buckets import Layout, Ledger, in_shape_of
from ringfold.torch.hooks.compress import Hook
from ringfold.torch.hooks.exchange import completed
from ringfold.torch.hooks.state import HookState


class Flight(NamedTuple):
    """Gradients of a bucket that are being averaged."""

    future: torch.futures.Future[torch.Tensor]
    buffer: torch.Tensor


class DelayedState(HookState):
    """The state of `delayed_hook`.

    hook, hook_state: the hook that averages while the next step runs, `fp16_hook` for instance; by
        default an all-reduce. Without a state, the group is passed; a given state is checkpointed
        separately. A state from a pickle has neither.
    empty: whether the last backward pass left no usable gradients, because none were in flight
        before it.

    The stored gradients are averaged, so they are the same on all ranks, and rank 0's checkpoint
    suffices. With loss scaling, or anything else that changes the gradients' meaning between steps,
    remember that they are used one step late.
    """

    hook: Hook | None
    hook_state: Any

    def __init__(
        self,
        model: torch.nn.Module,
        hook: Hook | None = None,
        hook_state: Any = None,
        group: Any = None,
    ) -> None:
        super().__init__(model, group)
        self.hook = hook
        self.hook_state = hook_state

    def _begin(self) -> None:
        # Gradients that have arrived and are no longer in flight: after a checkpoint, or when DDP
        # rebuilt its buckets.
        self.ledger = Ledger("average")
        self.empty = True
        self.hook = None
        self.hook_state = None
        self._flights: dict[Layout, Flight] = {}
        # Buffers whose gradients DDP has read; the next flight reuses them.
        self._spare: dict[Layout, torch.Tensor] = {}

    def state_dict(self) -> dict[str, Any]:
        """The gradients for the next step; waits until they have arrived."""
        if self._unbound is None:
            self.land()
        return super().state_dict()

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Use the gradients of `state_dict` in the next step; those in flight are dropped on
        arrival.
        """
        self.land()
        super().load_state_dict(saved)

    def land(self) -> None:
        """Wait for all gradients in flight."""
        self._land(list(self._flights))

    def _land(self, layouts: list[Layout]) -> None:
        for layout in layouts:
            self.ledger.put(layout, (self._flights.pop(layout).future.wait(),))
            self._spare.pop(layout, None)

    def flush(self) -> bool:
        """Wait for the gradients in flight and store them in the parameters' `grad`; return whether
        there were any.

        The next step is then like the first one.
        """
        self.require_model()
        self.land()
        found = False
        for name, (average,) in self.ledger.parts():
            parameter = self.parameters.by_name[name]
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(in_shape_of(parameter, average))
            found = True
        self.ledger.clear()
        return found

    def swap(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start averaging this step's gradients of a bucket, and return the previous step's."""
        buffer = bucket.buffer()
        layout = self.parameters.layout(bucket)
        if bucket.index() == 0:
            self.empty = False
        landed = self._flights.pop(layout, None) or self._landed(layout, buffer)
        travelling = self._spare.pop(layout, None)
        if travelling is None:
            travelling = torch.empty_like(buffer)
        self._flights[layout] = Flight(self._send(bucket, travelling), travelling)
        self._spare[layout] = landed.buffer
        return landed.future

    def _send(
        self, bucket: dist.GradBucket, travelling: torch.Tensor
    ) -> torch.futures.Future[torch.Tensor]:
        """Start averaging a bucket in the buffer `travelling` instead of DDP's."""
        if self.hook is None:
            torch.div(bucket.buffer(), self.world_size, out=travelling)
            done = dist.all_reduce(travelling, group=self.group, async_op=True).get_future()
            return done.then(lambda future: future.value()[0])
        bucket.set_buffer(travelling.copy_(bucket.buffer()))
        return self.hook(self.group if self.hook_state is None else self.hook_state, bucket)

    def _landed(self, layout: Layout, like: torch.Tensor) -> Flight:
        """The previous step's gradients in a new layout; zeros if there are none."""
        names = set(layout.names)
        self._land([other for other in self._flights if not names.isdisjoint(other.names)])
        if not self.ledger.holds(layout):
            self.empty = True
        average = self.ledger.take(layout, like).to(like.dtype)
        return Flight(completed(average), average)


def delayed_hook(
    state: DelayedState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Return the previous step's averaged gradients, and start averaging this step's. Use it with
    `DelayedOptimizer`.
    """
    state.require_model()
    return state.swap(bucket)


class DelayedOptimizer(torch.optim.Optimizer):
    """An optimizer for delayed gradients: it skips the first update, and makes one more at the end.

        optimizer = DelayedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), state)
        ...                       # as usual: zero_grad, backward, step
        optimizer.flush()         # before the final weights are used

    Everything else is the wrapped optimizer's; learning rate schedulers accept either of the two. A
    skipped step counts for a scheduler like any other.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, delayed: DelayedState) -> None:
        # The base class' constructor is not called: groups and state are the wrapped optimizer's.
        self.optimizer = optimizer
        self.delayed = delayed

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def step(self, closure: None = None) -> None:
        """Update the parameters, unless the last backward pass left no usable gradients.

        A closure is refused: it would run backward again, and every backward shifts the gradients
        by one.
        """
        if closure is not None:
            raise InvalidArgumentError("delayed gradients do not support a closure")
        if not self.delayed.empty:
            self.optimizer.step()

    def flush(self) -> bool:
        """Wait for the gradients in flight and apply them; return whether there were any.

        Training may continue afterwards; its first step is skipped again.
        """
        found = self.delayed.flush()
        if found:
            self.optimizer.step()
        return found

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients, as the wrapped optimizer does."""
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group to the wrapped optimizer."""
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state; that of `DelayedState` has the gradients in flight."""
        saved: dict[str, Any] = self.optimizer.state_dict()
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state into the wrapped optimizer."""
        self.optimizer.load_state_dict(state_dict)

    def __repr__(self) -> str:
        return f"DelayedOptimizer({self.optimizer!r})"
