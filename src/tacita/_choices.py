"""The names of closed sets of settings, which the command line shows in its help before anything else is imported."""

from typing import Literal

NeighboringRelation = Literal["add_or_remove_one", "replace_one", "zero_out_one"]
PlannedSampling = Literal["poisson", "full_batch", "one_pass"]
