"""The common part of the states of all hooks: a model, a group, saving and loading."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ringfold.errors import InvalidArgumentError
from ringfold.torch.hooks.buckets import Ledger, NamedParameters


class HookState:
    """The values that a hook keeps between steps, by parameter name.

    model: the `DistributedDataParallel` model, or the module in it. A model with
        `find_unused_parameters=True` is refused, unless its graph is static: DDP discards a hook's
        result for parameters that no rank used in this step, and a hook with a state may then
        return an older gradient.
    group: the process group; by default the model's, or the default group.

    `state_dict` is the part for checkpoints; `load_state_dict` restores it into a state of the same
    model. A pickled state (as a part of a pickled or copied DDP model) has only that part; `bind`
    attaches such a state to a model again.
    """

    # The values that a subclass keeps, and the attributes that are saved in checkpoints, too.
    ledger: Ledger
    settings: tuple[str, ...] = ()

    def __init__(self, model: torch.nn.Module, group: Any = None) -> None:
        self._unbound: dict[str, Any] | None = None
        self._begin()
        self._bind(model, group)

    def _begin(self) -> None:
        """Reset; a subclass creates its ledger here, and everything else that is not in
        checkpoints.
        """
        raise NotImplementedError

    def bind(self, model: torch.nn.Module, group: Any = None) -> None:
        """Attach to `model` and `group`; a state from a pickle needs this before its first step."""
        saved = self.state_dict()
        self._bind(model, group)
        self._unbound = None
        self.load_state_dict(saved)

    def _bind(self, model: torch.nn.Module, group: Any) -> None:
        if isinstance(model, DistributedDataParallel):
            if model.find_unused_parameters and not model.static_graph:
                raise InvalidArgumentError(
                    "find_unused_parameters=True: DDP would drop what this hook returns for a "
                    "parameter that a step does not use"
                )
            group = group if group is not None else model.process_group
        self.parameters = NamedParameters(model)
        self.group = group

    @property
    def world_size(self) -> int:
        """The number of ranks that average."""
        size: int = dist.get_world_size(self.group)
        return size

    def state_dict(self) -> dict[str, Any]:
        """The settings, and the values of every parameter; tensors are copies."""
        if self._unbound is not None:
            return self._unbound
        return {
            "settings": {name: getattr(self, name) for name in self.settings},
            "parameters": self.ledger.state_dict(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the settings and values of a `state_dict`."""
        if set(saved["settings"]) != set(self.settings):
            raise InvalidArgumentError(f"the saved state is not one of {type(self).__name__}")
        self.ledger.load_state_dict(saved["parameters"], self.parameters)
        for name, value in saved["settings"].items():
            setattr(self, name, value)

    def require_model(self) -> None:
        """Raise if this state comes from a pickle and has no model yet."""
        if self._unbound is not None:
            raise InvalidArgumentError(
                f"this {type(self).__name__} comes from a pickle; call its bind(model) first"
            )

    def __getstate__(self) -> dict[str, Any]:
        return self.state_dict()

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self._begin()
        self._unbound = saved
