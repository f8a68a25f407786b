"""Run the programs of `examples/clients`: training frameworks on ringfold, with two ranks each.

Each program prints its backend and its loss before and after training. `check.sh` does not install
the frameworks; a test is skipped if its framework is missing.
"""

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path

import launching
import pytest

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "clients"
# Some frameworks compile extensions on first use.
WATCHDOG_S = 540.0
SUMMARY = re.compile(r"(\w+), (\d+) ranks.*: loss ([\d.]+) to ([\d.]+)")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "DS_ACCELERATOR": "cpu",
    "HF_HUB_OFFLINE": "1",
    "JAX_PLATFORMS": "cpu",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}

pytestmark = pytest.mark.deep


def need(*packages: str) -> None:
    """Skip the test if one of these packages is missing."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package `{package}` is not installed")


def run(command: list[str], program: str, *words: str, **variables: str) -> str:
    """Run an example; return the output of all its ranks."""
    whole = [*command, str(EXAMPLES / program), *words]
    env = os.environ | VARIABLES | variables
    status, output = launching.finish(whole, WATCHDOG_S, env=env)
    assert status == 0, output
    return output


def check_learns(output: str) -> None:
    """Check that the example ran on ringfold with two ranks, and that its loss fell to a third."""
    found = SUMMARY.search(output)
    assert found is not None, output
    backend, ranks, before, after = found.groups()
    assert (backend, ranks) == ("ringfold", "2")
    assert float(after) < float(before) / 3


def test_accelerate_takes_the_backend_by_its_name() -> None:
    need("accelerate")
    check_learns(run(TORCHRUN, "accelerate_train.py"))


def test_the_trainer_takes_the_backend_by_its_name() -> None:
    need("accelerate", "transformers")
    check_learns(run(TORCHRUN, "trainer_train.py"))


def test_lightning_trains_and_averages_metrics() -> None:
    need("lightning")
    check_learns(run([sys.executable], "lightning_train.py"))


def test_ray_trains() -> None:
    need("ray")
    check_learns(run([sys.executable], "ray_train.py"))


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_deepspeed_trains_in_every_stage(stage: str) -> None:
    need("deepspeed")
    check_learns(run(TORCHRUN, "deepspeed_train.py", "--stage", stage))


def test_jax_trains_with_arrays_by_dlpack() -> None:
    need("jax")
    command = [launching.ringfold(), "run", "--ranks", "2", "--", sys.executable]
    check_learns(run(command, "jax_train.py"))


def test_torchft_goes_on_without_a_replica_that_died() -> None:
    need("torchft")
    output = run([sys.executable], "torchft_train.py")
    assert re.search(r"[1-9]\d* steps alone, the same weights at the end: True", output), output


def test_every_call_has_the_result_of_mpi4py() -> None:
    need("mpi4py")
    output = run([*launching.mpirun(2), sys.executable], "from_mpi4py.py")
    assert re.search(r"ringfold, 2 ranks: \d+ calls as mpi4py", output), output


def test_vllm_generates_the_same_tokens_on_two_ranks(tmp_path: Path) -> None:
    need("vllm", "transformers")
    # Install the plugin for the ranks that vLLM starts.
    shutil.copy(EXAMPLES / "vllm_ringfold.py", tmp_path)
    metadata = tmp_path / "ringfold_vllm-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ringfold-vllm\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nringfold = vllm_ringfold:register\n"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))

    def tokens(output: str, ranks: int) -> str:
        found = re.search(rf"{ranks} ranks: (\[\[.*\]\])", output)
        assert found is not None, output
        return found.group(1)

    alone = tokens(run([sys.executable], "vllm_generate.py"), 1)
    torchrun = run(TORCHRUN, "vllm_generate.py", RINGFOLD_DEBUG="INFO")
    started = run(
        [sys.executable],
        "vllm_generate.py",
        "--ranks",
        "2",
        PYTHONPATH=path,
        RINGFOLD_DEBUG="INFO",
    )
    replaced = run(
        [sys.executable],
        "vllm_generate.py",
        "--ranks",
        "2",
        RINGFOLD_TORCH_REPLACE="gloo",
        RINGFOLD_DEBUG="INFO",
    )
    assert tokens(replaced, 2) == alone
    assert "RINGFOLD_TORCH_REPLACE=gloo: ringfold serves" in replaced, replaced
    for output in (torchrun, started):
        assert tokens(output, 2) == alone
        assert re.search(r"TUNING choice: all_reduce of \d+ bytes, 2 ranks", output), output
