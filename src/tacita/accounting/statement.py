"""The privacy statement: what a ledger guarantees, in words that an officer can sign and in JSON.

Place: ledger -> [accounting.statement] -> report, command line. Every number comes from the ledger; a statement cannot
be made without one. Bounds are rounded up where they are printed.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tacita import _validate
from tacita.accounting.chain import Anchor, canonical
from tacita.accounting.events import Event
from tacita.accounting.hardened_events import NOISES, hardening
from tacita.accounting.ledger import Ledger
from tacita.accounting.session import Session
from tacita.accounting.statement_text import write_text
from tacita.accounting.wrapped_events import RepeatAndSelectEvent

FLOATING_POINT = "Attacks on the floating-point arithmetic of the noise are out of scope."
CAVEATS = (
    "Whoever holds the key file of a run and its releases can take the noise off again: keep it secret, and delete it "
    "at the end. Deletion on solid-state disks is not claimed.",
    FLOATING_POINT,
    "Only what the unit says is protected: if a unit is one row, somebody with several rows is protected less, and "
    "facts that many units share are not protected at all.",
    "It covers what the sessions listed here released. Other uses of the same data, and models that were trained or "
    "compared outside of this ledger, are not in it.",
)

PROMISE = (
    "A condition is a promise about every data set that the run might have had, not about this run: that it was seen "
    "to hold along the run proves nothing, and whether it held is itself private, so that nothing may show it unless "
    "it is paid for."
)


def statement(
    ledger: Ledger,
    delta: float,
    *,
    purchases: Sequence[Any] = (),
    chosen_by_tacita: Sequence[str] = (),
    caveats: Sequence[str] = (),
    holdout_score: Any = None,
    **fields: Any,
) -> "Statement":
    """What ``ledger`` guarantees at ``delta``, for people and for programs.

    Args:
        ledger: Where everything that is stated comes from.
        delta: In (0, 1), well below 1 / (number of units); never chosen for the caller.
        purchases: What was bought from the data besides (bounds, categories, ...): texts or JSON values.
        chosen_by_tacita: Settings that a front end chose by a public rule.
        caveats: What the reader must know, beside the standing caveats.
        holdout_score: A held-out score that was bought privately or computed outside the guarantee, as JSON.
        fields: Further JSON values, printed under the names that they are given.

    Raises:
        TypeError: ``ledger`` is not a ledger.
        ValueError: ``delta`` out of range; a further field that is not JSON or has a name of the statement's own.

    Example:
        >>> from tacita.accounting import FullBatchGaussianEvent
        >>> ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row = one patient")
        >>> event = FullBatchGaussianEvent(relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(20.0,))
        >>> session = ledger.register(event, planned_queries=10)
        >>> words = statement(ledger, delta=1e-6)
        >>> round(words.to_json()["epsilon"], 2), words.to_json()["epsilon_spent"]
        (0.65, 0.0)
    """
    return Statement(
        ledger,
        delta,
        purchases=purchases,
        chosen_by_tacita=chosen_by_tacita,
        caveats=caveats,
        holdout_score=holdout_score,
        fields=fields,
    )


class Statement:
    """What a ledger guaranteed when this was made; see :func:`statement`.

    In the JSON, ``epsilon`` is that of the plan, or ``null``: then ``non_private`` is true (no noise somewhere), or
    ``conditional_epsilon`` holds the number under ``conditions``, which nobody enforces. ``epsilon_spent`` likewise.
    The fields of a single session (sampler, noise, ...) are those of the main one: the first whose purpose is
    "train", else the first of all. Infinite settings are the text "inf".
    """

    def __init__(
        self,
        ledger: Ledger,
        delta: float,
        *,
        purchases: Sequence[Any] = (),
        chosen_by_tacita: Sequence[str] = (),
        caveats: Sequence[str] = (),
        holdout_score: Any = None,
        fields: Mapping[str, Any] | None = None,
    ):
        if not isinstance(ledger, Ledger):
            raise TypeError(f"a statement is made from a Ledger, got {type(ledger).__name__}.")
        _validate.delta("delta", delta)
        self._anchor = ledger.anchor._replace(name="statement")
        said = {
            "purchases": list(purchases),
            "chosen_by_tacita": list(chosen_by_tacita),
            "caveats": [*_standing(ledger), *([PROMISE] if ledger.conditions else []), *caveats],
            "holdout_score": holdout_score,
        }
        self._fields = {**_guarantee(ledger, delta), **_main(ledger), **_record(ledger), **said}
        for name, value in (fields or {}).items():
            if name in self._fields:
                raise ValueError(f"{name!r} is a field that the statement takes from the ledger.")
            self._fields[name] = value
        try:
            canonical(self._fields)
        except (TypeError, ValueError) as error:
            raise ValueError(f"what goes into a statement must be plain JSON values: {error}.") from None
        self._extra = tuple(fields or {})

    @property
    def text(self) -> str:
        """The statement in plain words, lines of at most 100 columns where the words allow it."""
        return write_text(self._fields, self._extra)

    @property
    def anchor(self) -> Anchor:
        """Where the ledger stood: hand it to ``ledger.verify(anchor)`` later."""
        return self._anchor

    def to_json(self) -> dict[str, Any]:
        """The statement as plain JSON values."""
        return json.loads(self.to_bytes())

    def to_bytes(self) -> bytes:
        """The statement as a JSON document."""
        return json.dumps(_plain(self._fields), indent=2, allow_nan=False).encode() + b"\n"

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Statement(epsilon={self._fields['epsilon']}, delta={self._fields['delta']})"


# --- the fields ----------------------------------------------------------------------------------------------------


def _guarantee(ledger: Ledger, delta: float) -> dict[str, Any]:
    bound, spent = ledger.conditional_bound(delta), ledger.spent_bound(delta)
    conditional = bool(ledger.conditions)
    failure = math.fsum(spend.event.coupling_gap(spend.queries) for spend in ledger.spends())
    return {
        "epsilon": None if conditional else _finite(bound.epsilon),
        "epsilon_spent": _finite(ledger.epsilon_spent(delta)),
        "conditional_epsilon": _finite(bound.epsilon) if conditional else None,
        "conditional_epsilon_spent": _finite(spent.epsilon) if conditional else None,
        "conditions": list(ledger.conditions),
        "non_private": math.isinf(bound.epsilon),
        "delta": delta,
        "failure_probability": failure,
        "failure_delta": min(1.0, failure * (1 + math.exp(min(bound.epsilon, 700.0)))),
        "neighboring_relation": ledger.neighboring_relation,
        "privacy_unit": ledger.privacy_unit,
        "accountant": bound.accountant,
        "assumptions": list(ledger.assumptions),
        "disclaimers": _disclaimers(ledger),
    }


def _standing(ledger: Ledger) -> list[str]:
    """The standing caveats, that on floating point as the sessions' noise has it."""
    return [floating_point(ledger) if caveat is FLOATING_POINT else caveat for caveat in CAVEATS]


def floating_point(ledger: Ledger) -> str:
    """What is claimed against attacks on the floating-point form of the releases."""
    sessions = [session for session in ledger.sessions if session.state != "withdrawn"]
    found = [hardening(session.event) for session in sessions]
    hardened = [event for event in found if event is not None]
    if not hardened:
        return FLOATING_POINT
    sums = {event.sums for event in hardened}
    noise = " and ".join(NOISES[name] for name in sorted({event.noise for event in hardened}))
    words = f"The noise is hardened ({noise}): whole steps of a public grid, sampled with the exact law. "
    if sums & {"together", "capped"}:
        words += (
            "That is a weaker claim than it can be: records were computed together, and kernels let the companions of "
            "a record show in the last bits of its gradient. Attacks through that are out of scope; the method "
            "'loop' closes them. "
        )
    else:
        words += "Attacks on floating-point noise are closed. "
    open_ones = [session.id for session, event in zip(sessions, found, strict=True) if event is None]
    if open_ones:
        words += f"That does not cover {', '.join(open_ones)}: attacks on floating-point noise are out of scope there. "
    return words + "How long something takes is not covered."


def _disclaimers(ledger: Ledger) -> list[str]:
    """Claims made elsewhere for such sessions, and refuted."""
    said = (session.event.disclaimer for session in ledger.sessions if session.state != "withdrawn")
    return list(dict.fromkeys(text for text in said if text is not None))


def _main(ledger: Ledger) -> dict[str, Any]:
    """The session that trains: its public settings, from its event."""
    session = main_session(ledger)
    if session is None:
        names = "sampler sample_rate planned_queries queries_made noise_multiplier noise_std max_grad_norm"
        return dict.fromkeys(names.split())
    event, chosen = _innermost(session.event), isinstance(session.event, RepeatAndSelectEvent)
    query_mu = getattr(event, "query_mu", 0.0)  # sensitivity over noise_std
    return {
        "sampler": event.sampler,
        "sample_rate": _sample_rate(event),
        "planned_queries": session.planned_queries,
        "queries_made": session.queries_made,
        "noise_multiplier": 1 / query_mu if query_mu else None,
        # Of the best of several runs these two may be any run's; what they spend, all have in common.
        "noise_std": None if chosen else _single(getattr(event, "noise_std", None)),
        "max_grad_norm": None if chosen else _single(getattr(event, "max_contribution", None)),
    }


def main_session(ledger: Ledger) -> Session | None:
    """The first session that trains or is the best of several runs, not withdrawn; else the first one, if any."""
    sessions = [session for session in ledger.sessions if session.state != "withdrawn"]
    training = (session for session in sessions if session.purpose == "train" or _chooses_a_run(session))
    return next(training, sessions[0] if sessions else None)


def _chooses_a_run(session: Session) -> bool:
    return isinstance(session.event, RepeatAndSelectEvent)


def _record(ledger: Ledger) -> dict[str, Any]:
    verification = ledger.verify()
    return {
        "secure_randomness": all(session.registration.secure_randomness for session in ledger.sessions),
        "sessions": [_session(session) for session in ledger.sessions],
        "shares": [{"id": one.id, "epsilon": one.epsilon, "delta": one.delta} for one in ledger.shares],
        "max_epsilon": ledger.max_epsilon,
        "max_delta": ledger.max_delta,
        "ledger_sha256": ledger.head,
        "ledger_lines": ledger.anchor.count,
        "ledger_verified": verification.ok,
        "ledger_anchor": verification.anchor,
        "ledger_reason": verification.reason,
    }


def _session(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "purpose": session.purpose,
        "state": session.state,
        "event": session.event.describe(),
        "planned_queries": session.planned_queries,
        "queries_made": session.queries_made,
        "queries_spent": session.queries_spent,
        "part": None if session.part is None else session.part.to_dict(),
        "share": session.share,
    }


def _innermost(event: Event) -> Event:
    inner = getattr(event, "inner", None) or getattr(event, "main", None)
    return event if inner is None else _innermost(inner)


def _sample_rate(event: Event) -> float | None:
    rate = getattr(event, "sampling_probability", None)
    size, records = getattr(event, "batch_size", None), getattr(event, "num_records", None)
    return rate if rate is not None or not size or not records else size / records


def _single(value: Any) -> Any:
    """One block's number as a number, several blocks' as a list."""
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
