"""The rules: norms and weighted sums from one backward pass, by one rule a torch function."""

from tacita.gradients.rules.registry import register_rule as register_rule
from tacita.gradients.rules.rule import Call as Call
from tacita.gradients.rules.rule import LayerRule as LayerRule
from tacita.gradients.rules.rule import LayerUse as LayerUse
from tacita.gradients.rules.rule import RowWeights as RowWeights
from tacita.gradients.rules.rule import squared_norm_of as squared_norm_of
