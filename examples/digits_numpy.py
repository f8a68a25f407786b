"""Data-parallel training in NumPy on handwritten digits; ringfold averages the gradients.

    python examples/digits_numpy.py                            # one process
    ringfold run --ranks 4 -- python examples/digits_numpy.py  # four, with the same global batches

Every rank computes the mean gradient of its part of each global batch. One all-reduce over one
buffer with all gradients turns them into the global batch's mean, so that every rank takes the same
step. The parts need not have equal sizes: a rank's gradient is weighted by its part of the batch.
At the end, the ranks compare digests of their weights.
"""

import argparse
import hashlib
import time

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import ringfold

Array = NDArray[np.float32]

LAYERS = (64, 96, 10)
TEST_SAMPLES = 360
MOMENTUM = 0.9


class Network:
    """One hidden layer; all parameters are in one buffer, and so are all gradients."""

    def __init__(self, seed: int) -> None:
        inputs, hidden, outputs = LAYERS
        shapes = [(inputs, hidden), (hidden,), (hidden, outputs), (outputs,)]
        count = sum(int(np.prod(shape)) for shape in shapes)
        self.parameters: Array = np.zeros(count, np.float32)
        self.gradients: Array = np.zeros(count, np.float32)
        self.velocity: Array = np.zeros(count, np.float32)
        self.first, self.first_bias, self.second, self.second_bias = views(self.parameters, shapes)
        self.d_first, self.d_first_bias, self.d_second, self.d_second_bias = views(
            self.gradients, shapes
        )
        generator = np.random.default_rng(seed)
        for weights in (self.first, self.second):
            weights[:] = generator.normal(0, np.sqrt(2 / len(weights)), weights.shape)

    def predict(self, x: Array) -> tuple[Array, Array]:
        """Return the hidden layer and the class probabilities of every sample."""
        hidden = np.maximum(x @ self.first + self.first_bias, 0)
        scores = hidden @ self.second + self.second_bias
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, powers / powers.sum(axis=1, keepdims=True)

    def differentiate(self, x: Array, labels: NDArray[np.int64]) -> None:
        """Set `gradients` to the mean over these samples, or to zeros without samples."""
        hidden, slope = self.predict(x)
        slope[np.arange(len(labels)), labels] -= 1
        slope /= max(len(labels), 1)
        self.d_second[:] = hidden.T @ slope
        self.d_second_bias[:] = slope.sum(axis=0)
        back = (slope @ self.second.T) * (hidden > 0)
        self.d_first[:] = x.T @ back
        self.d_first_bias[:] = back.sum(axis=0)

    def step(self, learning_rate: float) -> None:
        """Apply `gradients`."""
        self.velocity *= MOMENTUM
        self.velocity -= learning_rate * self.gradients
        self.parameters += self.velocity


def views(buffer: Array, shapes: list[tuple[int, ...]]) -> list[Array]:
    """Return consecutive parts of `buffer` in these shapes."""
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    return [
        part.reshape(shape) for part, shape in zip(np.split(buffer, ends[:-1]), shapes, strict=True)
    ]


def train(comm: ringfold.Communicator, options: argparse.Namespace) -> tuple[Network, float]:
    """Train, and return the network and the seconds spent in all-reduces."""
    samples, labels = load_samples()
    samples, labels = samples[TEST_SAMPLES:], labels[TEST_SAMPLES:]
    network = Network(options.seed)
    # The seed is the same on every rank, so all ranks draw the same global batches.
    generator = np.random.default_rng(options.seed)
    reducing_s = 0.0
    for _ in range(options.epochs):
        order = generator.permutation(len(samples))
        for start in range(0, len(order), options.batch):
            batch = order[start : start + options.batch]
            mine = np.array_split(batch, comm.world_size)[comm.rank]
            network.differentiate(samples[mine], labels[mine])
            begin = time.perf_counter()
            # With this weight, the sum is the batch's mean, however the batch was divided.
            share = ringfold.premul_sum(len(mine) / len(batch))
            comm.all_reduce(network.gradients, share, out=network.gradients)
            reducing_s += time.perf_counter() - begin
            network.step(options.learning_rate)
    return network, reducing_s


def load_samples() -> tuple[Array, NDArray[np.int64]]:
    """Return the digits, shuffled so that the order does not depend on the writer.

    Pixels range from 0 to 1; labels are integers.
    """
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    return (digits.data[order] / 16).astype(np.float32), digits.target[order].astype(np.int64)


def accuracy(network: Network) -> float:
    """Return the fraction of test samples that are recognised."""
    samples, labels = load_samples()
    _, probabilities = network.predict(samples[:TEST_SAMPLES])
    return float((probabilities.argmax(axis=1) == labels[:TEST_SAMPLES]).mean())


def check_weights_are_equal(comm: ringfold.Communicator, network: Network) -> str:
    """Compare the bits of all ranks' weights, and return their digest."""
    digest = hashlib.sha256(network.parameters.tobytes()).digest()
    digests = comm.all_gather(np.frombuffer(digest, np.uint8))
    different = [rank for rank in range(comm.world_size) if digests[rank].tobytes() != digest]
    if different:
        raise SystemExit(f"rank {comm.rank}: the weights of ranks {different} differ from mine")
    return digest.hex()[:16]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=100, help="samples in a global batch")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    with ringfold.init() as comm:
        begin = time.perf_counter()
        network, reducing_s = train(comm, options)
        total_s = time.perf_counter() - begin
        digest = check_weights_are_equal(comm, network)
        if comm.rank == 0:
            print(
                f"{comm.world_size} ranks, {options.epochs} epochs: accuracy "
                f"{accuracy(network):.4f}, "
                f"{total_s:.2f} s, of which {reducing_s:.2f} s in all-reduces; weights {digest} on "
                "every rank"
            )


if __name__ == "__main__":
    main()
