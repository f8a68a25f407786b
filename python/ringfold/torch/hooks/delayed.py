"""Double buffering: the optimizer uses the last step's averaged gradients while this step's travel (as in ChainerMN).

    w(t+1) = w(t) - update(mean over ranks of g(w(t-1)))

The exchange has a whole step's time. It costs one step of staleness and two more buffers of the gradients' size. The first
step has nothing to use: its update must not be made at all (zeros would still decay weights and move them by momentum),
which `DelayedOptimizer` sees to. What travels at the end is used by its `flush`, so that n steps make n updates.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ringfold.errors import InvalidArgument
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

    hook, hook_state: what averages while the next step runs, `fp16_hook` for instance; an all-reduce if there is none. The
        group stands for a state that is not given; one that is goes into checkpoints on its own. A state from a pickle has none.
    empty: whether the last backward pass left nothing to use in the gradients, because none had travelled yet.

    What it keeps is averaged, so it is the same on all ranks, and rank 0's checkpoint does for all. With loss scaling, or anything
    else that changes the gradients' meaning between steps, remember that they are used one step late.
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
        # What has arrived and is not in flight any more: after a checkpoint, or when DDP made its buckets anew.
        self.ledger = Ledger("average")
        self.empty = True
        self.hook = None
        self.hook_state = None
        self._flights: dict[Layout, Flight] = {}
        # Buffers whose gradients DDP has read; the next flight takes them.
        self._spare: dict[Layout, torch.Tensor] = {}

    def state_dict(self) -> dict[str, Any]:
        """What the next step will use; waits until it has arrived."""
        if self._unbound is None:
            self.land()
        return super().state_dict()

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Have the next step use what `state_dict` described; what travels now is dropped once it has arrived."""
        self.land()
        super().load_state_dict(saved)

    def land(self) -> None:
        """Wait for everything that travels."""
        self._land(list(self._flights))

    def _land(self, layouts: list[Layout]) -> None:
        for layout in layouts:
            self.ledger.put(layout, (self._flights.pop(layout).future.wait(),))
            self._spare.pop(layout, None)

    def flush(self) -> bool:
        """Wait for what travels and put it into the parameters' `grad`; whether there was anything.

        The next step is like the first one then.
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
        """Send this step's gradients of a bucket on their way, and give the last step's."""
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
        """Begin to average a bucket, in another buffer than DDP's."""
        if self.hook is None:
            torch.div(bucket.buffer(), self.world_size, out=travelling)
            done = dist.all_reduce(travelling, group=self.group, async_op=True).get_future()
            return done.then(lambda future: future.value()[0])
        bucket.set_buffer(travelling.copy_(bucket.buffer()))
        return self.hook(self.group if self.hook_state is None else self.hook_state, bucket)

    def _landed(self, layout: Layout, like: torch.Tensor) -> Flight:
        """The last step's gradients in a layout in which they did not travel; zeros if there are none."""
        names = set(layout.names)
        self._land([other for other in self._flights if not names.isdisjoint(other.names)])
        if not self.ledger.holds(layout):
            self.empty = True
        average = self.ledger.take(layout, like).to(like.dtype)
        return Flight(completed(average), average)


def delayed_hook(
    state: DelayedState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Give the last step's averaged gradients, and begin to average this step's. Use it with `DelayedOptimizer`."""
    state.require_model()
    return state.swap(bucket)


class DelayedOptimizer(torch.optim.Optimizer):
    """An optimizer that knows of the delay: no update while there is nothing to use, one more for what is left at the end.

        optimizer = DelayedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), state)
        ...                       # as always: zero_grad, backward, step
        optimizer.flush()         # before the weights are used for good

    Everything else is the wrapped optimizer's; learning rate schedulers take either of the two. A skipped step counts for a
    scheduler as any other.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, delayed: DelayedState) -> None:
        # Not the base class' constructor: groups and state are the wrapped optimizer's.
        self.optimizer = optimizer
        self.delayed = delayed

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def step(self, closure: None = None) -> None:
        """Update the parameters, unless the last backward pass left nothing to use.

        A closure is refused: it would run backward again, and every backward shifts the gradients by one.
        """
        if closure is not None:
            raise InvalidArgument("delayed gradients do not go with a closure")
        if not self.delayed.empty:
            self.optimizer.step()

    def flush(self) -> bool:
        """Wait for the gradients that still travel and make their update; whether there were any.

        Training may go on afterwards; its first step is skipped again.
        """
        found = self.delayed.flush()
        if found:
            self.optimizer.step()
        return found

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer."""
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the wrapped optimizer."""
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's; gradients that travel are in the `DelayedState`'s."""
        saved: dict[str, Any] = self.optimizer.state_dict()
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the wrapped optimizer."""
        self.optimizer.load_state_dict(state_dict)

    def __repr__(self) -> str:
        return f"DelayedOptimizer({self.optimizer!r})"
