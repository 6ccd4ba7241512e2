"""Figures and texts about plans, audits and runs."""

from tacita.report.style import need_matplotlib, new_figure, styled

__all__ = ["need_matplotlib", "new_figure", "styled"]
