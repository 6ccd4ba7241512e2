"""What a session of queries is going to release, what that spends, and whether the settings fit together.

Place: estimators, sampling, mechanisms -> [oracles.session_plan] -> oracles. All of it is fixed when an oracle is
built, before any query.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tacita import _validate
from tacita.accounting import AssumingEvent, ConditionalEvent, Event, NeighboringRelation
from tacita.estimators.estimator import Estimator
from tacita.ledger import Ledger, Session
from tacita.mechanisms import CalibratedGaussian, Mechanism
from tacita.oracles.records import OracleData, check_units
from tacita.oracles.session_options import SessionOptions
from tacita.sampling import Sampler


@dataclass(frozen=True)
class SessionPlan:
    """What a session releases: which bounded values, of which records, and how often.

    Attributes:
        data: The records, and their source. Private.
        estimator: Computes the values.
        sampler: Draws the records of a query.
        ledger: Pays for the queries.
        planned_queries: Number of queries.
    """

    data: OracleData
    estimator: Estimator
    sampler: Sampler
    ledger: Ledger
    planned_queries: int

    @property
    def relation(self) -> NeighboringRelation:
        """The ledger's neighboring relation."""
        return self.ledger.neighboring_relation

    def check(self) -> None:
        """Raise ``ValueError`` or ``UnsupportedEventError`` unless the settings fit together."""
        check_units(self.relation, self.data.max_rows_per_unit)
        if self.estimator.any_change and self.data.part is not None:
            raise ValueError(
                f"records must not be a part of a split with {type(self.estimator).__name__}: it protects all data of "
                "a client, which may be in every part, and parts would be charged as if it were in one alone."
            )
        if self.data.source.mixes_records and not self.estimator.any_change:
            raise ValueError(
                f"estimator must cover any change of the data with {type(self.data.source).__name__}, whose rows are "
                f"functions of several records: use ClippedMean, got {type(self.estimator).__name__}."
            )
        if self.ledger.max_delta is not None:
            self._check_delta("max_delta", self.ledger.max_delta)
        self.check_sampler()

    def settings(self, mechanism: Mechanism | CalibratedGaussian) -> dict[str, Any]:
        """Return the public settings that decide the privacy and the bits of a run."""
        digest = self.data.source.digest
        return {
            **({} if digest is None else {"program": digest}),
            "estimator": repr(self.estimator),
            "mechanism": repr(mechanism),
            "sampler": repr(self.sampler),
            "planned_queries": self.planned_queries,
            "shapes": {name: list(shape) for name, shape in self.data.source.shapes.items()},
            "source": repr(self.data.source),
        }

    def noise_std(self, mechanism: Mechanism) -> dict[str, float]:
        """Return the standard deviation of the noise on each block."""
        return self.estimator.noise_std(mechanism, self.relation, self.data.source.shapes)

    def event(self, mechanism: Mechanism) -> Event:
        """Return what the session spends with the noise of ``mechanism``."""
        event = self.estimator.session_event(mechanism, self.sampler, self.relation, self.data.source.shapes)
        return under_conditions(event, self.data.source.conditions, self.data.source.assumptions)

    def resolved(self, mechanism: Mechanism | CalibratedGaussian, options: SessionOptions) -> Mechanism:
        """Return ``mechanism`` with its noise multiplier, prepared for the values of the estimator."""
        if isinstance(mechanism, CalibratedGaussian):
            self._check_delta("target_delta", mechanism.target_delta)
            at = mechanism.at
            mechanism = mechanism.resolve(
                lambda noise_multiplier: self.event(at(noise_multiplier)),
                self.relation,
                self.planned_queries,
                options.spends(self.ledger, self.data.part),
                sessions=1 + options.planned_restarts,
            )
        if not isinstance(mechanism, Mechanism):
            raise TypeError(f"mechanism must be a Mechanism or a CalibratedGaussian, got {type(mechanism).__name__}.")
        return mechanism.on(self.estimator.steps(self.data.source.shapes), self.noise_std(mechanism))

    def session(self, event: Event, mechanism: Mechanism, options: SessionOptions) -> Session:
        """Return the session that pays: a new one, or the one in ``options`` if it was registered for this plan."""
        return options.session_for(
            "oracle",
            self.ledger,
            event,
            planned_queries=self.planned_queries,
            part=self.data.part,
            bound=self.settings(mechanism),
            or_to_these_alone=True,
        )

    def check_sampler(self) -> None:
        """Raise ``ValueError`` unless the sampler fits the estimator, the number of queries and the records."""
        self.estimator.check_batch(self.sampler.expected_batch_size, self.data.source.shapes)
        check_sampling(self.sampler, self.data, self.planned_queries, public_count=self._public_count())

    def _public_count(self) -> bool:
        """Return whether the number of records is public, so that the sampler's must be equal to it."""
        hidden = self.relation == "add_or_remove_one" or self.estimator.any_change
        return self.sampler.requires_public_count or not hidden

    def _check_delta(self, name: str, delta: float) -> None:
        if self._public_count() and self.data.num_rows:
            _validate.delta_below(name, delta, self.data.num_rows)


def check_sampling(sampler: Sampler, data: OracleData, planned_queries: int, *, public_count: bool) -> None:
    """Raise ``ValueError`` unless the sampler fits the number of queries and the records."""
    cap = data.max_rows_per_unit
    if sampler.max_queries is not None and planned_queries > sampler.max_queries:
        raise ValueError(f"planned_queries must be <= {sampler.max_queries} with {sampler!r}, got {planned_queries}.")
    if sampler.max_rows_per_unit != cap:
        raise ValueError(
            f"the sampler must have the records' cap: max_rows_per_unit is {sampler.max_rows_per_unit} in the "
            f"sampler and {cap} in the records. Use UnitPoissonSampler with records from split or cap_units."
        )
    if public_count and sampler.num_records != data.num_rows:
        raise ValueError(
            f"num_records must be the number of records with {type(sampler).__name__} under this relation, got "
            f"{sampler.num_records}. Pass len(data), or the number of its rows that take part."
        )


def under_conditions(event: Event, conditions: Iterable[str], assumptions: Iterable[str] = ()) -> Event:
    """Return ``event`` with assumptions of its guarantee, and with conditions that nobody enforces."""
    for assumption in assumptions:
        event = AssumingEvent(relation=event.relation, inner=event, assumption_text=assumption)
    for condition in conditions:
        event = ConditionalEvent(relation=event.relation, inner=event, condition_text=condition)
    return event
