"""How long the reduced experiments take: the CPU seconds that ``benchmarks/experiment_times.py`` measured last.

One thread on one core of an ordinary server; another machine differs by a factor of two or so. The order is that of the
catalogue. ``None`` was not measured, or takes no data.
"""

CPU_SECONDS: dict[str, tuple[float | None, float | None]] = {  # name -> without --data, with it
}
