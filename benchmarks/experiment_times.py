"""Measure the CPU seconds of `tacita reproduce NAME` at the reduced size; write tacita_reproductions/cpu_seconds.py.

    OMP_NUM_THREADS=1 python benchmarks/experiment_times.py [NAME...] [--data]

Without names all experiments are run; what is not run keeps its number. --data measures those that read public data, on
the folder TACITA_DATA or ../shared/data.
"""

import argparse
import re
import time
from pathlib import Path

from results import DATA, ROOT

from tacita_reproductions import catalogue, find
from tacita_reproductions.cpu_seconds import CPU_SECONDS

TABLE = ROOT / "reproductions" / "src" / "tacita_reproductions" / "cpu_seconds.py"
Seconds = tuple[float | None, float | None]


def measured(name: str, data: Path | None) -> float:
    """Run an experiment once, nothing kept, and return its CPU seconds to two digits."""
    start = time.process_time()
    find(name)(data=data)
    return float(f"{time.process_time() - start:.2g}")


def write(known: dict[str, Seconds]) -> None:
    """Write the table into the module, in the order of the catalogue."""
    lines = [f'    "{name}": {known[name]},\n' for name in catalogue() if name in known]
    text = TABLE.read_text()
    TABLE.write_text(re.sub(r"(?s)(# name -> without --data, with it\n).*", rf"\1{''.join(lines)}}}\n", text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--data", action="store_true")
    asked = parser.parse_args()
    known = dict(CPU_SECONDS)
    for name in asked.names or catalogue():
        if asked.data and not find(name).reads_data:
            continue
        seconds = measured(name, DATA if asked.data else None)
        print(name, seconds, flush=True)
        alone, with_data = known.get(name, (None, None))
        known[name] = (alone, seconds) if asked.data else (seconds, with_data)
        write(known)


if __name__ == "__main__":
    main()
