"""How an oracle is paid: who pays, what its session is going to release, and what that spends.

Place: estimators, sampling, mechanisms, ledger -> [oracles.payment] -> oracles. All of it is fixed when an oracle is
built, before any query, and everything but the key inside ``randomness`` is public.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from tacita import _validate
from tacita.accounting import (
    ConditionalEvent,
    Event,
    NeighboringRelation,
    Part,
    Spend,
    TruncatedPoissonLaw,
)
from tacita.errors import LedgerError, ResumeError, UnsupportedEventError
from tacita.estimators.estimator import Estimator
from tacita.ledger import Session, Share, settings_sha256
from tacita.ledger.session import BLOCK
from tacita.mechanisms import CalibratedGaussian, Mechanism
from tacita.oracles.records import OracleData, check_units
from tacita.random import Randomness
from tacita.sampling import Sampler


@dataclass(frozen=True)
class Payment:
    """Who pays for an oracle, and on which terms.

    Attributes:
        ledger: Pays; sets the neighboring relation and the privacy unit.
        purpose: What the session is for (``"train"``, ``"score"``); appears in the statement.
        settings: More public settings to bind to the session's hash.
        session: A session that was registered before; ``None`` registers one.
        share: The share to pay from, which was set aside before the first release; ``None`` pays from the whole budget.
        randomness: The key that coins and noise come from; by default a new one from the system.
        reservation: Number of queries that are reserved on disk at once.
    """

    ledger: Any  # a Ledger; None on a rank that does not pay
    purpose: str
    settings: Mapping[str, Any] | None = None
    session: Session | None = None
    share: Share | None = None
    randomness: Any = None  # a Randomness once built
    reservation: int = BLOCK

    def __post_init__(self) -> None:
        object.__setattr__(self, "randomness", self.randomness or Randomness.system())
        _validate.count("reservation", self.reservation)
        if self.share is not None and not isinstance(self.share, Share):
            raise TypeError(f"share must be what register_share returned, got {type(self.share).__name__}.")
        if self.share is not None and self.session is not None and self.session.share != self.share.id:
            raise LedgerError(
                f"session {self.session.id!r} is not paid from {self.share.id}: leave share out, or register the "
                "session with it."
            )

    def spends(self, part: Part | None) -> list[Spend]:
        """Return what calibration has to add to: all that is planned before the session, or before it in its share."""
        ledger, share = self.ledger, self.share
        if share is None and self.session is not None and self.session.share is not None:
            share = next(one for one in ledger.shares if one.id == self.session.share)
        if share is None and self.session is None:
            ledger.check_in_time(part)  # else the message would be about noise, which is not what is wrong
        return ledger.spends(part, share=share, before=self.session)

    @property
    def more_settings(self) -> dict[str, Any]:
        """The caller's settings."""
        return dict(self.settings or {})

    def session_for(
        self,
        payee: str,
        event: Event,
        *,
        planned_queries: int,
        part: Part | None,
        bound: Mapping[str, Any],
        or_to_these_alone: bool = False,
    ) -> Session:
        """Return the session that pays: a new one of ``ledger``, or the one that was handed in, if it fits.

        Args:
            payee: What is paid for, as messages call it: "oracle" or "test".
            event: What the session spends.
            planned_queries: Number of queries that may be made.
            part: The part of a split that is read; ``None`` for all records.
            bound: The payee's own settings. A session is bound to these together with :attr:`settings`.
            or_to_these_alone: Also accept a session that is bound to :attr:`settings` alone.

        Raises:
            LedgerError: The session was registered for something else, or for secure randomness, and this is not.
            ResumeError: It was registered with other settings, of another model say.
        """
        bound = {**bound, **self.more_settings}
        session = self.session
        if session is None:
            return self.ledger.register(
                event,
                planned_queries=planned_queries,
                purpose=self.purpose,
                part=part,
                settings=bound,
                secure_randomness=self.randomness.secure,
                share=self.share,
            )
        registered = session.registration
        if registered.secure_randomness and not self.randomness.secure:
            raise LedgerError(
                f"session {session.id!r} was registered for secure randomness, and this {payee}'s is not."
            )
        of_settings = [settings_sha256(one) for one in ((bound, self.more_settings) if or_to_these_alone else (bound,))]
        now = {"event": event, "planned_queries": planned_queries, "part": part}
        changes = [one for name, value in now.items() for one in _changes(name, getattr(registered, name), value)]
        if changes:
            raise LedgerError(
                f"session {session.id!r} was registered for another event, number of queries or part of the records "
                f"than this {payee}'s ({'; '.join(changes)}): repeat its epsilon, delta, steps and other settings."
            )
        if registered.settings_sha256 not in of_settings:
            raise ResumeError(
                f"session {session.id!r} was registered with other settings than this {payee}'s. A network's model and "
                f"loss, as written down, are among these: build the {payee} with those it was registered with."
            )
        return session


@dataclass(frozen=True)
class SessionPlan:
    """What a session releases: which bounded values, of which records, and how often.

    Attributes:
        data: The records, and their source. Private.
        estimator: Computes the values.
        sampler: Draws the records of a query.
        payment: Who pays for the queries.
        planned_queries: Number of queries.
    """

    data: OracleData
    estimator: Estimator
    sampler: Sampler
    payment: Payment
    planned_queries: int

    @property
    def relation(self) -> NeighboringRelation:
        """The ledger's neighboring relation."""
        return self.payment.ledger.neighboring_relation

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
        if self.estimator.needs_rows_alone and not self.data.source.rows_alone:
            raise ValueError(
                f"estimator must not claim that records are computed alone: those of {self.data.source!r} are computed "
                "together. Use GridSum(clipper), or max_physical_batch_size=1 (a LinearSource: exact=True)."
            )
        if self.payment.ledger.max_delta is not None:
            self._check_delta("max_delta", self.payment.ledger.max_delta)
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
        return under_conditions(event, self.data.source.conditions)

    def resolved(self, mechanism: Mechanism | CalibratedGaussian) -> Mechanism:
        """Return ``mechanism`` with its noise multiplier, prepared for the values of the estimator."""
        if isinstance(mechanism, CalibratedGaussian):
            self._check_delta("target_delta", mechanism.target_delta)
            at = mechanism.at
            mechanism = mechanism.resolve(
                lambda noise_multiplier: self.event(at(noise_multiplier)),
                self.relation,
                self.planned_queries,
                self.payment.spends(self.data.part),
            )
        if not isinstance(mechanism, Mechanism):
            raise TypeError(f"mechanism must be a Mechanism or a CalibratedGaussian, got {type(mechanism).__name__}.")
        return mechanism.on(self.estimator.steps(self.data.source.shapes), self.noise_std(mechanism))

    def session(self, event: Event, mechanism: Mechanism) -> Session:
        """Return the session that pays: a new one, or the one that was registered for this plan."""
        return self.payment.session_for(
            "oracle",
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
    by_coin = data.part is not None and data.part.kind == "coin"
    if by_coin and not public_count and isinstance(sampler.law, TruncatedPoissonLaw):
        raise UnsupportedEventError(
            "max_batch_size has no guarantee for a part by coin under add_or_remove_one, because coins decide how many "
            "records the part has: leave max_batch_size out, or use another relation."
        )
    if public_count and sampler.num_records != data.num_rows:
        raise ValueError(
            f"num_records must be the number of records with {type(sampler).__name__} under this relation, got "
            f"{sampler.num_records}. Pass len(data), or the number of its rows that take part."
        )


def under_conditions(event: Event, conditions: Iterable[str]) -> Event:
    """Return ``event`` under conditions of its guarantee that nobody enforces."""
    for condition in conditions:
        event = ConditionalEvent(relation=event.relation, inner=event, condition_text=condition)
    return event


def _changes(name: str, before: Any, now: Any) -> list[str]:
    """Say what differs, field by field where both are of one kind; never nothing of what is not equal."""
    if before == now:
        return []
    found: list[str] = []
    if type(before) is type(now) and is_dataclass(now):
        names = [field.name for field in fields(now)]
        found = [one for name in names for one in _changes(name, getattr(before, name), getattr(now, name))]
    return found or [f"{name} was {before!r} and is {now!r}"]
