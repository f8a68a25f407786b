"""The blocks of code in the documents run.

Blocks of a page run in their order, in one shell and one folder:

* `sh` runs as it stands; a line `# exit status: N` at its end says with what it must end;
* `python` whose first line is `# name.py` is a program, written to that file for a shell to run;
* other `python` blocks of a page are one program, which two ranks run, behind the page's
  `PREAMBLES`.

Above a block that cannot run, a comment says why: `<!-- not run: why -->`. All pages run with
`-m deep`; those of `QUICK`, which a newcomer meets first, in every check.
"""

import os
import re
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


class Block(NamedTuple):
    """A block of code."""

    line: int
    language: str
    text: str
    why_not: str | None
    """Why it is not run, if it is not."""


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page."""
    why_not, begin, language, lines = None, 0, "", list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if begin:
            if line.strip() == "```":
                yield Block(begin, language, "\n".join(lines) + "\n", why_not)
                begin, why_not = 0, None
            else:
                lines.append(line)
        elif line.startswith("```"):
            begin, language, lines = number, line[3:].strip(), []
        elif line.strip():
            comment = re.fullmatch(r"<!-- not run: (.+) -->", line.strip())
            why_not = comment[1] if comment else None


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
            yield block.text.splitlines()[0], ended_as_said(block.text)
        elif name:
            yield name, written(name, block.text)
        else:
            fragments += f"# {page.name}:{block.line}\n{block.text}\n"
    if fragments:
        preamble = PREAMBLES.get(page.relative_to(ROOT).as_posix(), "")
        program = written("fragments.py", f"{preamble}\n{fragments}")
        yield "fragments", f"{program}\nringfold run --ranks 2 -- python fragments.py"


def ended_as_said(text: str) -> str:
    """Shell that runs a block, and fails if it ends with another status than the block says."""
    ended = re.search(r"^# exit status: (\d+)\n\Z", text, re.MULTILINE)
    if not ended:
        return text
    return f"status=0\n(\n{text}) || status=$?\n[ ${{status:-0}} = {ended[1]} ]"


def script(page: Path) -> str:
    """The shell script that runs a page."""
    return "\n".join(["set -eu", *(text for _, text in steps(page))]) + "\n"


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
    if not COMMAND.exists():
        pytest.skip("the command is not built; `cargo build` does that")
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("RINGFOLD_")
    }
    variables["PATH"] = f"{launching.named_programs(tmp_path, str(COMMAND))}:{variables['PATH']}"
    # Ranks share few cores.
    variables |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for name in ("bench", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    status, output = launching.finish(
        ["bash", "-c", script(page)], WATCHDOG_S, cwd=tmp_path, env=variables
    )
    assert status == 0, f"{page.name} ended with {status}:\n{output[-8000:]}"
