"""How `check.sh` reports skipped tests, and failures of stages beside each other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WATCHDOG_S = 60.0

# Stands for cargo, and for a test of it that must skip.
CARGO = """#!/bin/sh
echo "crate::a_test: no such hardware" >> "$TEST_SKIPS"
echo "crate::a_test: no such hardware" >> "$TEST_SKIPS"
[ -z "$RINGFOLD_REQUIRE_ALL" ] || echo "RINGFOLD_REQUIRE_ALL reached the tests"
"""

# Fails where the variable `FAILS` occurs in its arguments.
FAILING_CARGO = """#!/bin/sh
echo "cargo $*"
case "$*" in *"$FAILS"*) exit 3 ;; esac
"""

SKIPPING = """
import pytest

def test_that_skips():
    pytest.skip("no such library")

@pytest.mark.skipif(True, reason="not on a Sunday")
def test_that_is_marked():
    pass
"""


def check(
    folder: Path, cargo: str, variables: dict[str, str], *stages: str
) -> subprocess.CompletedProcess[str]:
    """The outcome of these stages with such a `cargo`."""
    program = folder / "cargo"
    program.write_text(cargo)
    program.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    command = ["bash", str(ROOT / "check.sh")]
    for stage in stages:
        command += ["--only", stage]
    return subprocess.run(
        command,
        env=os.environ | variables | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
    )


@pytest.mark.parametrize(("require_all", "status"), [(None, 0), ("1", 1)])
def test_a_skip_is_listed_and_fails_where_all_is_required(
    require_all: str | None, status: int, tmp_path: Path
) -> None:
    done = check(tmp_path, CARGO, {"RINGFOLD_REQUIRE_ALL": require_all or ""}, "format")
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stdout.count("crate::a_test: no such hardware") == 1, done.stdout
    assert "reached the tests" not in done.stdout
    assert ("all passed" in done.stdout) == (status == 0)
    assert ("does not allow" in done.stderr) == (status == 1)


@pytest.mark.parametrize(
    ("fails", "stage"), [("--target-dir", "loom tests"), ("test --quiet", "rust tests")]
)
def test_a_failure_names_its_stage_also_beside_others(
    fails: str, stage: str, tmp_path: Path
) -> None:
    done = check(tmp_path, FAILING_CARGO, {"FAILS": fails}, "loom tests", "rust tests")
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"FAILED in: {stage}\n" in done.stderr
    assert "all passed" not in done.stdout


def test_skips_of_pytest_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").symlink_to(ROOT / "python/tests/conftest.py")
    (tmp_path / "test_it.py").write_text(SKIPPING)
    skips = tmp_path / "skips"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--quiet",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            tmp_path,
            tmp_path,
        ],
        env={**os.environ, "TEST_SKIPS": str(skips)},
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
    )
    assert done.returncode == 0, done.stdout
    assert sorted(skips.read_text().splitlines()) == [
        "test_it.py::test_that_is_marked: not on a Sunday",
        "test_it.py::test_that_skips: no such library",
    ]
