"""Common code of the papers' scripts: their arguments, `ringfold sim`, and their output."""

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent


class Curve(NamedTuple):
    """Points of one curve, and its matplotlib style."""

    label: str
    style: str
    points: Sequence[tuple[float, float]]


class Outputs:
    """Destinations of the results."""

    def __init__(self, name: str, description: str | None) -> None:
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--command", default="ringfold", help="the ringfold command")
        parser.add_argument("--csv", metavar="FILE|-", help="write all points as CSV; - is stdout")
        parser.add_argument("--json", metavar="FILE|-", help="write everything as JSON")
        parser.add_argument("--plot", metavar="FOLDER", type=Path, help="draw with matplotlib")
        self.arguments = parser.parse_args()
        self.name = name

    def simulate(self, *arguments: str) -> list[dict[str, Any]]:
        """Run the paper's scenario file, and return the simulations in its `--json` output."""
        command = [self.arguments.command, "sim", str(FOLDER / f"{self.name}.toml"), *arguments]
        done = subprocess.run([*command, "--json", "-"], stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"{self.name}: `{' '.join(command)}` failed")
        simulations: list[dict[str, Any]] = json.loads(done.stdout)["simulations"]
        return simulations

    def write(self, text: str, rows: Sequence[dict[str, Any]], document: dict[str, Any]) -> None:
        """Print the text, unless a file uses stdout, and write the files."""
        if "-" not in (self.arguments.csv, self.arguments.json):
            print(text)
        if self.arguments.csv:
            with _opened(self.arguments.csv) as file:
                writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
        if self.arguments.json:
            with _opened(self.arguments.json) as file:
                json.dump({"paper": self.name, **document}, file, indent=2)

    def draw(
        self, figure: str, title: str, axes: tuple[str, str], curves: Iterable[Curve], **scales: str
    ) -> None:
        """Draw one picture into the folder of `--plot`."""
        if self.arguments.plot is None:
            return
        try:
            from matplotlib import pyplot
        except ImportError:
            sys.exit("--plot needs matplotlib; `pip install matplotlib` installs it")
        _, plot = pyplot.subplots(layout="constrained")
        for curve in curves:
            plot.plot(*zip(*curve.points, strict=True), curve.style, label=curve.label)
        plot.set(title=title, xlabel=axes[0], ylabel=axes[1], **scales)
        plot.legend()
        self.arguments.plot.mkdir(parents=True, exist_ok=True)
        pyplot.savefig(self.arguments.plot / f"{self.name}-{figure}.svg")
        pyplot.close()


def _opened(path: str) -> Any:
    return open(sys.stdout.fileno() if path == "-" else path, "w", newline="", closefd=path != "-")
