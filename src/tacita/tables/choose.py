r"""Train under several settings, release the best run, and account for the choice.

Source: Papernot and Steinke (2022), Theorems 2 and 6, https://arxiv.org/abs/2110.03620. Derivation:
docs/derivations/selection.md.

*Resuming.* A winner that was found under one budget must not be released under another. The session is registered for
a keyed tag of all settings and of the records that score, under the key in the working folder. So no other folder can
continue that session, and no other session can be continued in that folder.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from tacita import _validate
from tacita.accounting import NeighboringRelation, Spend
from tacita.clipping import FlatClipper
from tacita.errors import ResumeError
from tacita.estimators import ClippedSum
from tacita.ledger import Ledger, Session, Statement, settings_sha256, statement
from tacita.mechanisms import GaussianMechanism
from tacita.oracles import Records
from tacita.random import Randomness
from tacita.runs.folder import RunFolder
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.runs.sealed_run import publish
from tacita.sampling import Sampler, as_sampler
from tacita.tables.best_of import PURPOSE, best_of, caveats, field_of, one_run_epsilon, register
from tacita.tables.grid import Grid, Sweep, Value
from tacita.tables.number_of_runs import NumberOfRuns
from tacita.tables.run_cost import calibrated, selection_event
from tacita.tables.selection_events import RepeatAndSelectEvent
from tacita.tables.trials import MakeRun, RunBudget, Score, TrialRunner
from tacita.tables.working_folder import FOLDER, WorkingFolder
from tacita.training.fingerprint import data_parts


@dataclass(frozen=True)
class Winner:
    """The best run. It is differentially private and may be published.

    Attributes:
        settings: Its point of the grid.
        weights: Parameters and buffers of its model, by name, for ``load_state_dict``.
        score: Its score, the noisy sum over the records of ``held_out`` of each record's value minus 1/2.
    """

    settings: dict[str, Value]
    weights: dict[str, Tensor]
    score: float


@dataclass(frozen=True)
class Selection:
    """The result of a selection.

    Attributes:
        winner: The best run; ``None`` if the number of runs drawn was 0, which is possible for a Poisson number.
        statement: The statement, with the price of the choice.
        ledger: The ledger in which it was spent.
        noise_multiplier: The noise multiplier of every run's training.
    """

    winner: Winner | None
    statement: Statement
    ledger: Ledger
    noise_multiplier: float


def select(
    make_run: MakeRun,
    score: Score,
    grid: Grid | Mapping[str, Sequence[Value]],
    *,
    held_out: Records,
    training: Callable[[float], Spend],
    ledger: Ledger,
    target_epsilon: float,
    target_delta: float,
    mean_runs: float,
    shape: float,
    score_noise_std: float | None = None,
    pad_to: int | None = None,
    folder: str | Path | None = None,
    seal: bool = False,
    randomness: Randomness | None = None,
) -> Selection:
    r"""Train a random number of times, each under settings drawn at random, and release only the best run.

    The number of runs K is drawn from a truncated negative binomial law or a Poisson law, and stays secret. Each run
    draws a point of ``grid``, trains, and is scored by a noisy sum over ``held_out``. The noise is calibrated so that
    everything, the choice included, is (target_epsilon, target_delta)-DP together with the other sessions of
    ``ledger``.

    Guarantee: if a run has the Rényi curve :math:`\varepsilon(\lambda)`, the selection has, for all :math:`\lambda,
    \hat\lambda > 1`, the curve :math:`\varepsilon(\lambda) + (1 + \eta) (1 - 1/\hat\lambda) \varepsilon(\hat\lambda) +
    (1 + \eta) \ln(1/\gamma) / \hat\lambda + \ln E[K] / (\lambda - 1)` (Poisson: Theorem 6). It is one session of
    ``ledger``, written and open before K is drawn. Losing runs, their scores and K are never released. The elapsed time
    reveals something about K: see ``pad_to``.

    Args:
        make_run: ``Trial -> model``: trains with the trial's ledger, randomness and noise multiplier. torch's own
            generator is seeded for it, from the secret key. Its output and files are outside the guarantee. So is an
            error that it raises: it propagates, reveals that a setting was drawn, and ends a selection that is paid
            for. Try every point of the grid on made-up data first.
        score: ``model -> values`` of shape (records,), one for each of ``held_out.rows``, in its order; larger is
            better. Values are clamped to [0, 1]; NaN counts as 0.
        grid: Values by name, or a :class:`Grid` with weights.
        held_out: The records that score. Scoring costs nothing extra on a part by coin on which no run trains, since it
            composes in parallel with the training; scoring on other records is paid for.
        training: ``noise_multiplier -> Spend``, the cost of a run's training: see :func:`clipped_training`. A run that
            plans more is refused.
        ledger: The ledger in which the selection spends, with its relation and privacy unit.
        target_epsilon: For everything together.
        target_delta: For everything together.
        mean_runs: Mean number of runs, in [1, 10,000].
        shape: Shape of the law of K: 1 geometric, 0 logarithmic, ``inf`` Poisson. A Poisson number may be 0; then there
            is no winner.
        score_noise_std: Noise on the score, in records. By default it is such that the score is free beside the
            training or, if the score is paid for, costs a tenth of the training.
        pad_to: Smallest number of runs to make; those beyond K are discarded. Elapsed time then reveals K only if K is
            larger.
        folder: Private working folder, new or empty, removed at the end. To continue an interrupted selection, call
            again with the same arguments. Needs a ledger with a path outside the folder. Settings, ledger and
            ``held_out`` are checked to be the same; you must ensure that ``make_run``, its data and ``score`` are.
        seal: Write the winner's weights and the statement beside the ledger, and end the ledger with their hashes
            (:func:`tacita.seal_run`), before the working folder is removed. ``tacita statement`` checks them; nothing
            can be added to the ledger afterwards. Needs a ledger with a path.
        randomness: Only tests pass it.

    Raises:
        ValueError: A setting is wrong; the message names it and the way out.
        LedgerError: A run planned more than ``training`` declares.
        ResumeError: The interrupted selection cannot be continued, or is a different one.

    Example:
        >>> import torch, tacita
        >>> x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
        >>> y = (x.sum(1) > 0).float()
        >>> kept, held_out = tacita.split((x, y), [0.8, 0.2])
        >>> sampler = tacita.PoissonSampler(sample_rate=0.2, num_records=320)
        >>> def make_run(trial):
        ...     model = torch.nn.Linear(3, 1)
        ...     oracle = tacita.ClippedGradientOracle(
        ...         model, lambda m, b: torch.nn.functional.softplus(-m(b[0]).squeeze(1) * (2 * b[1] - 1)), kept,
        ...         ledger=trial.ledger, sampler=sampler, clipper=tacita.FlatClipper(max_grad_norm=1.0),
        ...         mechanism=tacita.GaussianMechanism(noise_multiplier=trial.noise_multiplier),
        ...         planned_queries=10, randomness=trial.randomness)
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=trial.settings["lr"])
        ...     for _ in range(oracle.planned_queries):
        ...         oracle.backward()
        ...         optimizer.step()
        ...     return model
        >>> def score(model):
        ...     rows = held_out.rows
        ...     return ((model(x[rows]).squeeze(1) > 0) == (y[rows] > 0)).float()
        >>> ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
        >>> best = select(make_run, score, {"lr": [0.1, 1.0]}, held_out=held_out, ledger=ledger,
        ...               training=clipped_training(sampler, 10, ledger.neighboring_relation),
        ...               target_epsilon=4.0, target_delta=1e-4, mean_runs=3, shape=1)
        >>> best.winner.settings["lr"] in (0.1, 1.0), ledger.epsilon(1e-4) <= 4.0, [s.id for s in ledger.sessions]
        (True, True, ['select-1'])
    """
    sweep = Sweep(
        grid=grid if isinstance(grid, Grid) else Grid(grid),
        runs=NumberOfRuns(mean_runs=mean_runs, shape=shape),
        pad_to=pad_to,
    )
    if seal:
        _check_sealable(ledger)
    budget = RunBudget(training, held_out, ledger.neighboring_relation, score_noise_std)
    alongside = _alongside(ledger)
    noise = calibrated(budget.event, sweep.runs, ledger.neighboring_relation, (target_epsilon, target_delta), alongside)
    event = selection_event(budget.event(noise), sweep.runs)
    settings = {**sweep.to_dict(), "target": [target_epsilon, target_delta], "score_noise_std": score_noise_std}
    run = RunLifecycle.start(folder_for(folder, ledger), randomness)
    session, place = _begin(run, ledger, event, settings, held_out)
    runner = TrialRunner(make_run, score, sweep, budget, noise, ledger, held_out)
    best = best_of(session, sweep, run.randomness, runner.attempt, place)
    winner = None if best is None else Winner(sweep.grid.points[best.point], dict(best.weights), best.score)
    field = field_of(
        sweep,
        chosen=None if winner is None else winner.settings,
        one_run_epsilon=one_run_epsilon(alongside, event, target_delta),
    )

    def make_statement(files: dict[str, str] | None = None) -> Statement:
        stated: dict[str, Any] = {} if files is None else {"files": files}
        return statement(ledger, target_delta, caveats=caveats(sweep, field), selection=field, **stated)

    weights = None if best is None else best.weights
    made = publish(ledger, make_statement, weights=weights) if seal else make_statement()
    ledger.flush()
    run.finish()
    return Selection(winner, made, ledger, noise)


def _begin(
    run: RunLifecycle,
    ledger: Ledger,
    event: RepeatAndSelectEvent,
    settings: dict[str, Any],
    held_out: Records,
) -> tuple[Session, WorkingFolder]:
    """Register the session and open the working folder, or return those of the selection that was interrupted."""
    place = WorkingFolder()
    if run.folder is not None:
        settings = bind(run, settings, held_out)
        place = WorkingFolder(run.folder.private / FOLDER)
    check_resumable(ledger, event, settings, place, run.resumed)
    session = register(ledger, event, settings, secure=run.randomness.secure)
    place.begin()
    return session, place


def _check_sealable(ledger: Ledger) -> None:
    """Raise ``ValueError`` if the ledger cannot be sealed at the end, before anything is spent."""
    if ledger.path is None:
        raise ValueError("seal needs a ledger with a path: the winner is written beside it.")
    running = [session.id for session in ledger.sessions if session.state == "open" and session.purpose != PURPOSE]
    if running:
        raise ValueError(f"seal ends the ledger, but sessions of it are open: close {', '.join(running)} first.")


def clipped_training(sampler: Sampler, planned_queries: int, relation: NeighboringRelation) -> Callable[[float], Spend]:
    """Return the cost of a training with clipped sums, as a function of its noise multiplier.

    It is the same for every clipping threshold: only the ratio of noise and threshold counts.

    Raises:
        UnsupportedEventError: No guarantee is proved for this sampler under ``relation``.

    Example:
        >>> import tacita
        >>> at = clipped_training(tacita.PoissonSampler(sample_rate=0.1, num_records=1000), 50, "add_or_remove_one")
        >>> at(1.5).queries, at(1.5).event.noise_std
        (50, (1.5,))
    """
    estimator, queries = ClippedSum(FlatClipper(max_grad_norm=1.0)), _validate.count("planned_queries", planned_queries)

    def at(noise_multiplier: float) -> Spend:
        mechanism = GaussianMechanism(noise_multiplier=noise_multiplier)
        return Spend(estimator.session_event(mechanism, as_sampler(sampler), relation, {}), queries)

    at(1.0)  # raises if no guarantee is proved
    return at


def _alongside(ledger: Ledger) -> list[Spend]:
    """Return the cost of the other sessions; when resuming, of those registered before the selection."""
    left = [session for session in ledger.sessions if session.purpose == PURPOSE and session.state != "withdrawn"]
    return ledger.spends(before=left[-1] if left else None)


def folder_for(folder: str | Path | None, ledger: Ledger) -> RunFolder | None:
    """Return the private working folder of a selection that spends in ``ledger``; ``None`` without one.

    Raises:
        ValueError: The folder holds the ledger; or the ledger is in memory.
    """
    if folder is None:
        return None
    if ledger.path is None:
        raise ValueError("folder needs a ledger with a path, in which an interrupted selection can be continued.")
    if Path(folder).resolve() in ledger.path.resolve().parents:
        raise ValueError(
            f"folder must not hold the ledger, got {str(folder)!r}: the folder is private and is removed at the end."
        )
    return RunFolder(folder, ledger=ledger.path)


def bind(run: RunLifecycle, settings: Mapping[str, Any], held_out: Records) -> dict[str, Any]:
    """Bind the run to ``settings`` and to the records that score; add the tag, for which the session is registered.

    Raises:
        ResumeError: The interrupted selection has other settings or records.
    """
    declared = json.dumps([settings, repr(held_out.part), held_out.max_rows_per_unit], sort_keys=True).encode()
    rows = b"" if held_out.rows is None else np.asarray(held_out.rows).tobytes()
    parts = [declared, rows, *data_parts(held_out.dataset, run.randomness.session_key("input"))]
    return {**settings, "inputs": run.bind(parts, "settings or held-out records")}


def check_resumable(
    ledger: Ledger, event: RepeatAndSelectEvent, settings: dict[str, Any], folder: WorkingFolder, key_found: bool
) -> None:
    """Check that ledger and folder hold nothing yet, or this same selection.

    Args:
        ledger: The ledger in which the selection spends.
        event: The event of this selection.
        settings: The settings for which its session is registered.
        folder: Its working folder.
        key_found: Whether the key was already in the folder.

    Raises:
        ResumeError: Folder and ledger do not belong together, or settings or records differ.
    """
    left = [one for one in ledger.sessions if one.purpose == PURPOSE and one.state != "withdrawn"]
    session = left[-1] if left else None
    if session is not None and session.opened and not key_found:
        raise ResumeError(
            f"session {session.id!r} was opened by an earlier process, whose private working folder is not here: use "
            "another ledger."
        )
    if not folder.begun:
        return
    same = session is not None and session.event == event
    if session is None or not same or session.registration.settings_sha256 != settings_sha256(settings):
        raise ResumeError(
            "folder holds an interrupted selection with another training, or of another ledger: repeat it with those, "
            "or choose another folder and another ledger."
        )
    if folder.done and not session.opened:
        raise ResumeError(
            f"folder holds runs, but session {session.id!r} was never opened: they belong to another ledger. Use that "
            "one, or another folder."
        )
