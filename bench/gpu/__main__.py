"""The command line behind `bench/gpu.sh`, which has found the programs."""

import argparse
import datetime
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from comparison import machine
from comparison.processes import Failed, become_reaper, output_of

from . import facts, fast, right
from .steps import RUN_S, Bench, Setup, run

RUNS = {"facts": facts.STEPS, "right": right.STEPS, "fast": fast.STEPS}
RESULTS = Path(__file__).resolve().parents[1] / "results"
PROBE_S = 60.0
PROBE = "import torch, ringfold; assert torch.cuda.is_available(), 'torch sees no GPU'"
# The device that the backend's tests use: it is compiled once.
SOFT_PROBE_S = 300.0
SOFT_PROBE = "import softtorch, ringfold; print(softtorch.build())"
SOFT_WORDS = ("device=soft", "module=softtorch", "bytes=1M", "width=64", "products=10")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu.sh", description=__doc__)
    add = parser.add_argument
    add("run", choices=[*RUNS, "all"])
    add("--programs", type=Path, required=True)
    add("--soft", action="store_true")
    add("--no-torch", action="store_true")
    add("--out", type=Path, default=machine.folder(RESULTS))
    add("--seconds", type=float, default=RUN_S)
    add("--only")
    options = parser.parse_args()
    steps = {step.name for name in RUNS for step in RUNS[name]}
    if options.only is not None and options.only not in steps:
        parser.error(f"no step is called {options.only}; there are {', '.join(sorted(steps))}")
    return options


def with_torch(setup: Setup) -> Setup:
    """The setup with what torch's steps need, or with the reason why they cannot run."""
    probe = SOFT_PROBE if setup.soft else PROBE
    try:
        found = output_of([setup.python, "-c", probe], SOFT_PROBE_S if setup.soft else PROBE_S)
    except Failed as why:
        needed = "torch's test device" if setup.soft else "a torch that sees the GPU, and ringfold"
        text = f"{needed}, in {setup.python}: {str(why).splitlines()[-1].strip()}"
        return replace(setup, no_torch=text)
    if not setup.soft:
        return setup
    variables = {"SOFTTORCH_LIBRARY": found.strip()}
    return replace(setup, torch_words=SOFT_WORDS, torch_variables=variables)


def describe(setup: Setup) -> str:
    """The machine, for a reader of the results."""
    commands: list[list[object]] = [
        ["git", "rev-parse", "HEAD"],
        ["uname", "-a"],
        [setup.command, "info"],
        ["nvidia-smi"],
        ["nvidia-smi", "topo", "-m"],
    ]
    if setup.no_torch is None:
        commands.append([setup.python, "-c", "import torch; print(torch.__version__)"])
    texts = [datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")]
    for command in commands:
        if shutil.which(str(command[0])):
            words = [str(word) for word in command]
            said = subprocess.run(
                words, capture_output=True, text=True, timeout=PROBE_S, check=False
            )
            texts.append(f"$ {' '.join(words)}\n{said.stdout or said.stderr}")
    texts += [f"{name}={os.environ[name]}" for name in sorted(os.environ) if "CUDA" in name]
    return "\n".join(texts) + "\n"


def main() -> int:
    options = parse()
    become_reaper()
    setup = Setup(
        command=options.programs / "ringfold",
        facts=options.programs / "examples" / "device_facts",
        python=sys.executable,
        soft=options.soft,
        seconds=options.seconds,
        only=options.only,
        no_torch="it was left out" if options.no_torch else None,
    )
    if setup.no_torch is None:
        setup = with_torch(setup)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu-machine.txt").write_text(describe(setup))
    names = list(RUNS) if options.run == "all" else [options.run]
    good = [run(Bench(name, setup, options.out), RUNS[name]) for name in names]
    return 0 if all(good) else 1


sys.exit(main())
