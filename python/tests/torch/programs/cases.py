"""Tensors of one call on one rank: inputs with the oracle's values, and outputs to be filled."""

from typing import Any

import torch

from programs import oracle
from programs.layouts import Placed, Pool, Wrong
from programs.oracle import Oracle
from programs.steps import Call


class Case:
    """Tensors of a call on one member."""

    def __init__(self, call: Call, me: int, pool: Pool | None) -> None:
        self.call = call
        found = Oracle(call)
        self.due = found.due(me)
        values = found.given(me)
        self.is_whole = call.form.blocks == "whole" and not call.form.is_functional
        self._next = me + call.salt
        self._pool = pool
        if self.is_whole:
            self.inputs: list[Placed] = []
            self.outputs = [self.place(each) for each in values]
            self.out = [each.tensor for each in self.outputs]
            self.given = self.out
        elif call.in_place:
            self.join(values, me)
        else:
            self.inputs = [self.place(each) for each in values]
            self.outputs = [] if call.form.is_functional else [self.room(each) for each in self.due]
            self.given = [each.tensor for each in self.inputs]
            self.out = [each.tensor for each in self.outputs]

    def layout(self) -> str:
        self._next += 1
        return self.call.layouts[self._next % len(self.call.layouts)]

    def place(self, values: torch.Tensor) -> Placed:
        """Place an input in memory."""
        return Placed(self.layout(), self.call.dtype, values.numel(), values, self._pool)

    def room(self, due: torch.Tensor) -> Placed:
        """Place an output in memory."""
        return Placed(self.layout(), self.call.dtype, due.numel(), None, self._pool)

    def join(self, values: list[torch.Tensor], me: int) -> None:
        """Place larger tensors whose own blocks are the smaller tensors of an in-place call."""
        is_gathered = self.call.form.blocks == "gathered"
        count = self.call.counts[me]
        own = slice(me * count, (me + 1) * count)
        self.inputs = []
        self.given, self.out, self.outputs = [], [], []
        for value, due in zip(values, self.due, strict=True):
            larger = due.clone() if is_gathered else value
            if is_gathered:
                # The call must write all blocks but its own.
                larger.zero_()
                larger[own] = value
            placed = Placed("flat", self.call.dtype, larger.numel(), larger, self._pool)
            self.outputs.append(placed)
            block = placed.tensor[own]
            self.given.append(block if is_gathered else placed.tensor)
            self.out.append(placed.tensor if is_gathered else block)
        if not is_gathered:
            self.due = [
                torch.cat([value[: own.start], due, value[own.stop :]])
                for value, due in zip(values, self.due, strict=True)
            ]

    def check(self, made: Any) -> None:
        """Compare the tensors with the expected ones."""
        if self.call.form.is_functional:
            found = made.wait() if hasattr(made, "wait") else made
            flat = found.reshape(-1)
            (due,) = self.due
            bytes_ = [oracle.as_bytes(each.contiguous()) for each in (flat, due)]
            if due.dtype is torch.bool:
                # torch's own copies turn every true byte into the same byte.
                bytes_ = [each != 0 for each in bytes_]
            if flat.dtype != due.dtype or not torch.equal(*bytes_):
                raise Wrong(f"{flat[:12].tolist()} for {due[:12].tolist()}")
        for placed in self.inputs:
            placed.check(None)
        for placed, due in zip(self.outputs, self.due, strict=not self.call.form.is_functional):
            placed.check(due)
