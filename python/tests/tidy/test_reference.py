"""Every public name of Python and of C is in the reference, and has a description."""

import ast
import re
from pathlib import Path

import pytest
from test_tidy import ROOT, text, tracked

PACKAGES = ["ringfold", "ringfold/torch", "ringfold/torch/hooks"]
"""Packages with public names."""

PYTHON_PAGE = "docs/reference/python.md"
C_PAGE = "docs/reference/c.md"
C_HEADER = "crates/ringfold-c/include/ringfold.h"


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def public_names(package: str) -> list[str]:
    """Return the `__all__` of a package."""
    for node in tree_of(ROOT / "python" / package / "__init__.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise AssertionError(f"{package} has no __all__")


def documented() -> list[str]:
    """Return the identifiers that the page includes."""
    return re.findall(r"^::: ([\w.]+)$", text(PYTHON_PAGE), re.MULTILINE)


def described(path: Path) -> dict[str, bool]:
    """Return whether each public function, class and method of a module has a docstring."""
    found = {}
    for node in tree_of(path).body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("_"):
            continue
        found[node.name] = ast.get_docstring(node) is not None
        for part in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
                found[f"{node.name}.{part.name}"] = ast.get_docstring(part) is not None
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_of_python_are_in_the_reference(package: str) -> None:
    identifiers = documented()
    errors = described(ROOT / "python/ringfold/errors.py")
    last = {identifier.split(".")[-1] for identifier in identifiers}
    assert "errors" in last
    missing = [name for name in public_names(package) if name not in last and name not in errors]
    assert not missing, f"{PYTHON_PAGE} lacks {missing}"


def test_documented_names_have_docstrings() -> None:
    """mkdocstrings would print a bare signature."""
    bare = []
    for identifier in documented():
        *place, name = identifier.split(".")
        modules = [ROOT / "python" / "/".join(place)]
        if not modules[0].with_suffix(".py").exists():
            # The package imports the name from one of its modules.
            modules = sorted(modules[0].glob("*.py"))
        else:
            modules = [modules[0].with_suffix(".py")]
        for module in modules:
            for found, is_described in described(module).items():
                if found.split(".")[0] == name and not is_described:
                    bare.append(f"{module.stem}.{found}")
    assert not bare


def test_functions_and_types_of_c_are_in_the_reference() -> None:
    header = text(C_HEADER)
    names = set(re.findall(r"\b(ringfold_\w+)\s*\(", header)) | set(
        re.findall(r"\b(ringfold_\w+_t)\b", header)
    )
    assert len(names) > 50
    page = text(C_PAGE)
    missing = sorted(name for name in names if not re.search(rf"\b{name}\b", page))
    assert not missing, f"{C_PAGE} lacks {missing}"


def test_functions_of_c_are_described_in_the_header() -> None:
    declared = re.compile(r"^[a-z][^\n;{}*]*[ *](ringfold_\w+)\(", re.MULTILINE)
    header = text(C_HEADER)
    found = list(declared.finditer(header))
    assert len(found) > 50
    names = [match[1] for match in found]
    assert len(names) == len(set(names)), "some are declared twice"
    bare = [match[1] for match in found if not header[: match.start()].rstrip().endswith("*/")]
    assert not bare


def test_deadlines_in_documents_are_the_defaults() -> None:
    """If a page gives the default of a deadline, it agrees with the variable's."""
    variables = text("crates/ringfold/src/env/variables.rs")
    defaults = {
        name: f"{int(ms) / 1000:g}"
        for name, ms in re.findall(r'"(\w+_MS)": "milliseconds", default "(\d+)"', variables)
    }
    found = re.findall(r"`,\s+(\d+) s unless set", text(C_PAGE))
    found = [("RINGFOLD_TIMEOUT_MS", seconds) for seconds in found]
    for name in tracked(".md"):
        for before, named, after in re.findall(
            r"(?:([\d.]+) s, )?`(RINGFOLD_\w+_MS)`(?:,?\s\(?([\d.]+) s\b)?", text(name)
        ):
            found += [(named, seconds) for seconds in (before, after) if seconds]
    # Variables without a fixed default are left out.
    found = [(name, seconds) for name, seconds in found if name in defaults]
    assert len(found) > 5
    wrong = [(name, seconds) for name, seconds in found if defaults[name] != seconds]
    assert not wrong, f"{wrong}, and not {defaults}"
