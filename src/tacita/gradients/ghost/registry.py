"""Which layers have a rule, and whether that is all of a model.

Place: ghost engine. A rule belongs to one exact type: a subclass may compute something else, so it needs its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from tacita.gradients.ghost.conv2d import Conv2dRule
from tacita.gradients.ghost.embedding import EmbeddingRule
from tacita.gradients.ghost.linear import LinearRule
from tacita.gradients.ghost.normalization import GROUP_NORM, LAYER_NORM
from tacita.gradients.ghost.rule import LayerRule

_RULES: dict[type[nn.Module], LayerRule] = {
    nn.Linear: LinearRule(),
    nn.Conv2d: Conv2dRule(),
    nn.Embedding: EmbeddingRule(),
    nn.LayerNorm: LAYER_NORM,
    nn.GroupNorm: GROUP_NORM,
}


@dataclass(frozen=True)
class Coverage:
    """Which rule serves each parameter, and why some have none.

    Attributes:
        rules: Parameter name -> type of the layer whose rule serves it.
        refused: Parameter name -> why none does; empty if the ghost engine serves the model.
    """

    rules: dict[str, str]
    refused: dict[str, str]


def register_rule(module_type: type[nn.Module], rule: LayerRule) -> None:
    """Let ``rule`` serve layers of exactly ``module_type``, in place of any rule they have.

    :func:`tacita.testing.check_layer_rule` holds it to the contract that privacy rests on.

    Raises:
        TypeError: ``module_type`` is not a type of modules, or ``rule`` is not a :class:`LayerRule`.
    """
    if not (isinstance(module_type, type) and issubclass(module_type, nn.Module)):
        raise TypeError(f"module_type must be a subclass of torch.nn.Module, got {module_type!r}.")
    if not isinstance(rule, LayerRule):
        raise TypeError(f"rule must be a LayerRule, got {type(rule).__name__}.")
    _RULES[module_type] = rule


def rule_for(module: nn.Module) -> LayerRule | None:
    """The rule for a layer of this type, if there is one."""
    return _RULES.get(type(module))


def coverage(model: nn.Module, params: Iterable[str] | None = None) -> Coverage:
    """Whether the ghost engine has a rule for every trainable parameter, from the modules alone.

    What a forward pass does with them (a weight used outside its layer) shows when it runs: the engine then raises.

    Args:
        model: Any module; nothing of it is run.
        params: Names of the parameters that gradients are taken in; those that require a gradient if not given.

    Example:
        >>> coverage(nn.Sequential(nn.Linear(2, 2), nn.PReLU())).refused
        {'1.weight': 'there is no rule for PReLU'}
    """
    names = {id(p): name for name, p in model.named_parameters()}
    chosen = set(params) if params is not None else {n for n, p in model.named_parameters() if p.requires_grad}
    rules: dict[str, str] = {}
    refused: dict[str, str] = {}
    for module in model.modules():
        for local, parameter in module.named_parameters(recurse=False):
            name = names[id(parameter)]
            if name in chosen and (reason := _obstacle(module, local)):
                refused[name] = reason
            elif name in chosen:
                rules.setdefault(name, type(module).__name__)
    return Coverage({n: rule for n, rule in rules.items() if n not in refused}, refused)


def _obstacle(module: nn.Module, local: str) -> str:
    kind, rule = type(module).__name__, rule_for(module)
    if rule is None:
        return f"there is no rule for {kind}"
    if local not in rule.parameters:
        return f"the rule for {kind} does not know its parameter {local!r}"
    reason = rule.obstacle(module)
    return f"{kind}: {reason}" if reason else ""
