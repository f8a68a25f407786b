#!/usr/bin/env python3
"""Lists the public API of Rust and Python, for comparison with the committed baseline.

    release/api.py --write      # writes release/api/rust.txt and python.txt
    release/api.py              # fails and shows the differences from the baseline

Needs an installed ringfold, `cargo install --locked cargo-public-api` and a nightly toolchain of
Rust, whose rustdoc writes JSON. C's API is `crates/ringfold-c/include/ringfold.h`, which that
crate's tests compare. A difference belongs in `CHANGELOG.md`.
"""

import argparse
import difflib
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "release/api"
MODULES = ("ringfold", "ringfold.torch")


def rust() -> str:
    """The items of the crate, with blanket and derived implementations left out."""
    command = ["cargo", "public-api", "--package", "ringfold", "-sss"]
    ended = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return ended.stdout


def signature(value: object) -> str:
    try:
        return str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""


def members(name: str, kind: type) -> Iterator[str]:
    """The public members of a class that the package defines."""
    own = [base for base in reversed(kind.__mro__) if base.__module__.startswith("ringfold")]
    found = {key: value for base in own for key, value in vars(base).items()}
    for member, value in sorted(found.items()):
        if member.startswith("_"):
            continue
        call = getattr(value, "__func__", value)
        yield f"{name}.{member}{signature(call) if callable(call) else ''}"


def of_module(module: ModuleType) -> Iterator[str]:
    for name in sorted(module.__all__):
        value = getattr(module, name)
        path = f"{module.__name__}.{name}"
        if inspect.isclass(value):
            bases = ", ".join(base.__name__ for base in value.__bases__)
            yield f"class {path}({bases})"
            yield from members(path, value)
        else:
            yield f"{path}{signature(value) if callable(value) else ''}"


def python() -> str:
    """The names of the package, with the signatures of functions and methods."""
    import importlib

    lines = [line for name in MODULES for line in of_module(importlib.import_module(name))]
    return "\n".join(lines) + "\n"


LISTINGS: dict[str, Callable[[], str]] = {"rust.txt": rust, "python.txt": python}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the baseline")
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    is_same = True
    for name, listing in LISTINGS.items():
        file, text = FOLDER / name, listing()
        if arguments.write:
            file.write_text(text)
            continue
        before = file.read_text().splitlines() if file.exists() else []
        for line in difflib.unified_diff(before, text.splitlines(), f"{file} (baseline)", "now"):
            print(line)
            is_same = False
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
