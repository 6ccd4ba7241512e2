"""Audit a training in one run: train once with canaries, score them by the releases, bound epsilon from below.

The training is the user's own, with their oracle and optimizer. It spends a session of its own, and its model must not
be exported.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita import _validate
from tacita.accounting import NeighboringRelation, Spend, epsilon
from tacita.gradients.functional import LossFn
from tacita.ledger import Ledger, Session
from tacita.oracles import GradientOracle, Records, trainable
from tacita.random import Randomness
from tacita.testing.membership import membership
from tacita.testing.one_run.attacks import Attack, FinalLoss, GradientMatch, OwnParameter
from tacita.testing.one_run.bound import FALSE_ALARM, guess_numbers, one_run_bound, strict_delta
from tacita.testing.one_run.canaries import insert, plant
from tacita.testing.one_run.report import OneRunAudit

MakeOracle = Callable[[nn.Module, LossFn, Records], GradientOracle]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
LEAST_CANARIES = 50  # with fewer, all or none of them might be in by chance


def audit_one_run(
    model: nn.Module,
    loss_fn: LossFn,
    dataset: Any,
    canaries: Any = 1000,
    *,
    make_oracle: MakeOracle,
    optimizer: MakeOptimizer,
    delta: float,
    neighboring_relation: NeighboringRelation = "add_or_remove_one",
    substitutes: Any = None,
    black_box: bool = False,
    confidence: float = 0.95,
    guesses: int | None = None,
    randomness: Randomness | None = None,
) -> OneRunAudit:
    """Train once with canaries in the data, and bound the epsilon of the releases from below.

    Guarantee: if the oracle's session is (epsilon, delta)-private, the lower bound exceeds epsilon with probability at
    most 1 - ``confidence``. A true claim is refuted with probability at most 1e-6: the verdict has a bound of its own,
    at that false alarm and a far smaller delta, which is compared with the session's claim there. The result is a
    function of the oracle's releases and of coins that belong to no record, so it costs the records what the ledger
    states for the oracle's session, and nothing more. The verdict is about this training. For a model trained earlier
    it shows only what holds for all trainings with these settings.

    Args:
        model: Untrained; it is trained in place. Throw it away afterwards: it has learnt the canaries.
        loss_fn: ``(model, batch) -> losses``.
        dataset: As an oracle takes it, or :class:`~tacita.Records`.
        canaries: A number, for so many canaries with a parameter of their own each (the worst case of the accounting).
            Or records of the data's form, to measure how much such rows reveal, which is often far less.
        make_oracle: ``(model, loss_fn, records) -> oracle``, on a new ledger, with the settings of the training to
            audit. Pass ``records`` where the data set goes. With planted canaries, wrap a ``collate_fn`` of your own in
            :func:`~tacita.testing.planted_collate`.
        optimizer: ``parameters -> torch.optim.Optimizer``.
        delta: The delta at which epsilon is claimed and measured.
        neighboring_relation: The relation of the ledger that ``make_oracle`` makes.
        substitutes: For rows, under replace_one and zero_out_one: see :func:`~tacita.testing.one_run.canaries.insert`.
        black_box: For rows: score by the final model's loss instead of all releases.
        confidence: Of the bound, in (0, 1).
        guesses: Number of canaries to guess; with ``None``, six numbers are tried.
        randomness: Randomness of the coins; only tests pass it.

    Raises:
        ValueError: A setting is wrong; the message names it and the way out.

    Example:
        >>> import tacita
        >>> def make_oracle(model, loss_fn, records):
        ...     return tacita.ClippedGradientOracle(
        ...         model, loss_fn, records,
        ...         ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        ...         sampler=tacita.PoissonSampler(sample_rate=0.1, num_records=500),
        ...         clipper=tacita.FlatClipper(max_grad_norm=1.0),
        ...         mechanism=tacita.GaussianMechanism(noise_multiplier=0.5), planned_queries=50)
        >>> found = audit_one_run(
        ...     nn.Linear(2, 1), lambda model, batch: (model(batch[0]) - batch[1]).square().sum(1),
        ...     (torch.randn(500, 2), torch.zeros(500, 1)), 200, make_oracle=make_oracle,
        ...     optimizer=lambda params: torch.optim.SGD(params, lr=0.1), delta=1e-5)
        >>> found.verdict, found.bound.epsilon < found.epsilon_claimed
        ('consistent', True)
    """
    relation, coins = neighboring_relation, randomness or Randomness.system()
    if not isinstance(canaries, int):
        trial = insert(model, loss_fn, dataset, canaries, relation=relation, randomness=coins, substitutes=substitutes)
    elif substitutes is None and not black_box:
        trial = plant(model, loss_fn, dataset, canaries, relation=relation, randomness=coins)
    else:
        raise ValueError("substitutes and black_box belong to canaries that are rows, got a number of canaries.")
    check_numbers(len(trial.included), delta=delta, confidence=confidence, guesses=guesses)
    oracle = make_oracle(trial.model, trial.loss_fn, trial.records)
    _check_relation(oracle, relation)
    attack = _attack_on(canaries, oracle, trial.loss_fn, substitutes, black_box=black_box)
    train_with_canaries(oracle, optimizer(trial.model.parameters()), attack)
    return judged(
        attack.scores(trainable(trial.model)), trial.included, oracle.session, oracle.ledger,
        adversary=attack.words, delta=delta, confidence=confidence, guesses=guesses,
    )  # fmt: skip


def _check_relation(oracle: GradientOracle, expected: NeighboringRelation) -> None:
    """Raise ``ValueError`` unless the oracle's ledger has the relation by which the canaries were put in."""
    if oracle.ledger.neighboring_relation != expected:
        raise ValueError(
            f"neighboring_relation must be the ledger's, {oracle.ledger.neighboring_relation}, got {expected!r}."
        )


def _attack_on(canaries: Any, oracle: GradientOracle, loss_fn: LossFn, substitutes: Any, *, black_box: bool) -> Attack:
    """Return the attack for the kind of canary: a number of planted ones, or rows."""
    if isinstance(canaries, int):
        return OwnParameter(oracle)
    return (FinalLoss if black_box else GradientMatch)(oracle, loss_fn, canaries, substitutes)


def check_numbers(canaries: int, *, delta: float, confidence: float, guesses: int | None) -> None:
    """Raise ``ValueError`` if a number is out of range, before anything is spent."""
    if _validate.count("canaries", canaries) < LEAST_CANARIES:
        raise ValueError(f"canaries must be >= {LEAST_CANARIES}, got {canaries}.")
    _validate.delta("delta", delta)
    _validate.delta("confidence", confidence)
    guess_numbers(canaries, guesses)


def train_with_canaries(
    oracle: GradientOracle,
    optimizer: torch.optim.Optimizer,
    attack: Attack,
    on_step: Callable[[dict[str, Tensor]], Any] = lambda params: None,
) -> None:
    """Train to the end of the oracle's plan; show every release to the attack.

    Args:
        oracle: An oracle whose source has a model.
        optimizer: The optimizer of the model's parameters.
        attack: Sees every release together with the point at which it was asked.
        on_step: Called with the parameters after each step.
    """
    model = oracle.source.model
    assert model is not None  # backward() raises without one
    params = trainable(model)
    model.train()
    while oracle.remaining_queries:
        release = oracle.backward()
        attack.see({name: value.detach() for name, value in params.items()}, release)
        optimizer.step()
        on_step(params)
    if not oracle.session.closed:
        oracle.session.close()


def judged(
    scores: np.ndarray,
    included: np.ndarray,
    session: Session,
    ledger: Ledger,
    *,
    adversary: str,
    delta: float,
    confidence: float,
    guesses: int | None,
) -> OneRunAudit:
    """Compare the scores with the coins, and the bound with the claim of the session that was audited."""
    spends = [Spend(session.event, session.planned_queries)]
    small = strict_delta(len(scores), delta)
    return OneRunAudit(
        epsilon_claimed=epsilon(spends, delta).epsilon,
        bound=one_run_bound(scores, included, delta=delta, confidence=confidence, guesses=guesses),
        strict=one_run_bound(scores, included, delta=small, confidence=1 - FALSE_ALARM, guesses=guesses),
        strict_claim=epsilon(spends, small).epsilon,
        membership=membership(scores, included, confidence=confidence),
        adversary=adversary,
        relation=ledger.neighboring_relation,
        ledger_epsilon=ledger.epsilon(delta),
        scores=scores,
        included=included,
    )
