"""Run the code blocks of the documents.

The blocks of a page run in order, in one shell and one folder:

* `sh` blocks run as written; a last line `# exit status: N` gives the expected status;
* `python` blocks whose first line is `# name.py` are written to that file, for a shell to run;
* the other `python` blocks of a page, after the page's `PREAMBLES`, make one program, which two
  ranks run.

A comment above a block that cannot run gives the reason: `<!-- not run: why -->`. A block below
`<!-- two hosts -->` has the commands of host 0; the same commands run beside it as host 1.
`node0:29400` is replaced by this host and a free port, and `ssh` to any host by a shell with few
variables. All pages run with `-m deep`. Those in `QUICK`, which a newcomer reads first, run in
every check.

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
"""Folder of the guides. Those not in `RUN_GUIDES` only have marked blocks that run.

`clients/test_guides.py` runs the marked blocks.
"""

RUN_GUIDES = {
    "beside-nccl",
    "devices",
    "gradient-buckets",
    "hooks",
    "nccl-tuner",
    "python",
    "python-calls",
    "simulator",
    "torch",
    "torch-diagnosis",
    "torch-gradients",
    "torch-launchers",
    "troubleshooting",
}
"""Guides whose blocks run here."""

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
}
"""Pages whose blocks run in every check; each takes seconds."""

RUN = ("sh", "python")
NOT_RUN = {
    "text": "output",
    "layers": "read by a test of its own",
    "toml": "read by the commands beside it",
    "rust": "README.md's is run by rustdoc, the others are fragments of what the API documents",
    "c": "compiled by tests of the C interface",
    "yaml": "manifests, which need a cluster",
}
"""Languages of blocks that do not run here, and the reason for each."""

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
"""Code that precedes the fragments of a page."""


SCENARIOS = sorted((ROOT / "examples").glob("*/*.toml"))
LONG_SCENARIOS = {"cluster", "noise"}
"""Scenarios that take more than a second in a build without optimization."""

FAILING_SCENARIOS = {"death"}
"""Scenarios whose calls fail: exit status 1."""


class Block(NamedTuple):
    """A block of code."""

    line: int
    language: str
    text: str
    comment: str
    """Text of the comment above the block."""

    @property
    def why_not(self) -> str | None:
        """Reason not to run the block, or None."""
        return self.comment.removeprefix("not run: ") if "not run: " in self.comment else None


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
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
    """Return the file name of a block that is a program."""
    first = re.match(r"# (\w+\.py)\n", block.text)
    return first[1] if first else None


def written(name: str | None, text: str) -> str:
    """Return shell code that writes a file."""
    return f"cat >{name} <<'END'\n{text}END"


def steps(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each step of a page, and the shell code that runs it."""
    runnable = [block for block in blocks(page) if block.language in RUN and not block.why_not]
    fragments = ""
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
    """Return shell code that runs a block with this host in place of all hosts it names."""
    # `wait` alone ignores the status of the jobs.
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
    """Return shell code that fails if a block does not end with the status it declares."""
    ended = re.search(r"^# exit status: (\d+)\n\Z", text, re.MULTILINE)
    if not ended:
        return text
    return f"status=0\n(\n{text}) || status=$?\n[ ${{status:-0}} = {ended[1]} ]"


def script(page: Path) -> str:
    """Return the shell script that runs a page."""
    return "\n".join(["set -eu", *(text for _, text in steps(page))]) + "\n"


def run_shell(text: str, folder: Path) -> tuple[int, str]:
    """Run a shell script in a folder with the documents' programs; return status and output."""
    if not COMMAND.exists():
        pytest.skip("the command is not built; `cargo build` does that")
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("RINGFOLD_")
    }
    variables["PATH"] = f"{launching.named_programs(folder, str(COMMAND))}:{variables['PATH']}"
    # Like a shell of ssh, this one inherits no variables.
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
    """Every block has a language that runs here, or a reason not to run."""
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
    """The blocks of a page run in order, and end with the declared status."""
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
    """No command is inside a comment's text, where readers cannot copy it and no test runs it."""
    wrong = [
        line
        for line in scenario.read_text().splitlines()
        if re.search(r"\bringfold \w+ |--sweep$", line) and not line.startswith("#   ringfold ")
    ]
    assert not wrong
