"""The package names the device of each tensor it makes, and ignores the program's default device.

`torch.set_default_device` and `with torch.device(...)` apply to every constructor without `device`,
in any library.
"""

import ast
from collections.abc import Iterator

import pytest
from test_tidy import text, tracked

CONSTRUCTORS = frozenset(
    "arange as_tensor asarray bartlett_window blackman_window empty empty_permuted empty_quantized"
    " empty_strided eye from_file full hamming_window hann_window kaiser_window linspace"
    " logspace nested_tensor normal ones rand randint randn randperm range scalar_tensor"
    " sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor sparse_coo_tensor"
    " sparse_csc_tensor sparse_csr_tensor tensor tril_indices triu_indices zeros".split()
)
"""torch's functions that make tensors and have a parameter `device`."""


def unplaced(source: str) -> Iterator[tuple[int, str]]:
    """Yield the calls that leave the device of a new tensor to the program's default."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        first, _, function = name.partition(".")
        if first != "torch":
            continue
        # `torch.FloatTensor(3)` takes no device.
        is_legacy = function.endswith("Tensor")
        is_placed = any(keyword.arg == "device" for keyword in node.keywords)
        if is_legacy or (function.rpartition(".")[2] in CONSTRUCTORS and not is_placed):
            yield node.lineno, name


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("torch.empty(3)", 1),
        ("torch.nested.nested_tensor([one])", 1),
        ("torch.cat([torch.zeros(2, dtype=kind), other])", 1),
        ("torch.FloatTensor(3)", 1),
        ("torch.empty(3, device='cpu')", 0),
        ("torch.empty_like(other)", 0),
        ("numpy.empty(3)", 0),
    ],
)
def test_the_check_finds_tensors_of_the_default_device(source: str, count: int) -> None:
    assert len(list(unplaced(source))) == count


def test_tensors_name_their_device() -> None:
    """The package works the same under every default device of torch."""
    found = [
        f"{name}:{line} {call}"
        for name in tracked(".py")
        if name.startswith("python/ringfold/")
        for line, call in unplaced(text(name))
    ]
    assert not found, f"tensors on the program's default device: {found}"
