"""Data-parallel training in JAX on CPUs; prints the loss before and after.

    ringfold run --ranks 2 -- python examples/clients/jax_train.py

JAX computes the gradients, and ringfold averages them. ringfold reads JAX's arrays in place through
DLPack, and returns JAX arrays.
"""

from typing import Any

import jax
import jax.numpy as jnp

import ringfold

INPUTS, BATCH, STEPS, RATE = 8, 64, 60, 0.1


def loss(weights: Any, inputs: Any, targets: Any) -> Any:
    """Return the mean squared error of a linear model."""
    return jnp.mean((inputs @ weights - targets) ** 2)


def main() -> None:
    with ringfold.init() as comm:
        true = jax.random.normal(jax.random.key(0), (INPUTS,))
        weights = jnp.zeros(INPUTS)
        step = jax.jit(jax.value_and_grad(loss))
        key = jax.random.key(1 + comm.rank)
        losses = []
        for _ in range(STEPS):
            key, part = jax.random.split(key)
            inputs = jax.random.normal(part, (BATCH, INPUTS))
            value, gradient = step(weights, inputs, inputs @ true)
            weights = weights - RATE * comm.all_reduce(gradient, "avg")
            losses.append(float(comm.all_reduce(value, "avg")))
        same = comm.all_gather(weights)
        assert isinstance(same, jax.Array) and (same == weights).all(), "the ranks' weights differ"
        # 16-bit floats of JAX can be reduced, too.
        half = comm.all_reduce(jnp.ones(4, jnp.bfloat16))
        assert half.dtype == jnp.bfloat16 and float(half[0]) == comm.world_size
        if comm.rank == 0:
            print(
                f"ringfold, {comm.world_size} ranks: "
                f"loss {losses[0]:.4f} to {losses[-1]:.4f}"
            )


if __name__ == "__main__":
    main()
