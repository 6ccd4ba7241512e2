"""The program: the user's pass, written down before any record is read, and run at every query. Private."""

from tacita.gradients.program.engine import ProgramEngine, Programs

__all__ = ["ProgramEngine", "Programs"]
