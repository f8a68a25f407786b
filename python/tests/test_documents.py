"""The blocks of code in the documents run.

Blocks of a page run in their order, in one shell and one folder:

* `sh` runs as it stands; a line `# exit status: N` at its end says with what it must end;
* `python` whose first line is `# name.py` is a program, written to that file for a shell to run;
* other `python` blocks of a page are one program, which two ranks run, behind the page's
  `PREAMBLES`.

Above a block that cannot run, a comment says why: `<!-- not run: why -->`. A block below
`<!-- two hosts -->` is what host 0 runs: it runs with that of host 1 beside it. `node0` and `node1`
are this host, at a free port, and `ssh` is a shell with few variables. All pages run with
`-m deep`; those of `QUICK`, which a newcomer meets first, in every check.

The commands in the comments of scenarios (`examples/*/*.toml`) run, too: each is one line that
begins with `#   ringfold`.
"""

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import launching
import pytest

ROOT = Path(__file__).parents[2]
COMMAND = ROOT / "target/debug/ringfold"
WATCHDOG_S = 240
GUIDES = ROOT / "docs/guides"
"""Blocks of its other pages are marked if they are run: by `clients/test_guides.py`."""

RUN_GUIDES = {
    "devices",
    "gradient-buckets",
    "hooks",
    "nccl-tuner",
    "python",
    "python-calls",
    "several-hosts",
    "simulator",
    "stragglers",
    "torch",
    "torch-diagnosis",
    "torch-gradients",
    "torch-launchers",
    "troubleshooting",
    "tuning",
}
"""The guides whose blocks run here."""

PAGES = sorted(
    path
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if GUIDES not in path.parents or path.stem in RUN_GUIDES
)

QUICK = {
    "README.md",
    "docs/start/index.md",
    "docs/start/several-hosts.md",
    "docs/guides/python.md",
    "docs/guides/python-calls.md",
    "docs/guides/several-hosts.md",
}
"""Pages whose blocks run in every check: seconds each."""

RUN = ("sh", "python")
NOT_RUN = {
    "text": "output",
    "layers": "read by a test of its own",
    "toml": "read by the commands beside it",
    "rust": "README.md's is run by rustdoc, the others are fragments of what the API documents",
    "c": "compiled by tests of the C interface",
    "yaml": "manifests, which need a cluster",
}
"""Languages of blocks that are not run here, and why."""

COMMUNICATOR = """
import numpy as np
import ringfold

comm = ringfold.init()
peer = 1 - comm.rank
gradient, weights = np.ones((1000, 1000), np.float32), np.ones(1000, np.float32)
x, y, theirs = np.ones(8), np.ones(8), np.zeros((2 - comm.rank, 3))
prepare_next_batch = lambda: None
"""

GROUP = """
import torch
import torch.distributed as dist

dist.init_process_group("ringfold")
weights = torch.ones(1 << 20)
"""

PREAMBLES = {
    "docs/guides/python.md": COMMUNICATOR,
    "docs/guides/python-calls.md": COMMUNICATOR,
    "docs/guides/torch-gradients.md": GROUP,
}
"""What stands before the fragments of a page."""

PROGRAMS_OF = {"docs/start/several-hosts.md": "docs/start/index.md"}
"""The page whose programs another page goes on with."""


SCENARIOS = sorted((ROOT / "examples").glob("*/*.toml"))
LONG_SCENARIOS = {"cluster", "noise"}
"""Scenarios that take more than a second without optimization."""

FAILING_SCENARIOS = {"death"}
"""Scenarios whose calls fail, with exit status 1."""


class Block(NamedTuple):
    """A block of code."""

    line: int
    language: str
    text: str
    comment: str
    """The text of the comment above it."""

    @property
    def why_not(self) -> str | None:
        """Why it is not run, if it is not."""
        return self.comment.removeprefix("not run: ") if "not run: " in self.comment else None


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page."""
    comment, begin, language, lines = "", 0, "", list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if begin:
            if line.strip() == "```":
                yield Block(begin, language, "\n".join(lines) + "\n", comment)
                begin, comment = 0, ""
            else:
                lines.append(line)
        elif line.startswith("```"):
            begin, language, lines = number, line[3:].strip(), []
        elif line.strip():
            found = re.fullmatch(r"<!-- (.+) -->", line.strip())
            comment = found[1] if found else ""


def file_name(block: Block) -> str | None:
    """The file of a block that is a program."""
    first = re.match(r"# (\w+\.py)\n", block.text)
    return first[1] if first else None


def written(name: str | None, text: str) -> str:
    """Shell that writes a file."""
    return f"cat >{name} <<'END'\n{text}END"


def steps(page: Path) -> Iterator[tuple[str, str]]:
    """What each step of a page is called, and the shell that runs it."""
    runnable = [block for block in blocks(page) if block.language in RUN and not block.why_not]
    fragments = ""
    if before := PROGRAMS_OF.get(page.relative_to(ROOT).as_posix()):
        programs = ((file_name(block), block.text) for block in blocks(ROOT / before))
        yield from ((name, written(name, text)) for name, text in programs if name)
    for block in runnable:
        name = file_name(block)
        if block.language == "sh":
            yield block.text.splitlines()[0], on_hosts(block)
        elif name:
            yield name, written(name, block.text)
        else:
            fragments += f"# {page.name}:{block.line}\n{block.text}\n"
    if fragments:
        preamble = PREAMBLES.get(page.relative_to(ROOT).as_posix(), "")
        program = written("fragments.py", f"{preamble}\n{fragments}")
        yield "fragments", f"{program}\nringfold run --ranks 2 -- python fragments.py"


def on_hosts(block: Block) -> str:
    """Shell that runs a block, on this host in place of all that it names."""
    # Each job's status counts.
    each = "for job in $(jobs -p); do wait $job; done"
    text = re.sub("^wait$", each, ended_as_said(block.text), flags=re.MULTILINE)
    if not re.search(r"\bnode\d\b", text):
        return text
    with socket.create_server(("127.0.0.1", 0)) as free:
        text = text.replace("node0:29400", f"127.0.0.1:{free.getsockname()[1]}")
    if block.comment != "two hosts":
        return text
    assert "--host-rank 0" in text
    other = text.replace("--host-rank 0", "--host-rank 1")
    return f"(\n{other}) & other=$!\n{text}wait $other"


def ended_as_said(text: str) -> str:
    """Shell that runs a block, and fails if it ends with another status than the block says."""
    ended = re.search(r"^# exit status: (\d+)\n\Z", text, re.MULTILINE)
    if not ended:
        return text
    return f"status=0\n(\n{text}) || status=$?\n[ ${{status:-0}} = {ended[1]} ]"


def script(page: Path) -> str:
    """The shell script that runs a page."""
    return "\n".join(["set -eu", *(text for _, text in steps(page))]) + "\n"


def run_shell(text: str, folder: Path) -> tuple[int, str]:
    """The status and output of a shell script in a folder, with the names that documents use."""
    if not COMMAND.exists():
        pytest.skip("the command is not built; `cargo build` does that")
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("RINGFOLD_")
    }
    variables["PATH"] = f"{launching.named_programs(folder, str(COMMAND))}:{variables['PATH']}"
    # As ssh's shell, it knows nothing of this one's variables.
    ssh = folder / "programs/ssh"
    few = "PATH=/usr/bin:/bin PYTHONPATH=$PYTHONPATH"
    ssh.write_text(f'#!/bin/sh\n[ "$1" = -tt ] && exec env -i {few} sh -c "$3"\n')
    ssh.chmod(0o755)
    # Ranks share few cores.
    variables |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for name in ("bench", "examples"):
        (folder / name).symlink_to(ROOT / name)
    return launching.finish(["bash", "-c", text], WATCHDOG_S, cwd=folder, env=variables)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_blocks_say_what_they_are(page: Path) -> None:
    """Every block has a language that is run here, or a reason not to be."""
    wrong = [
        f"{page.name}:{block.line}: `{block.language}`"
        for block in blocks(page)
        if block.language not in RUN and block.language not in NOT_RUN and not block.why_not
    ]
    assert not wrong, f"blocks of unknown languages: {wrong}"


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=page.relative_to(ROOT).as_posix(),
            marks=[] if page.relative_to(ROOT).as_posix() in QUICK else [pytest.mark.deep],
        )
        for page in PAGES
        if script(page).strip() != "set -eu"
    ],
)
def test_blocks_run(page: Path, tmp_path: Path) -> None:
    """The blocks of the page run, one after the other, and end as they say."""
    status, output = run_shell(script(page), tmp_path)
    assert status == 0, f"{page.name} ended with {status}:\n{output[-8000:]}"


@pytest.mark.parametrize(
    ("scenario", "command"),
    [
        pytest.param(
            path, command, marks=[pytest.mark.deep] if path.stem in LONG_SCENARIOS else []
        )
        for path in SCENARIOS
        for command in re.findall(r"^#   (ringfold .+)$", path.read_text(), re.MULTILINE)
    ],
)
def test_commands_of_scenarios_run(scenario: Path, command: str, tmp_path: Path) -> None:
    """A command in a scenario's comment can be copied, and runs."""
    assert scenario.relative_to(ROOT).as_posix() in command
    status, output = run_shell(command, tmp_path)
    assert status == (scenario.stem in FAILING_SCENARIOS), output


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_commands_of_scenarios_have_lines_of_their_own(scenario: Path) -> None:
    """No command stands within a comment's text, where it cannot be copied or is not run."""
    wrong = [
        line
        for line in scenario.read_text().splitlines()
        if re.search(r"\bringfold \w+ |--sweep$", line) and not line.startswith("#   ringfold ")
    ]
    assert not wrong
