"""The verdict of a statement: the one place that weighs what is guaranteed, for programs, for people and for badges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacita._counted import counted
from tacita._validate import LARGE_DELTA

NEXT_TO_NOTHING = 20.0  # from this epsilon on, the statement calls its promise by this name
PROMISES_NOTHING = "epsilon promises next to nothing"
EXACT = ", exact score"  # how the word ends where a score is outside of the guarantee
NOTHING_LEARNED = "NOTHING LEARNED"  # how the headline of such a model begins
TO_SIGN = ("responsible", "contact", "purpose")  # of the field ``about``: who answers, whom to ask, and what for
RISK = ("attack_accuracy", "attack_accuracy_from", "gdp_mu")  # follow from the whole privacy curve


@dataclass(frozen=True)
class Verdict:
    """What a statement comes to.

    Attributes:
        word: "private", "private under conditions", "private model, exact score", "private model under conditions,
            exact score", "not private", or "ledger not intact"; of a run in a folder also "unfinished", "changed"
            (since it was finished), or "refuted" (by an audit that lies beside it).
        warnings: What stands before "private" in every view, however short.
        epsilon: That of the plan, under the conditions if there are any; ``None`` if it is infinite.
        missing: What has to be said before somebody can sign, and is not: names of ``TO_SIGN``.
    """

    word: str
    warnings: Sequence[str] = ()
    epsilon: float | None = None
    missing: Sequence[str] = ()

    @property
    def guaranteed(self) -> bool:
        """Whether there is a guarantee, if only under conditions."""
        return self.word.startswith("private")

    @property
    def verified(self) -> bool:
        """Whether anything that the files say is known to be what was sealed."""
        return self.word not in ("changed", "ledger not intact")

    @property
    def exact(self) -> bool:
        """Whether the guarantee is that of the model, and a score without noise is outside of it."""
        return self.guaranteed and self.word.endswith(EXACT)

    @property
    def good(self) -> bool:
        """Whether a badge may be green: private, and nothing to say beside it."""
        return self.word == "private" and not self.warnings

    def in_words(self, word: str = "") -> str:
        """Return the verdict for people, with its warnings first; ``word`` says it otherwise than :attr:`word`."""
        said = word or self.word
        return f"CAUTION: {' and '.join(self.warnings)}; {said[0].lower()}{said[1:]}" if self.warnings else said


def verdict(
    fields: Mapping[str, Any],
    *,
    changed: bool = False,
    refuted: bool = False,
    secrets: bool = False,
    forged: bool = False,
    other_runs: int = 0,
) -> Verdict:
    """Weigh the fields of a statement: the ledger, the noise, epsilon, delta, conditions, score, and what is outside.

    No view decides for itself what to leave out: warnings, signature lines and files that may leave follow from this.

    Args:
        fields: The fields.
        changed: Whether something was changed since the run was finished.
        refuted: Whether an audit measured more than is claimed.
        secrets: Whether the key of the noise, or another private file, lies beside the run.
        forged: Whether a signature beside the run does not hold.
        other_runs: How many other runs on the same data are listed by now; those of the fields count, too.

    Example:
        >>> fields = {"epsilon": 500.0, "delta": 1e-6, "sessions": [{}], "ledger_verified": True}
        >>> fields["secure_randomness"] = True  # no seed
        >>> verdict(fields).in_words(), verdict(fields).good
        ('CAUTION: epsilon promises next to nothing; private', False)
        >>> verdict({**fields, "epsilon": 1.0}).good, verdict({**fields, "epsilon": 1.0, "delta": 0.1}).in_words()
        (True, 'CAUTION: delta is so large that whole records may be published; private')
        >>> verdict({**fields, "epsilon": 1.0, "delta": 1e-3, "num_units": 1000}).good
        False
    """
    conditions, exact = bool(fields.get("conditions")), exact_score(fields)
    epsilon = _number(fields.get("conditional_epsilon" if conditions else "epsilon"))
    held = fields.get("secure_randomness") is True and (fields.get("sessions") or fields.get("shares"))
    against = {
        "changed": changed,
        "refuted": refuted,
        "ledger not intact": not fields.get("ledger_verified"),
        "not private": not held or epsilon is None,
    }
    if found := [word for word, holds in against.items() if holds]:
        return Verdict(found[0], epsilon=epsilon)
    word = "private" + " model" * exact + " under conditions" * conditions + EXACT * exact
    chosen, stated = (_number(one) for one in (fields.get("chosen_among"), _part(fields, "dataset", "other_runs")))
    others = max(other_runs, stated or 0)
    warnings = {
        PROMISES_NOTHING: epsilon is not None and epsilon >= NEXT_TO_NOTHING,
        "delta is so large that whole records may be published": is_large_delta(fields),
        f"chosen among {chosen or 0:.0f} runs by their results, which costs more than this epsilon": chosen is not None,
        f"{counted(others, 'other run')} on the same data cost in addition": others > 0,
        "it was edited, and no score bought for it since": bool(fields.get("edits")),
        "nothing was learned": (constant := str(fields.get("headline") or "").startswith(NOTHING_LEARNED)),
        "its key or a checkpoint is still in private/": secrets,
        "a signature does not hold": forged,
        "its score may be that of a constant guess": not constant and _like_a_guess(fields.get("holdout_score")),
    }
    return Verdict(word, tuple(words for words, holds in warnings.items() if holds), epsilon, _missing(fields))


def _like_a_guess(score: Any) -> bool:
    from tacita.ledger.constant_guess import like_a_guess

    return like_a_guess(score)


def _missing(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of what a statement must say before somebody can sign it, and does not."""
    said = {name: _part(fields, "about", name) for name in TO_SIGN}
    return tuple(name for name, words in said.items() if not (isinstance(words, str) and words.strip()))


def _part(fields: Mapping[str, Any], name: str, part: str) -> Any:
    value = fields.get(name)
    return value.get(part) if isinstance(value, Mapping) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def is_large_delta(fields: Mapping[str, Any]) -> bool:
    """Return whether a method that publishes each unit with probability ``delta`` would be expected to publish one.

    Few units may be known of and many be there: from ``LARGE_DELTA`` on, every delta is large.
    """
    delta, rows = fields.get("delta"), fields.get("rows")
    counts = (fields.get("num_units"), rows.get("value") if isinstance(rows, Mapping) else None)
    known = max([count for count in counts if isinstance(count, int | float)], default=0)
    return not isinstance(delta, int | float) or delta >= LARGE_DELTA or delta * known >= 1


def exact_score(fields: Mapping[str, Any]) -> bool:
    """Return whether the held-out score was computed without noise, on rows that nobody declared public.

    Example:
        >>> exact_score({"holdout_score": {"value": 0.8, "private": False, "of_rows": "private"}})
        True
        >>> exact_score({"holdout_score": {"value": 0.8, "private": False, "of_rows": "public"}})
        False
    """
    score = fields.get("holdout_score")
    return isinstance(score, Mapping) and score.get("private") is False and score.get("of_rows") != "public"
