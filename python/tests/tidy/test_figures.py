"""The figures in the documents match the committed rows."""

from comparison.figures import documents


def test_figures_are_those_of_the_rows() -> None:
    """Every figure is identical to the current output of `bench/comparison/figures.py`."""
    outdated = [
        path.name
        for path, contents in documents().items()
        if not path.exists() or path.read_text(encoding="utf-8") != contents
    ]
    assert not outdated, f"outdated: {outdated}; bench/comparison/figures.py draws them"
