r"""The plan of a run on a table: all of its sessions, which are registered together before the first release.

The noise follows from public numbers alone. Purchases get their share of the total mu, and the training is calibrated
beside them. So is the score, which sees other rows than the training and may spend as much as the training does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tacita.accounting import Event, HardenedEvent, Part, Spend, calibrate
from tacita.clipping import FlatClipper
from tacita.correlated import CorrelatedGaussian, Noise, choose_strategy
from tacita.error_feedback import Feedback
from tacita.estimators import ClippedSum, Estimator
from tacita.hardened import GridSum, RoundedGaussian
from tacita.ledger import Ledger, Session
from tacita.mechanisms import CalibratedGaussian, GaussianMechanism, Mechanism
from tacita.sampling import AllocatedSampler, CyclicSampler, PoissonSampler, Sampler, UnitPoissonSampler
from tacita.tables import rules
from tacita.tables.budget import SCORE_SHARES, PurchasePlan
from tacita.tables.refinement import refined_columns
from tacita.tables.rules import HOLDOUT, Training
from tacita.tables.settings import TableSettings
from tacita.tables.source import TableSource
from tacita.tables.survey import Survey

EventAt = Callable[[float], Event]  # noise multiplier -> event
ROWS, SURVEY, REFINEMENT, TRAIN, SCORE = "rows", "survey", "refinement", "train", "score"
HELD_OUT, KEPT = 1, 0  # numbers of the parts of the split
SPLIT = "holdout"


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    """The sessions that a run will register. Public.

    Attributes:
        purchases: The budget of the purchases, and the target of everything together.
        training: The settings of the training.
        columns_to_buy: The number of columns about which something is bought, without the target.
        buys_target: Whether the target's classes or bounds are bought.
        buys_rows: Whether the number of rows, or the task, is bought.
        may_regress: Whether the target may turn out to be a number whose bounds are bought.
        buys_score: Whether a score is bought.
        holds_out: Whether rows are held out by coin.
        form: The training's noise. If it is hardened, so is the noise of purchases and score.
        batches: The sampler of the strategy that was chosen; ``None`` for Poisson sampling.
        noise_in_words: The choice of noise and batches, for the statement; empty if there was none.
        feedback: The error feedback of the training; ``None`` without it.
    """

    purchases: PurchasePlan
    training: Training
    columns_to_buy: int
    buys_target: bool
    buys_rows: bool
    may_regress: bool
    buys_score: bool
    holds_out: bool
    form: type[Mechanism] | CorrelatedGaussian = GaussianMechanism
    feedback: Feedback | None = None
    batches: AllocatedSampler | CyclicSampler | None = None
    noise_in_words: str = ""

    @classmethod
    def of(cls, settings: TableSettings, source: TableSource) -> "TablePlan":
        """Make the plan from the settings, the declarations and the structure of the file."""
        schema, target = source.schema, source.schema.target
        assert target is not None
        buys_target = not target.complete
        plan = cls(
            purchases=PurchasePlan(
                epsilon=settings.epsilon,
                delta=settings.delta,
                relation=settings.neighboring_relation,
                max_rows_per_unit=schema.max_rows_per_unit or 1,
            ),
            training=rules.training(settings),
            columns_to_buy=len(source.to_buy) - buys_target,
            buys_target=buys_target,
            buys_rows=schema.rows is None or (buys_target and target.task is None),
            may_regress=buys_target and target.task != "classification",
            buys_score=settings.test_file is None and not settings.non_private_holdout,
            holds_out=settings.test_file is None,
            form=RoundedGaussian if settings.hardened else GaussianMechanism,
            feedback=rules.feedback(settings),
        )
        return plan if settings.noise in (None, "independent") else plan._with_noise(settings.noise)

    def _with_noise(self, noise: Noise) -> "TablePlan":
        """Return the plan with the batches and the noise that ``noise`` asks for, beside all that is bought."""
        bought = self.purchases
        poisson = self.sampler(1)
        assert isinstance(poisson, PoissonSampler)
        strategy, words = choose_strategy(
            noise,
            poisson,
            lambda sampler: self.training.queries,
            relation=bought.relation,
            epsilon=bought.epsilon,
            delta=bought.delta,
            alongside=[Spend(event, 1) for event in self._purchases().values()],
        )
        batches = strategy.sampler if isinstance(strategy.sampler, AllocatedSampler | CyclicSampler) else None
        return replace(self, form=strategy.form, batches=batches, noise_in_words=words)

    def sampler(self, num_records: int) -> Sampler:
        """Return the sampler of rows; if a person may have several rows, with the cap that its event needs."""
        if self.batches is not None:
            return replace(self.batches, num_records=num_records)
        cap = self.purchases.max_rows_per_unit
        if cap > 1:
            return UnitPoissonSampler(
                sample_rate=self.training.sample_rate, num_records=num_records, max_rows_per_unit=cap
            )
        return PoissonSampler(sample_rate=self.training.sample_rate, num_records=num_records)

    def part(self, index: int) -> Part | None:
        """Return the part of the rows that is kept or held out; ``None``, for all rows, if none are held out."""
        if not self.holds_out:
            return None
        fraction = HOLDOUT if index == HELD_OUT else 1 - HOLDOUT
        return Part(split=SPLIT, kind="coin", index=index, fraction=fraction)

    def train_event(self, noise_multiplier: float) -> Event:
        """Return what the training spends, as its estimator states it.

        With a flat clipper that does not depend on the shapes of the model, which follow from what is bought.
        """
        mechanism = self.calibrated.at(noise_multiplier)
        return self.estimator().session_event(mechanism, self.sampler(1), self.purchases.relation, {})

    @property
    def calibrated(self) -> CalibratedGaussian:
        """The training's noise, which is calibrated to the target."""
        target = self.purchases
        return CalibratedGaussian(target_epsilon=target.epsilon, target_delta=target.delta, form=self.form)

    def estimator(self) -> Estimator:
        """Return the estimator of the training; its event does not depend on the divisor, which is bought."""
        clipper = FlatClipper(max_grad_norm=self.training.max_grad_norm)
        if self.feedback is not None:
            return self.feedback.estimator(clipper, self.sampler(1).expected_batch_size)
        return GridSum(clipper, together=False) if self.form.on_grid else ClippedSum(clipper)

    def score_event(self, noise_multiplier: float) -> Event:
        """Return what the score on the held-out rows spends."""
        return self._counted(self.purchases.score_event(noise_multiplier))

    @property
    def purchases_share(self) -> float:
        """The share of the total mu^2 that the purchases get."""
        return sum(self.share(event) for event in self._purchases().values())

    def _purchases(self) -> dict[str, Event]:
        """Return what each purchase spends, by the purpose of its session, in the order in which they are made."""
        bought, events = self.purchases, dict[str, Event]()
        if self.buys_rows:
            events[ROWS] = bought.rows_event()
        if self.columns_to_buy or self.buys_target:
            events[SURVEY] = bought.survey_event(self.columns_to_buy, target=self.buys_target)
        if self.refined:
            events[REFINEMENT] = bought.refinement_event(self.refined)
        return events

    def share(self, event: Event) -> float:
        """Return the share of the total mu^2 that one query of a purchase spends."""
        return _plain(event).query_mu ** 2 / self.purchases.total_mu**2

    @property
    def refined(self) -> int:
        """The number of histograms that the refinement is registered for."""
        return self.columns_to_buy + self.may_regress

    def _counted(self, event: Event) -> Event:
        """Return the event of noisy counts, with rounded Gaussian noise if the training's noise is hardened."""
        if not self.form.on_grid:
            return event
        return HardenedEvent(relation=event.relation, inner=event, sums="counts")

    def refinement_noise_std(self, survey: Survey) -> float:
        """Return the noise on each count of the refinement, whose histograms follow from the survey."""
        return self.purchases.refinement_noise_std(self._refined_histograms(survey), of=self.refined)

    def refinement_contribution(self, survey: Survey) -> float:
        """Return the largest L2 norm that one unit adds to the refinement."""
        return self.purchases.contribution(self._refined_histograms(survey))

    def _refined_histograms(self, survey: Survey) -> int:
        return max(self.columns_to_buy if survey.lean else len(refined_columns(survey)), 1)

    def score_noise_std(self, session: Session) -> dict[str, float]:
        """Return the noise on each count of the score by block, as the session was registered with it."""
        return dict(zip(SCORE_SHARES, noise_stds(session.event), strict=True))

    def register(self, ledger: Ledger, settings: Mapping[str, Any], *, secure: bool) -> "Sessions":
        """Register the sessions that are not registered yet, and return all of them.

        A run that was killed in between finds those that it registered before.
        """
        bought, plan = self.register_purchases(ledger, settings, secure=secure), self.purchases

        # Training and score see disjoint parts of the rows and compose in parallel. So each is calibrated beside the
        # purchases alone, as if the other did not exist, and nothing is calibrated again in a resumed run.
        def calibrated(event_at: EventAt, queries: int) -> Event:
            noise = calibrate(event_at, plan.relation, plan.epsilon, plan.delta, bought.spends, queries=queries)
            return event_at(noise)

        return self._with_training(bought, ledger, calibrated, settings, secure=secure)

    def register_purchases(self, ledger: Ledger, settings: Mapping[str, Any], *, secure: bool) -> "Sessions":
        """Register the purchases alone, as :meth:`register` does."""
        return Sessions(
            **{
                purpose: _registered(ledger, purpose, partial(self._counted, event), settings=settings, secure=secure)
                for purpose, event in self._purchases().items()
            }
        )

    def register_run(
        self, ledger: Ledger, noise_multiplier: float, score_noise_multiplier: float, settings: Mapping[str, Any]
    ) -> "Sessions":
        """Register training and score in a ledger of their own, at noise multipliers that the caller calibrated."""

        def given(event_at: EventAt, queries: int) -> Event:
            return event_at(noise_multiplier if event_at == self.train_event else score_noise_multiplier)

        return self._with_training(Sessions(), ledger, given, settings, secure=False)

    def _with_training(
        self,
        bought: "Sessions",
        ledger: Ledger,
        make: Callable[["EventAt", int], Event],
        settings: Mapping[str, Any],
        *,
        secure: bool,
    ) -> "Sessions":
        """Register training and score; ``make`` chooses the noise of their events."""

        def registered(purpose: str, event_at: EventAt, queries: int, index: int) -> Session:
            part, event = self.part(index), partial(make, event_at, queries)
            return _registered(ledger, purpose, event, queries=queries, part=part, settings=settings, secure=secure)

        bought = replace(bought, train=registered(TRAIN, self.train_event, self.training.queries, KEPT))
        return replace(bought, score=registered(SCORE, self.score_event, 1, HELD_OUT)) if self.buys_score else bought


def _registered(
    ledger: Ledger,
    purpose: str,
    make_event: Callable[[], Event],
    *,
    settings: Mapping[str, Any],
    secure: bool,
    queries: int = 1,
    part: Part | None = None,
) -> Session:
    """Return the ledger's session for ``purpose``, registering it if it is not there."""
    found = next((session for session in ledger.sessions if session.purpose == purpose), None)
    return found or ledger.register(
        make_event(),
        planned_queries=queries,
        purpose=purpose,
        part=part,
        settings=settings,
        secure_randomness=secure,
    )


def noise_stds(event: Event) -> tuple[float, ...]:
    """Return the noise on each block of a session's event."""
    return _plain(event).noise_settings.noise_std


def _plain(event: Event) -> Any:
    """Return the event of Gaussian noise, which may be hardened."""
    return event if event.noise_settings is not None else _plain(event.components[0])


@dataclass(frozen=True)
class Sessions:
    """The sessions of a run; ``None`` for those that it does not need."""

    rows: Session | None = None
    survey: Session | None = None
    refinement: Session | None = None
    train: Session | None = None
    score: Session | None = None

    @property
    def spends(self) -> list[Spend]:
        """What the purchases spend; training and score are calibrated beside it."""
        return [Spend(session.event, 1) for session in (self.rows, self.survey, self.refinement) if session is not None]
