"""`bench/gpu.sh`: verdicts, files, and that no step prevents the others from running."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "gpu.sh"
ROOT = SCRIPT.parents[1]
WATCHDOG_S = 1500
# A launcher of one rank; and measurements, one of which hangs, one fails, and the others answer.
LAUNCHER = """#!/bin/sh
[ "$1" = run ] || exit 0
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""
MEASUREMENTS = """#!/bin/sh
case $1 in
rounds) sleep 300 & echo "$!" > "$PIDS"; wait ;;
copies) echo "no such device" >&2; exit 3 ;;
churn) echo "churn rounds,ranks=2,7,rounds"; echo "churn wrong,ranks=2,0,elements" ;;
register) echo "pin memfd,bytes=1,2500,us" ;;
*) echo "nothing that a reader knows" ;;
esac
"""


def gpu(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script."""
    return subprocess.run(
        [str(word) for word in (SCRIPT, *words)],
        env=os.environ | {"PYTHON": sys.executable} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=WATCHDOG_S,
        check=False,
    )


def program(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_a_step_that_hangs_or_fails_is_a_verdict_and_the_others_run(tmp_path: Path) -> None:
    programs, out, pids = tmp_path / "programs", tmp_path / "out", tmp_path / "pids"
    program(programs / "ringfold", LAUNCHER)
    program(programs / "examples" / "device_facts", MEASUREMENTS)
    words = ("--programs", programs, "--out", out, "--seconds", 25, "--no-torch")
    ended = gpu("facts", *words, PIDS=str(pids), RINGFOLD_CUDA_LIBRARY="softcuda-there-is-none")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    verdicts = {row["name"]: row for row in rows(out / "gpu-facts-verdicts.csv")}
    outcomes = {name: row["outcome"] for name, row in verdicts.items()}
    assert outcomes["rounds"] == "FAIL" and "hung" in verdicts["rounds"]["measured"]
    assert not Path(f"/proc/{pids.read_text().strip()}").exists()
    assert outcomes["copies"] == "FAIL" and "no such device" in verdicts["copies"]["measured"]
    assert outcomes["signals"] == outcomes["meanwhile"] == "FAIL"
    churns = {name for name in outcomes if name.startswith("churn of")}
    assert len(churns) == 2 and {outcomes[name] for name in churns} == {"PASS"}
    assert outcomes["kernels"] == outcomes["mps"] == "SKIP"
    assert verdicts["pinning"] == {
        "run": "facts",
        "outcome": "PASS",
        "name": "pinning",
        "measured": "2.50 ms for 1M",
        "asked": "to be measured",
    }
    (pinned,) = (row for row in rows(out / "gpu-facts.csv") if row["name"] == "pin memfd")
    assert pinned == {"name": "pin memfd", "setting": "bytes=1", "value": "2500.0", "unit": "us"}
    printed = ended.stdout.splitlines()
    lines = [line for line in printed if line.startswith(("PASS", "FAIL", "SKIP"))]
    assert len(lines) == len(verdicts)
    assert f"gpu.sh facts: {1 + len(churns)} passed, 4 failed, 2 skipped" in ended.stdout


@pytest.mark.parametrize(
    "words, text",
    [
        (("--programs", "/"), "ringfold: build it elsewhere"),
        (("facts", "--only"), "--only needs a value"),
        (("fats",), "no run or option fats"),
    ],
)
def test_a_run_that_cannot_begin_says_what_is_missing(words: tuple[str, ...], text: str) -> None:
    ended = gpu(*words)
    assert ended.returncode == 2 and text in ended.stderr, ended.stderr


def test_a_misspelt_step_gets_the_names_that_there_are(tmp_path: Path) -> None:
    program(tmp_path / "ringfold", LAUNCHER)
    program(tmp_path / "examples" / "device_facts", MEASUREMENTS)
    ended = gpu("facts", "--programs", tmp_path, "--only", "churns", "--no-torch")
    assert ended.returncode == 2 and "no step is called churns; there are" in ended.stderr


@pytest.mark.deep
def test_all_runs_pass_on_the_software_driver(tmp_path: Path) -> None:
    cargo = shutil.which("cargo")
    if cargo is None:
        pytest.skip("no cargo here to build the programs")
    for what in (["-p", "ringfold-cli", "-p", "ringfold-softcuda"], ["--example", "device_facts"]):
        package = [] if "-p" in what else ["-p", "ringfold"]
        subprocess.run(
            [cargo, "build", "--quiet", *package, *what], cwd=ROOT, check=True, timeout=WATCHDOG_S
        )
    # The limits are meant for a GPU; here, steps on a busy machine have four times as long.
    words = ("--programs", ROOT / "target/debug", "--out", tmp_path, "--seconds", 4 * 570)
    ended = gpu("all", "--soft", *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for name, values in (("facts", 50), ("right", 8), ("fast", 8)):
        found = rows(tmp_path / f"gpu-{name}.csv")
        assert len(found) > values and all(float(row["value"]) >= 0 for row in found)
        verdicts = rows(tmp_path / f"gpu-{name}-verdicts.csv")
        assert {row["run"] for row in verdicts} == {name}
