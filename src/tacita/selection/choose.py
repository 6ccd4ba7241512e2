r"""Train under several settings, keep the best, and charge for the choice.

Place: inner, best_of -> [selection.choose] -> the user. Source: Papernot and Steinke (2022), Theorems 2 and 6,
https://arxiv.org/abs/2110.03620. Derivation: docs/derivations/selection.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from tacita import _validate
from tacita.accounting import Ledger, NeighboringRelation, Spend, Statement, statement
from tacita.clipping import FlatClipper
from tacita.estimators import ClippedSum
from tacita.mechanisms import GaussianMechanism
from tacita.oracles import Records
from tacita.random import Randomness
from tacita.sampling import Sampler, as_sampler
from tacita.selection import binding, words
from tacita.selection.best_of import PURPOSE, best_of, one_run_epsilon, register
from tacita.selection.grid import Grid, Sweep, Value
from tacita.selection.inner import calibrated, selection_event
from tacita.selection.number_of_runs import NumberOfRuns
from tacita.selection.trials import MakeRun, RunBudget, Runs, Score
from tacita.selection.workplace import Workplace


@dataclass(frozen=True)
class Winner:
    """The best run: private for good, free to publish.

    Attributes:
        settings: Its point of the grid.
        weights: Parameters and buffers of its model, by name, for ``load_state_dict``.
        score: Its score: the noisy sum, over the records of ``held_out``, of each record's value less 1/2.
    """

    settings: dict[str, Value]
    weights: dict[str, Tensor]
    score: float


@dataclass(frozen=True)
class Selection:
    """What a selection found.

    Attributes:
        winner: The best run; ``None`` if the number of runs drawn was 0 (a Poisson number may be).
        statement: What may be told, the price of the choice included.
        ledger: What was spent.
        noise_multiplier: Of every run's training.
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
    randomness: Randomness | None = None,
) -> Selection:
    r"""Train a random number of times, each under a setting drawn at random, and release the best run alone.

    The number of runs K is drawn from a truncated negative binomial law or a Poisson law, and nobody learns it. Each
    run draws a point of ``grid``, trains, and is scored by a noisy sum over ``held_out``. The noise is calibrated so
    that all of it, the choice included, is (target_epsilon, target_delta)-DP together with what ``ledger`` holds.

    Guarantee: with a run of Rényi curve :math:`\varepsilon(\lambda)`, the selection has, for all :math:`\lambda,
    \hat\lambda > 1`, :math:`\varepsilon(\lambda) + (1 + \eta) (1 - 1/\hat\lambda) \varepsilon(\hat\lambda) + (1 + \eta)
    \ln(1/\gamma) / \hat\lambda + \ln E[K] / (\lambda - 1)` (Poisson: Theorem 6). One session of ``ledger``, written and
    open before K is drawn; losers, their scores and K are never released. Elapsed time tells about K: see ``pad_to``.

    Args:
        make_run: ``Trial -> model``: trains with the trial's ledger, randomness and noise multiplier. torch's own
            generator is seeded for it, from the secret key. Whatever it prints or writes is outside the guarantee, and
            so is an error that it raises, which comes out as it is: it tells that a setting was drawn, and ends a
            selection that is paid for. Try every point of the grid on made-up data first.
        score: ``model -> values`` of shape (records,), one for each of ``held_out.rows``, in its order; larger is
            better. Clamped to [0, 1]; a value that is not a number counts 0.
        grid: Values by name, or a :class:`Grid` with weights.
        held_out: The records that score. A part by coin that no run trains on is scored beside the training, at no
            cost; other records are paid for as well.
        training: ``noise_multiplier -> Spend``, what a run's training spends: see :func:`clipped_training`. A run that
            plans more is refused.
        ledger: Pays. Has the relation and the unit.
        target_epsilon: For everything together.
        target_delta: For everything together.
        mean_runs: Mean number of runs, in [1, 10,000].
        shape: Of its law: 1 geometric, 0 logarithmic, ``inf`` Poisson (which may be 0 runs: then there is no winner).
        score_noise_std: Noise on the score, in records. By default what the training leaves free, or a tenth of what
            it spends if the score is paid for as well.
        pad_to: Make at least so many runs, those beyond K without consequence, so that elapsed time shows K only where
            it is larger.
        folder: Private working folder, new or empty, removed at the end: an interrupted selection goes on when it is
            called again with the same arguments. Needs a ledger with a path, outside the folder. Settings, ledger and
            ``held_out`` are held against those it began with; that ``make_run``, its data and ``score`` are the same is
            yours to see to.
        randomness: Only tests hand it in.

    Raises:
        ValueError: A setting is wrong; the message names it and the way out.
        LedgerError: A run planned more than ``training`` declares.
        ResumeError: The interrupted selection cannot be continued, or is another one than this.

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
    budget = RunBudget(training, held_out, ledger.neighboring_relation, score_noise_std)
    if folder is None:
        place, randomness, resumed = Workplace(), randomness or Randomness.system(), False
    else:
        place, randomness, resumed = binding.enter(Path(folder), ledger, randomness)
    alongside = _alongside(ledger)
    noise = calibrated(budget.event, sweep.runs, ledger.neighboring_relation, (target_epsilon, target_delta), alongside)
    event = selection_event(budget.event(noise), sweep.runs)
    settings = {**sweep.to_dict(), "target": [target_epsilon, target_delta], "score_noise_std": score_noise_std}
    if folder is not None:
        settings = binding.bound(settings, held_out, randomness)
    binding.check(ledger, event, settings, place, resumed)
    session = register(ledger, event, settings, secure=randomness.secure)
    place.begin()
    runs = Runs(make_run, score, sweep, budget, noise, ledger, held_out)
    best = best_of(session, sweep, randomness, runs.attempt, place)
    said = words.selection(
        sweep,
        chosen=None if best is None else sweep.grid.points[best.point],
        one_run_epsilon=one_run_epsilon(alongside, event, target_delta),
    )
    told = statement(ledger, target_delta, caveats=words.caveats(sweep, said), selection=said)
    winner = None if best is None else Winner(sweep.grid.points[best.point], dict(best.weights), best.score)
    ledger.flush()
    place.destroy()
    return Selection(winner, told, ledger, noise)


def clipped_training(sampler: Sampler, planned_queries: int, relation: NeighboringRelation) -> Callable[[float], Spend]:
    """What a training with clipped sums spends, as a function of its noise multiplier.

    The same for every clipping threshold: only noise over threshold counts.

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
        sensitivity = estimator.sensitivity(relation, {})
        noise_std = GaussianMechanism(noise_multiplier=noise_multiplier).noise_std(sensitivity, {})
        return Spend(estimator.event(as_sampler(sampler), noise_std, relation, {}), queries)

    at(1.0)
    return at


def _alongside(ledger: Ledger) -> list[Spend]:
    left = [session for session in ledger.sessions if session.purpose == PURPOSE and session.state != "withdrawn"]
    return ledger.spends(before=left[-1] if left else None)
