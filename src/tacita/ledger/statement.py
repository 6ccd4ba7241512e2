"""The privacy statement: what a ledger guarantees, in words that a privacy officer can sign, and in JSON.

Every number comes from the ledger; a statement cannot be made without one. The text is written by
:mod:`tacita.ledger.sections`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tacita import _validate
from tacita.accounting import attack_accuracy, curve_accuracy
from tacita.accounting.accountant import Bound
from tacita.accounting.events import Event, NoiseSettings
from tacita.accounting.events.sampled import SampledEvent
from tacita.accounting.sampling_laws import FixedSizeLaw
from tacita.ledger.hash_chain import Anchor, canonical
from tacita.ledger.ledger import Ledger
from tacita.ledger.sections import LEAVES, write_text
from tacita.ledger.session import Session
from tacita.ledger.verdict import RISK, is_large_delta, verdict

FLOATING_POINT = (
    "Attacks on the floating-point arithmetic of the noise are out of scope: computers keep finitely many digits of a "
    "number, and the last ones may tell more than exact noise would."
)
CAVEATS = (
    "Whoever holds the key file of a run, from which its noise was drawn, and also its releases can remove the noise: "
    "keep the file secret, and delete it at the end. Runs of tacita train, finetune, federate and tacita.fit do both "
    "themselves: the file lies in private/, which is removed. Deletion on solid-state disks is not claimed.",
    FLOATING_POINT,
    "Only the privacy unit is protected. If a unit is one row, somebody with several rows is protected less; facts "
    "that many units share are not protected at all.",
    "The guarantee covers what the sessions listed here released. It does not cover other uses of the same data, nor "
    "models that were trained or compared outside this ledger.",
)

WHOLE_CURVE = "the whole privacy curve"
PART_OF_CURVE = "epsilon and delta or a Rényi curve, because no more is known: the true number may be far less"

PROMISE = (
    "A condition is a promise about every data set that the run might have had, not about this run alone. That it was "
    "seen to hold during the run proves nothing, and whether it held is itself private: nothing may show it unless "
    "that is paid for from the same ledger."
)


def statement(
    ledger: Ledger,
    delta: float,
    *,
    purchases: Sequence[Any] = (),
    chosen_by_tacita: Sequence[str] = (),
    caveats: Sequence[str] = (),
    holdout_score: Any = None,
    num_units: int | None = None,
    **fields: Any,
) -> "Statement":
    """State what ``ledger`` guarantees at ``delta``, for people and for programs.

    Args:
        ledger: The ledger that all numbers come from.
        delta: In (0, 1), well below 1 / (number of units); never chosen for the caller.
        purchases: What else was bought from the data (bounds, categories, ...), as texts or JSON values.
        chosen_by_tacita: Settings that a front end chose by a public rule.
        caveats: Caveats beside the standing ones.
        holdout_score: A held-out score that was bought privately or computed outside the guarantee, as JSON.
        num_units: The number of privacy units, if it is public. The statement then says so if ``delta`` is not below
            one over it. A ledger itself knows that number only of fixed-size batches and of splits by position.
        fields: Further JSON values, printed under the names that they are given. ``files`` is SHA-256 by file name, of
            the files that the ledger will be sealed over (:func:`tacita.seal_run`). ``run``, ``about``, ``rows``,
            ``columns``, ``files_policy``, ``not_anonymised`` and ``dataset`` have places of their own in the text, in
            the form that ``tacita train`` gives them.

    Raises:
        TypeError: ``ledger`` is not a ledger.
        ValueError: ``delta`` is out of range; or a further field is not JSON, or has a name of the statement's own.

    Example:
        >>> from tacita.accounting import FullBatchLaw, GaussianSumEvent
        >>> ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row = one patient")
        >>> event = GaussianSumEvent(
        ...     relation="add_or_remove_one", sampling=FullBatchLaw(), max_contribution=(1.0,), noise_std=(20.0,))
        >>> session = ledger.register(event, planned_queries=10)
        >>> words = statement(ledger, delta=1e-6)
        >>> round(words.to_json()["epsilon"], 2), words.to_json()["epsilon_spent"]
        (0.65, 0.0)
    """
    said = {
        "purchases": list(purchases),
        "chosen_by_tacita": list(chosen_by_tacita),
        "caveats": list(caveats),
        "holdout_score": holdout_score,
        "num_units": num_units,
    }
    return Statement(ledger, delta, said, fields)


class Statement:
    """What a ledger guaranteed when this statement was made; see :func:`statement`.

    In the JSON, ``epsilon`` is that of the plan. It is ``null`` if ``non_private`` is true (a session without noise),
    or if the guarantee rests on ``conditions``, which nobody enforces; then ``conditional_epsilon`` holds the number
    under them. The same goes for ``epsilon_spent``. ``verdict`` is "private", "private under conditions", "not private"
    (no noise, or noise from a seed) or "ledger not intact". It is "private model, exact score" (or "private model under
    conditions, exact score") if ``holdout_score`` is outside the guarantee, by ``"private": false``, and its rows were
    not declared public, by ``"of_rows": "public"``. ``attack_accuracy`` is the largest chance that an attacker who is
    undecided before is right about one unit (:func:`tacita.accounting.curve_accuracy`); such a score is not among what
    the attacker sees. ``attack_accuracy_from`` says what it was computed from. ``gdp_mu`` is the least mu whose
    Gaussian query has at every epsilon up to the stated one no smaller delta than the plan (above that epsilon, the
    plan's delta is at most ``delta``); ``null`` where none is known. All three are ``null`` unless the verdict begins
    with "private". ``num_units`` is the public number of units, ``null`` if none is known; the verdict weighs ``delta``
    by it. The fields of a single session (sampler, noise, ...) are those of the main one (:func:`main_session`).
    Infinite settings are the text "inf".
    """

    def __init__(self, ledger: Ledger, delta: float, said: Mapping[str, Any], fields: Mapping[str, Any]):
        if not isinstance(ledger, Ledger):
            raise TypeError(f"a statement is made from a Ledger, got {type(ledger).__name__}.")
        _validate.delta("delta", delta)
        self._anchor = ledger.before_seal._replace(name="statement")
        num_units = _public_number(ledger, said["num_units"])
        standing = [
            *(floating_point(ledger) if caveat is FLOATING_POINT else caveat for caveat in CAVEATS),
            *_on_large_delta(delta, num_units),
            *([PROMISE] if ledger.conditions else []),
        ]
        said = {**said, "caveats": [*standing, *said["caveats"]], "num_units": num_units}
        self._fields = {**_guarantee(ledger, delta), **_main(ledger), **_record(ledger), **said}
        weighed = verdict({**fields, **self._fields})
        self._fields |= {"verdict": weighed.word, "verdict_warnings": list(weighed.warnings)}
        if not weighed.guaranteed:
            self._fields |= dict.fromkeys(RISK)
        if LEAVES in fields:
            from tacita.ledger.run_sections import files_policy

            fields = {**fields, LEAVES: files_policy(fields[LEAVES], weighed)}
        for name, value in fields.items():
            if name in self._fields:
                raise ValueError(f"{name!r} is a field that the statement takes from the ledger.")
            self._fields[name] = value
        try:
            canonical(self._fields)
        except (TypeError, ValueError) as error:
            raise ValueError(f"what goes into a statement must be plain JSON values: {error}.") from None
        self._extra = tuple(fields)

    @property
    def text(self) -> str:
        """The statement in plain words, in lines of at most 100 columns where no single word is longer."""
        return write_text(self._fields, self._extra)

    @property
    def anchor(self) -> Anchor:
        """How far the ledger had come; hand it to ``ledger.verify(anchor)`` later."""
        return self._anchor

    def to_json(self) -> dict[str, Any]:
        """Return the statement as plain JSON values."""
        return json.loads(self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the statement as a JSON document."""
        return statement_bytes(_plain(self._fields))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Statement(epsilon={self._fields['epsilon']}, delta={self._fields['delta']})"


def statement_bytes(fields: Mapping[str, Any]) -> bytes:
    """Return a statement's fields as the bytes of its file. Hashes depend on this form.

    Example:
        >>> statement_bytes({"epsilon": 1.0})
        b'{\\n  "epsilon": 1.0\\n}\\n'
    """
    return json.dumps(fields, indent=2, allow_nan=False).encode() + b"\n"


# --- the fields ----------------------------------------------------------------------------------------------------


def _guarantee(ledger: Ledger, delta: float) -> dict[str, Any]:
    bound, spent = ledger.conditional_bound(delta), ledger.spent_bound(delta)
    conditional = bool(ledger.conditions)
    failure = math.fsum(spend.guarantee.coupling_gap for spend in ledger.spends())
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
        **_risk(ledger, bound),
        "assumptions": list(ledger.assumptions),
    }


def _risk(ledger: Ledger, bound: Bound) -> dict[str, Any]:
    """Return what the whole privacy curve of the plan says of an attacker; no more than its one point says."""
    if not math.isfinite(bound.epsilon):
        return dict.fromkeys(RISK)
    curve = ledger.conditional_curve()
    accuracy = min(attack_accuracy(bound.epsilon, bound.delta), curve_accuracy(curve.deltas))
    return {
        "attack_accuracy": accuracy,
        "attack_accuracy_from": WHOLE_CURVE if curve.whole else PART_OF_CURVE,
        "gdp_mu": curve.gaussian_mu(bound.epsilon),
    }


def _public_number(ledger: Ledger, num_units: int | None) -> int | None:
    """Return the number of units, as far as it is public: the caller's, or the ledger's if that is larger.

    Of itself a ledger knows that there are as many records as a session draws from, or as a split counts up to.
    """
    kept = [session for session in ledger.sessions if session.state != "withdrawn"]
    laws = [event.sampling for event in (_innermost(one.event) for one in kept) if isinstance(event, SampledEvent)]
    known = [] if num_units is None else [_validate.count("num_units", num_units)]
    known += [law.num_records for law in laws if isinstance(law, FixedSizeLaw)]
    known += [one.part.stop for one in kept if one.part is not None and one.part.stop is not None]
    return max(known, default=None)


def _on_large_delta(delta: float, num_units: int | None) -> list[str]:
    """Say what ``delta`` allows where it is too large for the public number of units, or for any that is usual."""
    if not is_large_delta({"delta": delta, "num_units": num_units}):
        return []
    above = num_units is not None and delta * num_units >= 1
    known = f", which is not below 1 / {num_units:,}, one over the number of records" if above else ""
    return [
        f"Delta is {delta:g}{known}: a method that publishes every record with that probability would meet this "
        "guarantee. Delta should be far below 1 / (number of units)."
    ]


def floating_point(ledger: Ledger) -> str:
    """Say what is claimed against attacks on the floating-point form of the releases."""
    events = {session.id: session.event for session in ledger.sessions if session.state != "withdrawn"}
    if not any(event.hardened for event in events.values()):
        return FLOATING_POINT
    from tacita.accounting.events.hardened import attacks_closed  # which is loaded with such an event

    return attacks_closed(events)


def _main(ledger: Ledger) -> dict[str, Any]:
    """Return the public settings of the main session, from its event."""
    session = main_session(ledger)
    if session is None:
        names = "sampler sample_rate planned_queries queries_made noise_multiplier noise_std max_grad_norm"
        return dict.fromkeys(names.split())
    event, chosen = _innermost(session.event), session.event.selects
    noise = _noise(session.event)
    return {
        "sampler": event.sampler,
        "sample_rate": event.sampling.query_chance if isinstance(event, SampledEvent) else None,
        "planned_queries": session.planned_queries,
        "queries_made": session.queries_made,
        "noise_multiplier": 1 / noise.query_mu if noise.query_mu else None,
        # Where the best of several runs is released, these two may differ between runs; what a run spends does not.
        "noise_std": None if chosen else _single(noise.noise_std),
        "max_grad_norm": None if chosen else _single(noise.max_contribution),
    }


def main_session(ledger: Ledger) -> Session | None:
    """Return the first session that trains or selects among runs, else the first one; withdrawn ones do not count."""
    sessions = [session for session in ledger.sessions if session.state != "withdrawn"]
    training = (session for session in sessions if session.purpose == "train" or session.event.selects)
    return next(training, sessions[0] if sessions else None)


def _record(ledger: Ledger) -> dict[str, Any]:
    verification = ledger.verify()
    return {
        "secure_randomness": all(session.registration.secure_randomness for session in ledger.sessions),
        "sessions": [_session(session) for session in ledger.sessions],
        "shares": [{"id": one.id, "epsilon": one.epsilon, "delta": one.delta} for one in ledger.shares],
        "max_epsilon": ledger.max_epsilon,
        "max_delta": ledger.max_delta,
        "ledger_sha256": ledger.before_seal.head,
        "ledger_lines": ledger.before_seal.count,
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
    """Return the main event inside all wrappers."""
    return _innermost(event.components[0]) if event.components else event


def _noise(event: Event) -> NoiseSettings:
    """Return the settings of the noise of the main event, from the outermost wrapper that states some."""
    inner = _noise(event.components[0]) if event.components else NoiseSettings(())
    return event.noise_settings or inner


def _single(values: tuple[float, ...]) -> Any:
    """Return the number of a single block as such, those of several blocks as a tuple, ``None`` if there are none."""
    return values[0] if len(values) == 1 else values or None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
