"""How `check.sh` reports skipped tests."""

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

SKIPPING = """
import pytest

def test_that_skips():
    pytest.skip("no such library")

@pytest.mark.skipif(True, reason="not on a Sunday")
def test_that_is_marked():
    pass
"""


@pytest.mark.parametrize(("require_all", "status"), [(None, 0), ("1", 1)])
def test_a_skip_is_listed_and_fails_where_all_is_required(
    require_all: str | None, status: int, tmp_path: Path
) -> None:
    cargo = tmp_path / "cargo"
    cargo.write_text(CARGO)
    cargo.chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if name != "RINGFOLD_REQUIRE_ALL"
    }
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    if require_all:
        environment["RINGFOLD_REQUIRE_ALL"] = require_all
    command = ["bash", str(ROOT / "check.sh"), "--only", "format"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=WATCHDOG_S
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stdout.count("crate::a_test: no such hardware") == 1, done.stdout
    assert "reached the tests" not in done.stdout
    assert ("all passed" in done.stdout) == (status == 0)
    assert ("does not allow" in done.stderr) == (status == 1)


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
