"""The two scripts of ``docs/from-opacus.md``, taking turns: time of a whole training, epsilon, accuracy.

    python benchmarks/from_opacus.py --rounds 7

The scripts are read from the page, so that what is measured is what stands there. Times are CPU time of this process,
all threads together; a ratio is of the two trainings of one round, and the median over rounds is printed.
"""

import argparse
import random
import re
import statistics
import textwrap
import time
import warnings
from pathlib import Path

import torch
from results import markdown_table, write_section

PAGE = Path(__file__).parents[1] / "docs" / "from-opacus.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
SCRIPTS = 3  # blocks of the page that define the network and the two scripts


def scripts() -> dict:
    """Return the names that the page's first blocks define."""
    found: dict = {}
    exec("\n".join(BLOCK.findall(PAGE.read_text())[:SCRIPTS]), found)
    return found


def images(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noisy images of ten patterns, (rows, 1, 28, 28), and which pattern each has."""
    patterns = torch.randn(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    classes = torch.arange(rows) % 10
    return patterns[classes] + 3 * torch.randn(rows, 1, 28, 28, generator=generator), classes


def trained(found: dict, name: str, data: tuple, epochs: int) -> tuple[float, float, float]:
    """Return the CPU seconds of one training, its epsilon, and the accuracy on rows that it has not seen."""
    torch.manual_seed(0)
    model = found["network"]()
    model(data[0][:1])
    start = time.process_time()
    epsilon = found[name](model, *data, epochs)
    seconds = time.process_time() - start
    x, y = images(2000, seed=2)
    with torch.no_grad():
        return seconds, epsilon, (model(x).argmax(1) == y).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=6400)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--print", action="store_true", help="print the figures in place of writing the page")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = scripts()
    data, order = images(arguments.rows, seed=1), random.Random(0)
    rounds: dict[str, list] = {"with_opacus": [], "with_tacita": []}
    for turn in range(arguments.rounds + 1):
        for name in order.sample([*rounds], 2):
            result = trained(found, name, data, 1 if turn == 0 else arguments.epochs)
            if turn:  # the first round warms up
                rounds[name].append(result)
    lines = section(rounds, found["BATCH"], arguments)
    if arguments.print:
        print("\n".join(lines))
    else:
        write_section(Path(__file__).name, lines, PAGE)


def section(rounds: dict[str, list], batch: int, arguments: argparse.Namespace) -> list[str]:
    """Return the lines of the page."""
    ratios = [a[0] / b[0] for a, b in zip(rounds["with_opacus"], rounds["with_tacita"], strict=True)]
    table = [
        {
            "script": name.replace("_", " "),
            "CPU time": spread(ratios, 2) if name == "with_opacus" else "1",
            "epsilon": spread([epsilon for _, epsilon, _ in rounds[name]], 3),
            "accuracy": spread([accuracy for _, _, accuracy in rounds[name]], 3),
        }
        for name in rounds
    ]
    words = f"""Measured by `python benchmarks/from_opacus.py`, which reads the two functions from this page:
    {arguments.rows} images of 28 x 28, batches of {batch}, {arguments.epochs} epochs, one thread, the two trainings
    taking turns. *CPU time* is that of the whole training, as a multiple of tacita's in the same round; *accuracy* is
    that on 2000 other images. Each figure is the median of {arguments.rounds} rounds (lowest to highest)."""
    return [*textwrap.wrap(" ".join(words.split()), 118), "", *markdown_table(table)]


def spread(values: list[float], digits: int) -> str:
    """Return the median of ``values``, with the lowest and the highest."""
    low, middle, high = (f"{one:.{digits}f}" for one in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low} to {high})"


if __name__ == "__main__":
    main()
