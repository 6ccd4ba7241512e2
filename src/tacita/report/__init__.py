"""Report: what a run, a plan or an experiment shows its reader."""

from tacita.report.style import need_matplotlib, new_figure, styled

__all__ = ["need_matplotlib", "new_figure", "styled"]
