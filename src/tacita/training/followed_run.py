"""A run as a rank other than 0 makes it: no folder, no ledger, no average; the model in the end is rank 0's.

Place: oracles, training.loop -> [training.followed_run] -> training.fit.
"""

from collections.abc import Callable, Iterable

import torch
from torch import nn

from tacita.gradients.process_group import Ranks
from tacita.oracles import GradientOracle
from tacita.training.checkpoint import TrainingState
from tacita.training.loop import train
from tacita.training.several_ranks import same_weights

SEALED = "sealed"  # the step at which rank 0 tells whether the run was finished before


def follow(
    make_oracle: Callable[[], GradientOracle],
    model: nn.Module,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    ranks: Ranks,
) -> None:
    """Take part in rank 0's run, and end with its model.

    Args:
        make_oracle: Builds the oracle of this rank.
        model: Changed in place.
        optimizer: ``params -> torch.optim.Optimizer``, as on rank 0.
        ranks: The ranks of the run.
    """
    state = TrainingState(model, optimizer(model.parameters()), make_oracle())
    if not ranks.told(SEALED, None)[0]["sealed"]:
        train(state)
    same_weights(ranks, model)
