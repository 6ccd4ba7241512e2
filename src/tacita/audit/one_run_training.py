"""Audit a training in one run: train once with canaries, score them by the releases, bound epsilon from below.

Place: canaries, attack, one_run -> [audit.one_run_training] -> pipeline, the user. The training is the user's own: his
oracle on the records handed to him, his optimizer. It spends a session of its own; its model is not to be exported.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from tacita import _validate
from tacita.accounting import NeighboringRelation, Spend, epsilon
from tacita.audit.membership import membership
from tacita.audit.one_run import FALSE_ALARM, guess_numbers, one_run_bound, strict_delta
from tacita.audit.one_run_attack import Attack, FinalLoss, GradientMatch, OwnParameter
from tacita.audit.one_run_canaries import Trial, insert, plant
from tacita.audit.one_run_report import OneRunAudit
from tacita.gradients.functional import LossFn
from tacita.oracles import GradientOracle, Records, trainable
from tacita.random import Randomness

MakeOracle = Callable[[nn.Module, LossFn, Records], GradientOracle]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
LEAST_CANARIES = 50  # of fewer, chance might take all or none


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
    """Train once with canaries in the data, and bound from below the epsilon of what was released.

    Guarantee: if the oracle's session is (epsilon, delta)-private, the lower bound exceeds epsilon with a chance of at
    most 1 - ``confidence``. A true claim is refuted with a chance of at most 1e-6: the verdict has a bound of its own,
    held at that and at a far smaller delta, against the session's claim there. What the audit tells is a function of
    the oracle's releases and of coins that are no record's: it costs the records what the ledger says of the oracle's
    session, and nothing more. The verdict is on this training; of a model that was trained before it says what holds
    for all trainings with these settings.

    Args:
        model: Untrained; trained in place. Throw it away: it knows the canaries.
        loss_fn: ``(model, batch) -> losses``.
        dataset: As an oracle takes it, or :class:`~tacita.Records`.
        canaries: A number: so many canaries with a parameter of their own each, the worst case of the accounting. Or
            records of the data's form: what such rows give away, which is often far less.
        make_oracle: ``(model, loss_fn, records) -> oracle``, on a new ledger, with the settings of the training that is
            to be audited. ``records`` go where the data set goes. With a ``collate_fn`` of your own and planted
            canaries, wrap it in :func:`~tacita.audit.planted_collate`.
        optimizer: ``parameters -> torch.optim.Optimizer``.
        delta: At which epsilon is claimed and measured.
        neighboring_relation: That of the ledger which ``make_oracle`` makes.
        substitutes: For rows, under replace_one and zero_out_one: see :func:`~tacita.audit.one_run_canaries.insert`.
        black_box: For rows: score by the final model's loss, in place of all releases.
        confidence: Of the bound, in (0, 1).
        guesses: How many canaries are guessed; six numbers are tried if ``None``.
        randomness: Only tests hand it in: the coins.

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
    coins = randomness or Randomness.system()
    planted = isinstance(canaries, int)
    if planted and (substitutes is not None or black_box):
        raise ValueError("substitutes and black_box belong to canaries that are rows, got a number of canaries.")
    if planted:
        trial = plant(model, loss_fn, dataset, canaries, relation=neighboring_relation, randomness=coins)
    else:
        trial = insert(
            model,
            loss_fn,
            dataset,
            canaries,
            relation=neighboring_relation,
            randomness=coins,
            substitutes=substitutes,
        )
    check_numbers(len(trial.included), delta=delta, confidence=confidence, guesses=guesses)
    oracle = make_oracle(trial.model, trial.loss_fn, trial.records)
    if oracle.ledger.neighboring_relation != neighboring_relation:
        raise ValueError(
            f"neighboring_relation must be the ledger's, {oracle.ledger.neighboring_relation}, got "
            f"{neighboring_relation!r}."
        )
    if planted:
        attack: Attack = OwnParameter(oracle)
    else:
        attack = (FinalLoss if black_box else GradientMatch)(oracle, trial.loss_fn, canaries, substitutes)
    train_with_canaries(oracle, optimizer(trial.model.parameters()), attack)
    return judged(trial, oracle, attack, delta=delta, confidence=confidence, guesses=guesses)


def check_numbers(canaries: int, *, delta: float, confidence: float, guesses: int | None) -> None:
    """Raise ``ValueError`` before anything is spent."""
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
    """Use up the oracle's plan: query, let the attack see the release, step.

    Args:
        oracle: Of a source with a model.
        optimizer: Of the model's parameters.
        attack: Sees every release at the point where it was asked.
        on_step: Called with the parameters after each step.
    """
    model: Any = oracle.source.model  # type: ignore[attr-defined]
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
    trial: Trial,
    oracle: GradientOracle,
    attack: Attack,
    *,
    delta: float,
    confidence: float,
    guesses: int | None,
) -> OneRunAudit:
    """Scores against coins, and the bound against the claim of the oracle's own session."""
    scores = attack.scores(trainable(trial.model))
    spends = [Spend(oracle.session.event, oracle.session.planned_queries)]
    small = strict_delta(len(scores), delta)
    return OneRunAudit(
        epsilon_claimed=epsilon(spends, delta).epsilon,
        bound=one_run_bound(scores, trial.included, delta=delta, confidence=confidence, guesses=guesses),
        strict=one_run_bound(scores, trial.included, delta=small, confidence=1 - FALSE_ALARM, guesses=guesses),
        strict_claim=epsilon(spends, small).epsilon,
        membership=membership(scores, trial.included, confidence=confidence),
        adversary=attack.words,
        relation=trial.relation,
        ledger_epsilon=oracle.ledger.epsilon(delta),
        scores=scores,
        included=trial.included,
    )
