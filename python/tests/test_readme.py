"""The two commands at the top of README.md: one demonstrates ringfold, one runs all tests."""

import json
import os
import re
import subprocess
from pathlib import Path

import launching
import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ROOT / "target/debug/ringfold"
WATCHDOG_S = 120
BUILD_S = 1800
SHOW = "cargo run --release -p ringfold-cli -- "


def commands() -> list[str]:
    """Return the first commands of the README, without their comments."""
    block = re.search(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.M)
    assert block
    return [line.partition("#")[0].strip() for line in block[1].splitlines()]


def environment() -> dict[str, str]:
    """Return this process' variables without ringfold's."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RINGFOLD_")}


def rows(table: str) -> list[list[str]]:
    """Return the rows of a table of `perf`, split into words."""
    return [line.split() for line in table.splitlines() if re.match(r" *\d", line)]


def check_table(table: str) -> None:
    """Check that a table has results of two ranks or more, without a wrong element."""
    ranks = re.search(r"^# ranks (\d+) ", table, re.M)
    assert ranks and int(ranks[1]) >= 2, table
    found = rows(table)
    assert found and all(row[8] == row[12] == "0" for row in found), table


def test_they_are_two() -> None:
    show, check = commands()
    assert show.startswith(SHOW)
    assert check == "./check.sh"


def test_the_command_that_shows_makes_its_ranks_and_ends() -> None:
    """Same arguments, but fewer sizes and repetitions, because other tests use the cores, too."""
    if not COMMAND.exists():
        pytest.skip("the command is not built; `cargo build` does that")
    arguments = commands()[0].removeprefix(SHOW).split()
    status, table = launching.finish(
        [str(COMMAND), *arguments, "--maxbytes", "1K", "--iters", "2"],
        WATCHDOG_S,
        env=environment(),
    )
    assert status == 0, table
    check_table(table)


def test_cargo_knows_what_to_run() -> None:
    """`cargo run` requires a package with a single program."""
    described = subprocess.run(
        ["cargo", "metadata", "--no-deps", "--format-version", "1"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=WATCHDOG_S,
    ).stdout
    packages = {package["name"]: package for package in json.loads(described)["packages"]}
    targets = packages["ringfold-cli"]["targets"]
    assert [target["name"] for target in targets if "bin" in target["kind"]] == ["ringfold"]


@pytest.mark.deep
def test_the_command_that_shows_runs_as_it_stands() -> None:
    status, output = launching.finish(
        ["bash", "-c", commands()[0]], BUILD_S, cwd=ROOT, env=environment()
    )
    assert status == 0, output
    check_table(output)


def test_the_server_runs_the_command_that_checks() -> None:
    assert re.search(r"\./check\.sh <", (ROOT / ".ci/run").read_text())
    assert os.access(ROOT / "check.sh", os.X_OK)


def test_every_stage_exists() -> None:
    """Each stage of the plan is a function of check.sh."""
    planned = subprocess.run(
        ["python3", "-c", "import plan; print(*{s.command[0] for s in plan.plan(True, False)})"],
        env=os.environ | {"PYTHONPATH": str(ROOT / ".ci")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    defined = re.findall(r"^(\w+)\(\) \{", (ROOT / "check.sh").read_text(), re.M)
    assert set(planned) <= set(defined)
