"""A run as a rank other than 0 makes it: no folder, no ledger, no average; the model in the end is rank 0's.

Place: oracles, training.loop -> [training.followed_run] -> training.fit.
"""

from collections.abc import Callable

from tacita.distributed.process_group import Ranks
from tacita.runs.checkpoint import TrainingState
from tacita.training.loop import train
from tacita.training.several_ranks import same_weights

SEALED = "sealed"  # the step at which rank 0 tells whether the run was finished before


def follow(make_state: Callable[[], TrainingState], ranks: Ranks) -> None:
    """Take part in rank 0's run, and end with its model.

    Args:
        make_state: Builds model, optimizer, scheduler and oracle of this rank, as on rank 0.
        ranks: The ranks of the run.
    """
    state = make_state()
    if not ranks.told(SEALED, None)[0]["sealed"]:
        train(state)
    same_weights(ranks, state.model)
