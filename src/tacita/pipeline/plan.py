r"""The plan: every session of a run, registered together before the first release.

Place: rules, tables.budget -> [pipeline.plan] -> purchases, training, score. Noise follows from public numbers alone:
purchases get their share of the total mu, the training is calibrated beside them, and so is the score, which sees other
rows than the training and may spend what the training spends.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tacita.accounting import (
    Event,
    HardenedEvent,
    HistogramGaussianEvent,
    Ledger,
    Part,
    Session,
    Spend,
    calibrate,
    hardening,
    moved,
)
from tacita.clipping import FlatClipper
from tacita.estimators import ClippedSum, GridSum
from tacita.mechanisms import GaussianMechanism, Mechanism, form_of
from tacita.pipeline import rules
from tacita.pipeline.rules import HOLDOUT, Training
from tacita.pipeline.settings import TableSettings
from tacita.pipeline.source import Source
from tacita.sampling import PoissonSampler, Sampler, UnitPoissonSampler
from tacita.tables.budget import PurchasePlan

MakeEvent = Callable[[], Event]
SURVEY, REFINEMENT, TRAIN, SCORE = "survey", "refinement", "train", "score"
HELD_OUT, KEPT = 1, 0  # numbers of the parts
SPLIT = "holdout"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will be registered. All of it public.

    Attributes:
        purchases: Budget of the purchases, and the target of everything together.
        training: Settings of the training.
        columns_to_buy: Number of columns about which something is bought; 0 if all is declared.
        score_histograms: 1 or 2 if a score is bought, 0 if not.
        holds_out: Whether rows are held out by coin.
        form: The noise of the training. Where it is hardened, so are purchases and score.
    """

    purchases: PurchasePlan
    training: Training
    columns_to_buy: int
    score_histograms: int
    holds_out: bool
    form: type[Mechanism] = GaussianMechanism

    @classmethod
    def of(cls, settings: TableSettings, source: Source) -> "Plan":
        """From the settings, the declarations and the file's structure."""
        schema, target = source.schema, source.schema.target
        assert target is not None
        buys_score = settings.test_file is None and not settings.non_private_holdout
        classes = target.task == "classification" or target.classes is not None
        return cls(
            purchases=PurchasePlan(
                epsilon=settings.epsilon,
                delta=settings.delta,
                relation=settings.neighboring_relation,
                max_rows_per_unit=schema.max_rows_per_unit or 1,
            ),
            training=rules.training(settings),
            columns_to_buy=len(source.to_buy),
            score_histograms=(1 if classes else 2) if buys_score else 0,
            holds_out=settings.test_file is None,
            form=form_of(settings.hardened),
        )

    def sampler(self, num_records: int) -> Sampler:
        """Poisson sampling of rows; under a unit of several rows with the cap that its event needs."""
        cap = self.purchases.max_rows_per_unit
        if cap > 1:
            return UnitPoissonSampler(
                sample_rate=self.training.sample_rate, num_records=num_records, max_rows_per_unit=cap
            )
        return PoissonSampler(sample_rate=self.training.sample_rate, num_records=num_records)

    def part(self, index: int) -> Part | None:
        """The part of the rows that is kept for the training, or held out; ``None`` (all rows) if none are held out."""
        if not self.holds_out:
            return None
        fraction = HOLDOUT if index == HELD_OUT else 1 - HOLDOUT
        return Part(split=SPLIT, kind="coin", index=index, fraction=fraction)

    def train_event(self, noise_multiplier: float) -> Event:
        """The training as its estimator states it; with a flat clipper it does not depend on the model's shapes."""
        clipper, mechanism = FlatClipper(max_grad_norm=self.training.max_grad_norm), self.form
        estimator = GridSum(clipper, together=False) if mechanism.on_grid else ClippedSum(clipper)
        sensitivity = estimator.sensitivity(self.purchases.relation, {})
        mechanism = mechanism(noise_multiplier=noise_multiplier)
        noise_std = mechanism.noise_std(sensitivity, {})
        return mechanism.event(estimator.event(self.sampler(1), noise_std, self.purchases.relation, {}))

    def score_event(self, noise_multiplier: float) -> Event:
        """Counts over the held-out rows."""
        plan = self.purchases
        contribution = plan.max_rows_per_unit * self.score_histograms**0.5
        sensitivity = moved(plan.relation) ** 0.5 * contribution
        event = HistogramGaussianEvent(
            relation=plan.relation, max_contribution=(contribution,), noise_std=(noise_multiplier * sensitivity,)
        )
        return self._counted(event)

    def _counted(self, event: Event) -> Event:
        """The event of noisy counts: with rounded Gaussian noise where the training's noise is hardened."""
        if not self.form.on_grid:
            return event
        return HardenedEvent(relation=event.relation, inner=event, noise="rounded", sums="counts")

    def score_noise_std(self, session: Session, histograms: int) -> float:
        """Noise on each count of a score that turned out to be ``histograms`` histograms.

        Registered before the task was known, for ``score_histograms`` of them: contribution over noise, which is all
        that counts, stays the same.
        """
        return _noise_std(session.event) * (histograms / self.score_histograms) ** 0.5

    def register(self, ledger: Ledger, settings: Mapping[str, Any], *, secure: bool) -> "Sessions":
        """Register what is not registered yet (a run killed in between goes on where it was), and return it all."""
        bought = self.register_purchases(ledger, settings, secure=secure)
        spends, queries = bought.spends, self.training.queries

        def registered(
            purpose: str, make_event: Callable[[], Event], queries: int = 1, part: Part | None = None
        ) -> Session:
            return _registered(
                ledger, purpose, make_event, queries=queries, part=part, settings=settings, secure=secure
            )

        train = registered(
            TRAIN,
            lambda: self.train_event(self._calibrated(self.train_event, spends, queries)),
            queries,
            self.part(KEPT),
        )
        score = None
        if self.score_histograms:
            score = registered(
                SCORE, lambda: self.score_event(self._calibrated(self.score_event, spends, 1)), 1, self.part(HELD_OUT)
            )
        return replace(bought, train=train, score=score)

    def register_purchases(self, ledger: Ledger, settings: Mapping[str, Any], *, secure: bool) -> "Sessions":
        """:meth:`register`, without training and score."""
        if not self.columns_to_buy:
            return Sessions()

        def registered(purpose: str, event_of: Callable[[int], Event]) -> Session:
            def make() -> Event:
                return self._counted(event_of(self.columns_to_buy))

            return _registered(ledger, purpose, make, settings=settings, secure=secure)

        return Sessions(
            registered(SURVEY, self.purchases.survey_event), registered(REFINEMENT, self.purchases.refinement_event)
        )

    def register_run(
        self, ledger: Ledger, noise_multiplier: float, score_noise_multiplier: float, settings: Mapping[str, Any]
    ) -> "Sessions":
        """Training and score in a ledger of their own, at a noise that somebody else calibrated."""

        def registered(purpose: str, event: Event, queries: int, index: int) -> Session:
            part = self.part(index)
            return _registered(
                ledger, purpose, lambda: event, queries=queries, part=part, settings=settings, secure=False
            )

        train = registered(TRAIN, self.train_event(noise_multiplier), self.training.queries, KEPT)
        if not self.score_histograms:
            return Sessions(train=train)
        return Sessions(train=train, score=registered(SCORE, self.score_event(score_noise_multiplier), 1, HELD_OUT))

    def _calibrated(self, event_at: Callable[[float], Event], alongside: list[Spend], queries: int) -> float:
        plan = self.purchases
        return calibrate(event_at, plan.relation, plan.epsilon, plan.delta, alongside, queries=queries)


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
    """The ledger's session for ``purpose``: the one that is there, or a new one."""
    found = next((session for session in ledger.sessions if session.purpose == purpose), None)
    return found or ledger.register(
        make_event(),
        planned_queries=queries,
        purpose=purpose,
        part=part,
        settings=settings,
        secure_randomness=secure,
    )


def _noise_std(event: Event) -> float:
    """Of an event with one block."""
    hardened = hardening(event)
    return (event if hardened is None else hardened.inner).noise_std[0]  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True)
class Sessions:
    """The sessions of a run; ``None`` for what is not bought."""

    survey: Session | None = None
    refinement: Session | None = None
    train: Session | None = None
    score: Session | None = None

    @property
    def spends(self) -> list[Spend]:
        """What the purchases spend: what the rest is calibrated beside."""
        return [Spend(session.event, 1) for session in (self.survey, self.refinement) if session is not None]
