r"""Train under several settings, release the best run, and account for the choice.

Source: Papernot and Steinke (2022), Theorems 2 and 6, https://arxiv.org/abs/2110.03620. Derivation:
docs/derivations/selection.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from tacita import _validate
from tacita.accounting import NeighboringRelation, Spend
from tacita.clipping import FlatClipper
from tacita.estimators import ClippedSum
from tacita.ledger import Ledger, Session, Statement, statement
from tacita.mechanisms import GaussianMechanism
from tacita.oracles import Records
from tacita.random import Randomness
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.runs.sealed_run import publish
from tacita.sampling import Sampler, as_sampler
from tacita.tables import resume
from tacita.tables import selection_text as statement_text
from tacita.tables.best_of import PURPOSE, best_of, one_run_epsilon, register
from tacita.tables.grid import Grid, Sweep, Value
from tacita.tables.number_of_runs import NumberOfRuns
from tacita.tables.run_cost import calibrated, selection_event
from tacita.tables.selection_events import RepeatAndSelectEvent
from tacita.tables.trials import MakeRun, RunBudget, Score, TrialRunner
from tacita.tables.working_folder import FOLDER, WorkingFolder


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
    run = RunLifecycle.start(resume.folder_for(folder, ledger), randomness)
    session, place = _begin(run, ledger, event, settings, held_out)
    runner = TrialRunner(make_run, score, sweep, budget, noise, ledger, held_out)
    best = best_of(session, sweep, run.randomness, runner.attempt, place)
    winner = None if best is None else Winner(sweep.grid.points[best.point], dict(best.weights), best.score)
    field = statement_text.field_of(
        sweep,
        chosen=None if winner is None else winner.settings,
        one_run_epsilon=one_run_epsilon(alongside, event, target_delta),
    )
    caveats = statement_text.caveats(sweep, field)

    def make_statement(files: dict[str, str] | None = None) -> Statement:
        stated: dict[str, Any] = {} if files is None else {"files": files}
        return statement(ledger, target_delta, caveats=caveats, selection=field, **stated)

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
        settings = resume.bind(run, settings, held_out)
        place = WorkingFolder(run.folder.private / FOLDER)
    resume.check_resumable(ledger, event, settings, place, run.resumed)
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
