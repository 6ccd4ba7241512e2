"""``tacita epsilon`` and ``tacita noise``: from noise to epsilon for noisy, clipped gradients, and back.

Both say under which neighbouring relation they count, and what the same noise means under the others.
"""

import json as json_module
import math
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tacita import _validate
from tacita._choices import NeighboringRelation
from tacita._whole_numbers import WHOLE

if TYPE_CHECKING:
    from tacita.accounting import GaussianSumEvent

PLAIN = Parameter(negative=())
WIDTH = 16  # of the table's first column
NEIGHBOURS: dict[NeighboringRelation, str] = {
    "add_or_remove_one": "one record is there or not",
    "replace_one": "one record is exchanged for any other",
    "zero_out_one": "the contribution of one record is there or zero",
}


def epsilon_of(
    *,
    sample_rate: float,
    steps: Annotated[int, WHOLE],
    noise_multiplier: float,
    delta: float,
    neighboring_relation: NeighboringRelation = "add_or_remove_one",
    json: Annotated[bool, PLAIN] = False,
) -> int:
    """Compute epsilon of DP-SGD from its noise: an upper bound, for Poisson sampling and clipped gradients.

    Example: tacita epsilon --sample-rate 0.01 --steps 1000 --noise-multiplier 1.1 --delta 1e-5

    Args:
        sample_rate: Chance of each record to be in a step, in (0, 1]; 1 is every record in every step.
        steps: Number of steps.
        noise_multiplier: Standard deviation of the noise over the sensitivity of the sum of gradients, which is the
            clipping threshold C, and 2 C under replace_one.
        delta: Delta of all steps together; well below 1 / (number of records).
        neighboring_relation: How neighbouring data sets differ.
        json: Print JSON instead of the table.
    """
    from tacita.accounting import check_relation

    _validate.positive("noise_multiplier", noise_multiplier)
    relation = check_relation(neighboring_relation)
    _show(noise_multiplier, relation, sample_rate=sample_rate, steps=steps, delta=delta, as_json=json)
    return 0


def noise_for(
    *,
    sample_rate: float,
    steps: Annotated[int, WHOLE],
    epsilon: float,
    delta: float,
    neighboring_relation: NeighboringRelation = "add_or_remove_one",
    json: Annotated[bool, PLAIN] = False,
) -> int:
    """Compute the noise that DP-SGD needs for an epsilon: the least that is enough, within 0.1 % of epsilon.

    Example: tacita noise --sample-rate 0.01 --steps 1000 --epsilon 2 --delta 1e-5

    Args:
        sample_rate: Chance of each record to be in a step, in (0, 1]; 1 is every record in every step.
        steps: Number of steps.
        epsilon: Epsilon of all steps together.
        delta: Delta of all steps together; well below 1 / (number of records).
        neighboring_relation: How neighbouring data sets differ.
        json: Print JSON instead of the table.
    """
    from tacita.accounting import calibrate, check_relation, moved
    from tacita.ledger.text_lines import rounded_up

    relation = check_relation(neighboring_relation)
    _validate.positive("epsilon", epsilon)
    _check(sample_rate, steps, delta)
    found = calibrate(
        lambda multiplier: _event(relation, sample_rate, multiplier * moved(relation)),
        relation,
        epsilon,
        delta,
        queries=steps,
    )
    enough = float(rounded_up(found, 6))  # a little more noise is enough, too
    _show(enough, relation, sample_rate=sample_rate, steps=steps, delta=delta, as_json=json)
    return 0


def _check(sample_rate: float, steps: int, delta: float) -> None:
    _validate.probability("sample_rate", sample_rate)
    _validate.count("steps", steps)
    _validate.delta("delta", delta)


def _event(relation: NeighboringRelation, sample_rate: float, noise_std: float) -> "GaussianSumEvent":
    """Return the event of a session of sums whose contributions have norm at most 1."""
    from tacita.accounting import FullBatchLaw, GaussianSumEvent, PoissonLaw

    law = FullBatchLaw() if sample_rate == 1 else PoissonLaw(sample_rate)
    return GaussianSumEvent(relation=relation, sampling=law, max_contribution=(1.0,), noise_std=(noise_std,))


def _show(
    noise_multiplier: float,
    relation: NeighboringRelation,
    *,
    sample_rate: float,
    steps: int,
    delta: float,
    as_json: bool,
) -> None:
    from tacita.accounting import RELATIONS, Spend, attack_accuracy, curve_accuracy, epsilon, moved, privacy_curve

    _check(sample_rate, steps, delta)
    noise_std = noise_multiplier * moved(relation)
    bounds = {one: epsilon([Spend(_event(one, sample_rate, noise_std), steps)], delta) for one in RELATIONS}
    own = bounds[relation]
    curve = privacy_curve([Spend(_event(relation, sample_rate, noise_std), steps)])
    record = {
        "epsilon": _finite(own.epsilon),
        "delta": delta,
        "neighboring_relation": relation,
        "noise_multiplier": noise_multiplier,
        "noise_std_over_max_grad_norm": noise_std,
        "sample_rate": sample_rate,
        "steps": steps,
        "attack_accuracy": min(attack_accuracy(own.epsilon, delta), curve_accuracy(curve.deltas)),
        "gdp_mu": curve.gaussian_mu(own.epsilon),
        "accountant": own.accountant,
        "same_noise_under": {other: _finite(bound.epsilon) for other, bound in bounds.items() if other != relation},
    }
    print(json_module.dumps(record, indent=2, allow_nan=False) if as_json else _table(record))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _bound(value: float | None) -> str:
    from tacita.ledger.text_lines import rounded_up

    return "= infinity" if value is None else f"<= {rounded_up(value)}"


def _noise(value: float) -> str:
    """Return six digits: as they were given, if that is all there is, or rounded up, so that they are enough noise."""
    from tacita.ledger.text_lines import rounded_up

    short = f"{value:.6g}"
    return short if float(short) == value else rounded_up(value, 6)


def _table(record: dict[str, Any]) -> str:
    from tacita.accounting import moved
    from tacita.ledger.text_lines import attacker_in_words, rounded_up

    relation = record["neighboring_relation"]
    sensitivity = "2 C" if moved(relation) == 2 else "C"
    rows = {
        "epsilon": f"{_bound(record['epsilon'])} at delta {record['delta']:g}",
        "relation": f"{relation}: {NEIGHBOURS[relation]}",
        "noise multiplier": f"{_noise(record['noise_multiplier'])} x sensitivity {sensitivity}, a noise_std of "
        f"{_noise(record['noise_std_over_max_grad_norm'])} C (C: clipping threshold of one record)",
        "steps": f"{record['steps']:,}, each with a sample rate of {record['sample_rate']:g} (Poisson sampling)",
        **(
            {}
            if record["gdp_mu"] is None
            else {
                "mu": f"<= {rounded_up(record['gdp_mu'])} (the Gaussian curve of this mu "
                "has no smaller delta at any epsilon up to the one above)"
            }
        ),
        "risk": f"{attacker_in_words(relation, record['attack_accuracy'])} afterwards, having seen everything that "
        "was released",
        "accountant": f"{record['accountant']}, an upper bound",
    }
    lines = [f"{name:<{WIDTH}}  {words}" for name, words in rows.items()]
    lines += ["", "The same noise_std under the other relations:"]
    for other, value in record["same_noise_under"].items():
        lines.append(f"{'':<{WIDTH}}  epsilon {_bound(value)} under {other}: {NEIGHBOURS[other]}")
    return "\n".join(lines)
