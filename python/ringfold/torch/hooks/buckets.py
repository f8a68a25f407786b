"""DDP's buckets: the layout of their gradients, and the values kept for them between steps.

DDP rebuilds its buckets after the first iteration, in the order in which gradients arrived, and a
program that resumes from a checkpoint starts with the initial ones again. Values that a hook keeps
therefore belong to a parameter, by its name, and never to a bucket. `Ledger` stores them in the
layout of the bucket that was used last, so that a hook computes on flat tensors; when the layout
changes, every parameter's part is moved.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel

from ringfold.errors import InvalidArgumentError

# The smallest type for sums over steps; a 16-bit sum would lose small gradients.
WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def summing_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which gradients of `dtype` are accumulated."""
    return WIDER.get(dtype, dtype)


class Layout(NamedTuple):
    """The parameters of a bucket in order, and the number of elements of each."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def spans(self) -> Iterator[tuple[str, int, int]]:
        """Name, begin and end of every parameter in the bucket."""
        begin = 0
        for name, size in zip(self.names, self.sizes, strict=True):
            yield name, begin, begin + size
            begin += size


class NamedParameters:
    """The parameters of a model by their names without DDP."""

    def __init__(self, model: torch.nn.Module) -> None:
        module = model.module if isinstance(model, DistributedDataParallel) else model
        self.by_name: dict[str, torch.nn.Parameter] = dict(module.named_parameters())
        self._names = {id(parameter): name for name, parameter in self.by_name.items()}

    def layout(self, bucket: Any) -> Layout:
        """The layout of a `GradBucket`."""
        if bucket.buffer().layout != torch.strided:
            raise InvalidArgumentError(
                "sparse gradients are not supported by hooks with a state; use dense ones"
            )
        parameters = bucket.parameters()
        names = tuple(self._names.get(id(parameter), "") for parameter in parameters)
        if "" in names:
            raise InvalidArgumentError(
                "a bucket has a parameter that is not in the model; create the state with DDP's "
                "model"
            )
        return Layout(names, tuple(parameter.numel() for parameter in parameters))


def in_shape_of(parameter: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """A view of a flat gradient with the parameter's shape, and with its strides if dense, as DDP
    lays it out.
    """
    if torch.empty_like(parameter, device="meta").stride() == parameter.stride():
        return flat.as_strided(parameter.shape, parameter.stride(), flat.storage_offset())
    return flat.view(parameter.shape)


class Ledger:
    """Flat tensors that are kept for every parameter, one for each of `fields`."""

    def __init__(self, *fields: str) -> None:
        self.fields = fields
        # Views of the tensors in `_flat`, or values from a checkpoint.
        self._parts: dict[str, tuple[torch.Tensor, ...]] = {}
        self._flat: dict[Layout, tuple[torch.Tensor, ...]] = {}

    def holds(self, layout: Layout) -> bool:
        """Whether there are values for every parameter of the layout; raises if only for some."""
        missing = [name for name in layout.names if name not in self._parts]
        if missing and len(missing) < len(layout.names):
            raise InvalidArgumentError(
                f"no state for `{missing[0]}`, unlike other parameters of its bucket; was it "
                "frozen before?"
            )
        return not missing

    def flat(self, layout: Layout, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """One tensor per field, in this layout, to be updated in place; zeros for new parameters.

        A new tensor is on the device of `like` and has its type, or the type in which that type is
        accumulated.
        """
        held = self._flat.get(layout)
        if held is None:
            dtype = summing_dtype(like.dtype)
            held = tuple(
                torch.zeros(sum(layout.sizes), dtype=dtype, device=like.device) for _ in self.fields
            )
            for name, begin, end in layout.spans():
                for new, old in zip(held, self._parts.get(name, ()), strict=False):
                    new[begin:end].copy_(old)
            self.put(layout, held)
        return held

    def put(self, layout: Layout, flat: tuple[torch.Tensor, ...]) -> None:
        """Replace the values of the layout's parameters by these tensors, one per field."""
        ours = set(layout.names)
        self._flat = {
            other: held for other, held in self._flat.items() if ours.isdisjoint(other.names)
        }
        self._flat[layout] = flat
        for name, begin, end in layout.spans():
            self._parts[name] = tuple(tensor[begin:end] for tensor in flat)

    def take(self, layout: Layout, like: torch.Tensor) -> torch.Tensor:
        """The first field in this layout, which is then no longer kept."""
        taken = self.flat(layout, like)[0]
        del self._flat[layout]
        for name in layout.names:
            del self._parts[name]
        return taken

    def clear(self) -> None:
        """Discard all values."""
        self._parts.clear()
        self._flat.clear()

    def parts(self) -> Iterator[tuple[str, tuple[torch.Tensor, ...]]]:
        """Every parameter's name and values."""
        yield from self._parts.items()

    def state_dict(self) -> dict[str, dict[str, torch.Tensor]]:
        """A copy of all values, by parameter name and field name."""
        return {
            name: {
                field: part.detach().clone() for field, part in zip(self.fields, parts, strict=True)
            }
            for name, parts in self._parts.items()
        }

    def load_state_dict(
        self, saved: Mapping[str, Mapping[str, torch.Tensor]], parameters: NamedParameters
    ) -> None:
        """Replace all values by those of a `state_dict`."""
        parts = {}
        for name, fields in saved.items():
            parameter = parameters.by_name.get(name)
            if parameter is None:
                raise InvalidArgumentError(
                    f"the saved state is for a parameter `{name}`, which the model does not have"
                )
            if set(fields) != set(self.fields) or any(
                part.numel() != parameter.numel() for part in fields.values()
            ):
                raise InvalidArgumentError(
                    f"the saved state for `{name}` does not fit the parameter; it belongs to "
                    "another hook or model"
                )
            parts[name] = tuple(fields[field].detach().clone().view(-1) for field in self.fields)
        self._flat.clear()
        self._parts = parts
