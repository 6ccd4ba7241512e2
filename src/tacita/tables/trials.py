"""One run of a selection: its inputs, its budget, and the score by which runs are compared."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from tacita import _validate
from tacita.accounting import Event, FullBatchLaw, GaussianSumEvent, NeighboringRelation, Spend
from tacita.errors import TacitaError
from tacita.ledger import Ledger, Session
from tacita.mechanisms import GaussianMechanism
from tacita.oracles import Records
from tacita.oracles.records import num_rows
from tacita.oracles.single_query import answer_once
from tacita.random import Randomness
from tacita.tables.grid import Sweep, Value
from tacita.tables.run_cost import SCORE_SHARE, all_of, check_ledger, free_noise_multiplier, one_of
from tacita.tables.working_folder import RunResult

SCORE = "score"
HALF = 0.5  # subtracted from values in [0, 1], so that a value adds at most 1/2 and replacing one moves the sum by 1

Score = Callable[[nn.Module], Tensor]
MakeRun = Callable[["Trial"], nn.Module]


@dataclass(frozen=True)
class Trial:
    """The inputs of one run of a selection. Its ledger and its result are private; only the winner is released.

    Attributes:
        settings: The point of the grid, by name.
        noise_multiplier: For the run's training, with the declared sampler and number of queries.
        ledger: The run's own ledger, in memory. Pass it to the run's oracle.
        randomness: The run's own randomness. Pass it to the run's oracle, so that an interrupted run can be repeated.
    """

    settings: dict[str, Value]
    noise_multiplier: float
    ledger: Ledger
    randomness: Randomness


class RunBudget:
    """The cost of one run as a function of its noise multiplier: training and score, in parallel or in sequence."""

    def __init__(
        self,
        training: Callable[[float], Spend],
        held_out: Records,
        relation: NeighboringRelation,
        score_noise_std: float | None,
    ) -> None:
        if not isinstance(held_out, Records):
            raise TypeError(f"held_out must be Records, such as a part of tacita.split, got {type(held_out).__name__}.")
        if score_noise_std is not None:
            _validate.positive("score_noise_std", score_noise_std)
        if not isinstance(training(1.0), Spend):
            raise TypeError("training must give a Spend, an event and its number of queries.")
        self._training, self._score_noise_std = training, score_noise_std
        self._relation: NeighboringRelation = relation
        self._contribution = HALF * held_out.max_rows_per_unit
        self.beside = held_out.part is not None

    def event(self, noise_multiplier: float) -> Event:
        spends = [self._training(noise_multiplier), Spend(self.score_event(noise_multiplier), 1)]
        return one_of(spends) if self.beside else all_of(spends)

    def score_event(self, noise_multiplier: float) -> GaussianSumEvent:
        return self._sum_event(self.score_noise_std(noise_multiplier))

    def score_noise_std(self, noise_multiplier: float) -> float:
        """Return the noise on the sum of values.

        By default the score costs as much as the training allows for free, or a tenth of it if it is paid for as well.
        """
        if self._score_noise_std is not None:
            return self._score_noise_std
        spend = self._training(noise_multiplier)
        sensitivity = self._sum_event(1.0).query_mu
        return sensitivity * free_noise_multiplier(spend.event, spend.queries, 1.0 if self.beside else SCORE_SHARE)

    def _sum_event(self, noise_std: float) -> GaussianSumEvent:
        """Return what one noisy sum of all values spends."""
        return GaussianSumEvent(
            sampling=FullBatchLaw(),
            relation=self._relation,
            max_contribution=(self._contribution,),
            noise_std=(noise_std,),
        )


@dataclass(frozen=True)
class TrialRunner:
    """Makes the runs of a selection, each with a ledger of its own."""

    make_run: MakeRun
    score: Score
    sweep: Sweep
    budget: RunBudget
    noise_multiplier: float
    ledger: Ledger
    held_out: Records

    def attempt(self, point: int, randomness: Randomness) -> RunResult:
        own = Ledger(neighboring_relation=self.ledger.neighboring_relation, privacy_unit=self.ledger.privacy_unit)
        paying = own.register(
            self.budget.score_event(self.noise_multiplier),
            planned_queries=1,
            purpose=SCORE,
            part=self.held_out.part,
            secure_randomness=randomness.secure,
        )
        trial = Trial(dict(self.sweep.grid.points[point]), self.noise_multiplier, own, randomness)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(randomness.session_key("model").stream("first weights").seed())
            model = self.make_run(trial)
        if not isinstance(model, nn.Module):
            raise TypeError(f"make_run must return the trained model, an nn.Module, got {type(model).__name__}.")
        check_ledger(own, self.budget.event(self.noise_multiplier))
        value = self._bought(model, paying, randomness)
        weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        return RunResult(point=point, score=value, weights=weights)

    def _bought(self, model: nn.Module, session: Session, randomness: Randomness) -> float:
        """Return the noisy sum of the values; the ledger is written before it is released."""
        training = model.training
        model.eval()
        with torch.no_grad():
            values = self.score(model)
        model.train(training)
        if not isinstance(values, Tensor) or values.shape != (num_rows(self.held_out),):
            raise TacitaError("score must return a tensor with one value for each of held_out.rows.")
        values = values.detach().cpu().double()
        exact = torch.where(values.isnan(), 0.0, values).clamp(0.0, 1.0).sub(HALF).sum().reshape(1)
        mechanism = GaussianMechanism(noise_multiplier=1.0)
        released = answer_once(session, mechanism, _noise(session), {SCORE: {SCORE: exact}}, randomness)
        return float(released[SCORE][SCORE])


def _noise(session: Session) -> dict[str, float]:
    return {SCORE: cast(GaussianSumEvent, session.event).noise_std[0]}
