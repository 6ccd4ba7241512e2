"""Errors: what a user may catch.

Place: the ground; imports nothing. Settings raise ``ValueError`` where they are built; the classes here are for the
rest. No message carries a value computed from data, except releases, which have noise.
"""


class TacitaError(Exception):
    """Base of every error that is tacita's own."""


class UnsupportedEventError(TacitaError, ValueError):
    """An estimator, sampler and neighboring relation for which no guarantee is proved."""


class UnsupportedModuleError(TacitaError, ValueError):
    """A module or loss whose per-sample gradients are not defined (it mixes samples, say)."""


class BudgetExceededError(TacitaError):
    """A session would pass the ledger's cap, or a query the session's plan."""


class LedgerError(TacitaError):
    """A ledger that is damaged, locked by another writer, or does not match the run."""


class ResumeError(TacitaError):
    """A run cannot be continued without spending outside its plan."""


class UnfinishedRunError(TacitaError):
    """A run was started and is not finished, so that nothing is stated of it yet."""


class DataStructureError(TacitaError, ValueError):
    """The structure of a file (not its rows) is not what the settings declare."""


class RankError(TacitaError):
    """Several processes cannot go on together: one failed, differs from the others, or is gone."""
