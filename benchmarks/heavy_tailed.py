"""The claims of the experiments on heavy-tailed convex learning, as docs/results.md shows them.

    for name in rates clipping moments acceleration localized lasso shuffle; do
        tacita reproduce heavy-tailed-$name --full --output FOLDER
    done
    python benchmarks/heavy_tailed.py FOLDER

Reads what ``tacita reproduce`` wrote, and puts each claim with its verdict, and the tables, between the marks of this
page. An experiment that was not run keeps no line.
"""

import argparse
import json
from pathlib import Path

from results import markdown_table, write_section

from tacita_reproductions.result_cells import in_words

SCRIPT = "benchmarks/heavy_tailed.py"
NAMES = ("rates", "clipping", "moments", "acceleration", "localized", "lasso", "shuffle")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    found = [folder / f"heavy-tailed-{name}.json" for name in NAMES]
    records = [json.loads(path.read_text(encoding="utf-8")) for path in found if path.exists()]
    claims = [
        {"experiment": f"`{one['name']}`", "claim": check["says"], "found": check["found"],
         "verdict": "holds" if check["held"] else "**fails**"}
        for one in records for check in one["checks"]
    ]  # fmt: skip
    lines = [
        "## Convex learning on heavy-tailed data",
        "",
        "`tacita reproduce NAME --full`, synthetic data, seed 0; means of runs on fresh records, with standard errors. "
        "The paper on clipped mean oracles has no experiments: its theorems give the slopes, and the other bands were "
        "set down from a prototype before the library was measured. Figures come with `--output`.",
        "",
        *markdown_table(claims),
    ]
    for one in records:
        rows = [{name: in_words(value) for name, value in row.items()} for row in one["rows"]]
        lines += ["", f"### {one['title'].removesuffix('.')}", "", " ".join(one["notes"]), "", *markdown_table(rows)]
    write_section(SCRIPT, [*lines, ""])


if __name__ == "__main__":
    main()
