"""Check the guarantees of `examples/digits_numpy.py` in real jobs."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np

import ringfold

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_numpy.py"


def train(comm: ringfold.Communicator, epochs: int) -> Any:
    specification = importlib.util.spec_from_file_location("digits_numpy", EXAMPLE)
    assert specification is not None and specification.loader is not None
    digits = importlib.util.module_from_spec(specification)
    sys.modules["digits_numpy"] = digits
    specification.loader.exec_module(digits)
    network, _ = digits.train(comm, digits.parse(["--epochs", str(epochs)]))
    digits.check_weights_are_equal(comm, network)
    return digits.accuracy(network), network.parameters


def test_digits_are_learned_as_well_by_four_ranks_as_by_one(jobs: Any) -> None:
    ((alone, _),) = jobs(train, 1, epochs=30).results()
    together = jobs(train, 4, epochs=30).results()
    assert alone >= 0.96
    for accuracy, parameters in together:
        assert abs(accuracy - alone) < 0.01
        assert parameters.tobytes() == together[0][1].tobytes()


def test_ranks_take_the_steps_of_one_process_on_the_same_batches(jobs: Any) -> None:
    ((_, alone),) = jobs(train, 1, epochs=1).results()
    # Three ranks do not divide the batches evenly; the last batch is shorter than the others.
    for _, parameters in jobs(train, 3, epochs=1).results():
        assert np.allclose(parameters, alone, rtol=1e-4, atol=1e-5)
