"""Real sessions of an oracle, one query after the other, on the two data sets of an adversary.

Place: oracles -> [audit.sessions] -> audit, contract. Whatever answers ``query(params)`` with a release can be asked;
what it promises in public (divisor, noise_std, shapes) must be the same in both worlds, every query must stand in the
ledger under the release's own session and number, and our oracles must release the gradient that ``released`` is.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from tacita.accounting import Ledger, NeighboringRelation
from tacita.audit.simulator import Parts, Trace, Worlds, replay
from tacita.estimators.estimator import Values
from tacita.gradients.given import DEFAULT_NAME
from tacita.mechanisms import Mechanism
from tacita.oracles import GradientOracle, Release, trainable
from tacita.oracles.line import Line


class Queryable(Protocol):
    """The protocol of every gradient oracle."""

    def query(self, params: Mapping[str, Tensor], /) -> Any:
        """A release: ``gradient``, ``released``, ``divisor``, ``noise_std``."""
        ...


MakeOracle = Callable[[Tensor, Ledger], Queryable]  # rows (n, d), an in-memory ledger
Session = list[Release]
OWN = frozenset(name for name in vars(GradientOracle) if not name.startswith("__"))  # what a subclass may override


def in_memory(relation: NeighboringRelation) -> Ledger:
    """A ledger for one session of an audit."""
    return Ledger(neighboring_relation=relation, privacy_unit="one record of an audit")


def sessions(
    first: tuple[Queryable, Ledger], remake: Callable[[Ledger], Queryable], runs: int, ask: "Asking"
) -> Iterator[tuple[Queryable, Session]]:
    """``runs`` sessions: of an oracle that is there, then of new ones, each with a ledger of its own.

    Raises:
        AssertionError: A query has no line in the ledger, or a release promises something else than the first.
    """
    oracle, ledger = first
    for run in range(runs):
        if run:
            ledger = in_memory(ledger.neighboring_relation)
            oracle = remake(ledger)
        yield oracle, [ask(oracle, ledger, query) for query in range(ask.queries)]


class Asking:
    """Asks oracles, and sees to it that what they say in public is always the same.

    Args:
        columns: Of the rows: asked at zeros, of the oracle's own shapes or one vector of this size. The gradients of a
            linear problem are the same everywhere.
        queries: In a session.
        backward: Ask ``backward()`` instead, of oracles with a model, and see that ``.grad`` is the release's gradient.
    """

    def __init__(self, columns: int, queries: int, *, backward: bool = False) -> None:
        self.queries = queries
        self._columns = columns
        self._backward = backward
        self._promises: Any = None

    def __call__(self, oracle: Queryable, ledger: Ledger, query: int) -> Release:
        """The release of the session's next query, whose number is ``query``."""
        release = backward(oracle) if self._backward else oracle.query(self._point(oracle))
        made = sum(session.queries_made for session in ledger.sessions)
        assert made == query + 1, f"{query + 1} queries were answered, and the ledger has {made}."
        check_paid(release, ledger)
        if isinstance(oracle, GradientOracle):
            check_own_release(oracle, release)
        if self._promises is None:
            self._promises = promises(release)
        assert promises(release) == self._promises, (
            f"divisor, noise_std and shapes must not depend on data, and are {promises(release)} in one release, "
            f"{self._promises} in another."
        )
        return release

    def _point(self, oracle: Queryable) -> dict[str, Tensor]:
        shapes = getattr(getattr(oracle, "source", None), "shapes", {DEFAULT_NAME: (self._columns,)})
        return {name: torch.zeros(shape) for name, shape in shapes.items()}


def check_paid(release: Release, ledger: Ledger) -> None:
    """Fail unless the release names the session that paid, and the number of its last query."""
    paid = {session.id: session for session in ledger.sessions if session.queries_made}
    assert release.session in paid, "a release's session is none of the ledger's that paid."
    last = paid[release.session].last_query
    assert release.query == last, f"a release's query is {release.query}, and the session's last one {last}."


def check_own_release(oracle: GradientOracle, release: Release) -> None:
    """Fail unless a release of our own kind is no more than ``released``, divided by the public divisor.

    Raises:
        AssertionError: ``divisor`` or ``noise_std`` is not the oracle's, or ``gradient`` is not what its estimator
            makes of ``released`` and ``divisor``, bit for bit.
    """
    divisor, noise_std = oracle.sampler.expected_batch_size, oracle.line.noise_std
    assert release.divisor == divisor, f"a release's divisor is {release.divisor}, its sampler's {divisor}."
    assert dict(release.noise_std) == dict(noise_std), (
        f"a release's noise_std is {dict(release.noise_std)}, and the noise that is added has {dict(noise_std)}."
    )
    extra = vars(release).keys() - Release.__dataclass_fields__.keys()
    assert not extra, f"a release must have a Release's fields alone, and has {', '.join(sorted(extra))}."
    expected = oracle.estimator.gradient(release.released, divisor)
    assert release.gradient.keys() == expected.keys(), "a release's gradient has other names than its released values."
    other = [name for name, g in expected.items() if not same_bits(g, release.gradient[name])]
    assert not other, f"a release's gradient is not its released values over the divisor: {', '.join(other)}."


def backward(oracle: Any) -> Release:
    """The release of ``backward()``; the parameters then count as updated.

    Raises:
        AssertionError: A parameter's ``.grad`` is not the release's gradient, bit for bit.
    """
    params = trainable(oracle.source.model)
    for parameter in params.values():
        parameter.grad = torch.ones_like(parameter)  # to be replaced, not added to
    release = oracle.backward()
    for name, parameter in params.items():
        assert same_bits(parameter.grad, release.gradient[name].to(parameter.dtype)), (
            f"backward() must assign the release's gradient, and the .grad of {name} is something else."
        )
    with torch.no_grad():
        for parameter in params.values():
            parameter.add_(0.0)
    return release


def same_bits(one: Tensor | None, other: Tensor) -> bool:
    """Whether two tensors are of one shape and type, and equal bit for bit."""
    if one is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(*(x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (one, other)))


def has_parts(oracle: Any) -> bool:
    """Whether ``oracle`` is one of ours with Gaussian noise, in floating point or in whole steps, or a subclass."""
    return isinstance(oracle, GradientOracle) and isinstance(oracle.mechanism, Mechanism)


def is_plain(oracle: Any) -> bool:
    """Whether ``oracle`` does nothing but what its parts do: no method or property of GradientOracle is overridden."""
    return (
        has_parts(oracle)
        and type(oracle.line) is Line
        and not OWN & vars(oracle).keys()
        and all(inspect.getattr_static(type(oracle), name) is vars(GradientOracle)[name] for name in OWN)
        and type(oracle).__getattribute__ is object.__getattribute__
    )


def remade(oracle: Queryable, make: Callable[[Ledger], Queryable]) -> Callable[[Ledger], Queryable]:
    """A quick way to build ``oracle`` again for another ledger: of the parts it has, where it is a plain one."""
    if isinstance(oracle, GradientOracle) and is_plain(oracle):
        return lambda ledger: _same_parts(oracle, ledger)
    return make


def looped(found: Iterator[tuple[Queryable, Session]]) -> Trace:
    """What sessions released, as it is: nothing is known of batches and of noiseless values."""
    views = torch.stack([torch.stack([_view(release) for release in session]) for _, session in found])
    return Trace(residual=views, shift=views, drawn=None, others=None)


def replayed(parts: Parts, worlds: Worlds, present: bool, found: Iterator[tuple[Queryable, Session]]) -> Trace:
    """What sessions of a plain oracle released, beside the noiseless values of the batches that they drew."""
    made = [(_batches(oracle, worlds.num_rows, parts.queries, present), session) for oracle, session in found]
    masks = torch.stack([masks for masks, _ in made], dim=1)

    def release(query: int, values: Values) -> Values:
        return {
            block: {
                name: torch.stack([session[query].released[block][name].flatten() for _, session in made])
                for name in tensors
            }
            for block, tensors in values.items()
        }

    return replay(parts, worlds, present, (lambda query: masks[query], release))


def released_in(session: Session) -> Tensor:
    """The released values of a session's queries, (queries, coordinates)."""
    return torch.stack([torch.cat([x.flatten() for xs in r.released.values() for x in xs.values()]) for r in session])


def promises(release: Release) -> tuple[Any, ...]:
    """What a release says of itself and must not depend on data."""
    shapes = {
        block: {name: tuple(x.shape) for name, x in tensors.items()} for block, tensors in release.released.items()
    }
    return release.divisor, dict(release.noise_std), shapes, {n: tuple(g.shape) for n, g in release.gradient.items()}


def _same_parts(oracle: GradientOracle, ledger: Ledger) -> GradientOracle:
    return GradientOracle(
        oracle.source,
        estimator=oracle.estimator,
        mechanism=oracle.mechanism,
        sampler=oracle.sampler,
        ledger=ledger,
        planned_queries=oracle.planned_queries,
        rows=oracle._rows,
        max_rows_per_unit=getattr(oracle.sampler, "max_rows_per_unit", 1),
    )


def _batches(oracle: Any, num_rows: int, queries: int, present: bool) -> Tensor:
    """Which rows the oracle drew in each query, (queries, rows); rows that are not in its data were not drawn."""
    here = oracle.source.num_rows
    drawn = torch.zeros(queries, num_rows, dtype=torch.bool)
    for query in range(queries):
        drawn[query, :here] = torch.from_numpy(oracle.sampler.mask(query, oracle.line.coins, here))
    return drawn


def _view(release: Release) -> Tensor:
    """All that was released, in units of its noise.

    The gradient comes second; zeros where it is the released values over the divisor, which tells nothing new.
    """
    blocks = [x.flatten() / (release.noise_std[b] or 1) for b, xs in release.released.items() for x in xs.values()]
    scale = release.divisor / (max(release.noise_std.values()) or 1)
    gradient = [g.flatten() * scale for g in release.gradient.values()]
    seen, shown = torch.cat(blocks), torch.cat(gradient)
    derived = seen.shape == shown.shape and torch.allclose(seen, shown, rtol=1e-4, atol=1e-6, equal_nan=True)
    return torch.cat([seen, torch.zeros_like(seen) if derived else shown])
