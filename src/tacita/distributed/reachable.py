"""Find what a loss function can reach: modules and tensors in closures, defaults, globals, attributes and containers.

No code of the loss is run. References are followed from function to closure to object.
"""

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from tacita.gradients.references import parts_of

MOST = 100_000  # objects that are followed at most
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis), range, slice)


def reachable(loss_fn: Callable[..., Any], model: nn.Module) -> dict[str, Tensor | nn.Module]:
    """Return each module and tensor outside of ``model`` that ``loss_fn`` refers to, by the path of attributes to it.

    Example:
        >>> import functools
        >>> found = reachable(functools.partial(print, nn.Dropout()), nn.Linear(3, 2))
        >>> [name for name, one in found.items() if isinstance(one, nn.Module)]
        ['loss_fn.args.0']
    """
    seen = {id(one) for one in (*model.modules(), *model.parameters(), *model.buffers())}
    found, queue, many = {}, deque([("loss_fn", loss_fn)]), 0
    while queue and many < MOST:
        where, thing = queue.popleft()
        many += 1
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor | nn.Module):
            found[where] = thing
        if not isinstance(thing, Tensor):
            parts = itertools.islice(parts_of(thing, installed=thing is loss_fn), MOST)
            queue.extend((f"{where}.{name}", one) for name, one in parts if not isinstance(one, _PLAIN))
    return found
