"""The table of torch functions that have a rule.

Rules belong to torch functions and not to types of modules. A subclass, a layer of a library and a functional call of
one function therefore have the same rule.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from tacita.gradients.rules.convolution import ConvolutionRule, TransposedConvolutionRule
from tacita.gradients.rules.embedding import EmbeddingRule
from tacita.gradients.rules.linear import LinearRule, StackedRule
from tacita.gradients.rules.normalization import GROUP_NORM, LAYER_NORM, RMS_NORM
from tacita.gradients.rules.rule import LayerRule
from tacita.gradients.rules.transposed import AddmmRule, MatmulRule

_MATMUL, _STACKED = MatmulRule(), StackedRule()
RULES: dict[Any, LayerRule] = {
    F.linear: LinearRule(),
    torch.addmm: AddmmRule(),
    torch.matmul: _MATMUL,
    torch.Tensor.matmul: _MATMUL,
    torch.Tensor.__matmul__: _MATMUL,
    torch.mm: _MATMUL,
    torch.Tensor.mm: _MATMUL,
    torch.bmm: _STACKED,
    torch.Tensor.bmm: _STACKED,
    F.conv1d: ConvolutionRule(F.conv1d, 1),
    F.conv2d: ConvolutionRule(F.conv2d, 2),
    F.conv3d: ConvolutionRule(F.conv3d, 3),
    F.conv_transpose1d: TransposedConvolutionRule(F.conv_transpose1d, 1),
    F.conv_transpose2d: TransposedConvolutionRule(F.conv_transpose2d, 2),
    F.conv_transpose3d: TransposedConvolutionRule(F.conv_transpose3d, 3),
    F.embedding: EmbeddingRule(),
    F.layer_norm: LAYER_NORM,
    F.group_norm: GROUP_NORM,
    F.rms_norm: RMS_NORM,
}


def register_rule(function: Callable, rule: LayerRule) -> None:
    """Let ``rule`` serve calls of ``function`` that meet parameters, in place of any rule that it has.

    Check the rule with :func:`tacita.testing.check_layer_rule`: privacy rests on that contract.

    Args:
        function: A torch function as PyTorch dispatches it: ``torch.nn.functional.linear``, ``torch.matmul``; or a
            function of your own that calls ``torch.overrides.handle_torch_function``.
        rule: The rule that gives per-sample norms and sums of these calls.

    Raises:
        TypeError: ``function`` is not callable, or a module or class, or ``rule`` is not a :class:`LayerRule`.
    """
    if not callable(function) or isinstance(function, (type, torch.nn.Module)):
        raise TypeError(f"function must be a torch function (torch.nn.functional.linear, say), got {function!r}.")
    if not isinstance(rule, LayerRule):
        raise TypeError(f"rule must be a LayerRule, got {type(rule).__name__}.")
    RULES[function] = rule
