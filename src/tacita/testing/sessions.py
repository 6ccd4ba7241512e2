"""Real sessions of an oracle, query by query, on the two data sets of an adversary.

Any object whose ``query(params)`` returns a release can be used. Its public fields (divisor, noise_std, shapes) must be
the same in both worlds, and every query must be in the ledger under the session and number that the release names. The
gradient of an oracle of this library must be its ``released`` values over the divisor.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tacita.accounting import NeighboringRelation
from tacita.estimators.estimator import Values
from tacita.gradients.engine import GradientSource
from tacita.gradients.given import DEFAULT_NAME
from tacita.ledger import Ledger, Reservations
from tacita.ledger import Session as LedgerSession
from tacita.mechanisms import Mechanism
from tacita.oracles import GradientOracle, Queryable, Release, trainable
from tacita.oracles.gate import ReleaseGate
from tacita.oracles.query_draws import QueryDraws
from tacita.oracles.records import distinct_rows
from tacita.random import QueryCoins, Randomness
from tacita.testing.simulator import Parts, Trace, Worlds, replay


def source_of(oracle: Queryable) -> GradientSource | None:
    """Return the source of an oracle that has one of tacita's; the protocol of an oracle does not ask for it."""
    source = getattr(oracle, "source", None)
    return source if isinstance(source, GradientSource) else None


MakeOracle = Callable[[Tensor, Ledger], Queryable]  # rows (n, d), an in-memory ledger
Session = list[Release]
OWN = frozenset(name for name in vars(GradientOracle) if not name.startswith("__"))  # what a subclass may override


def in_memory(relation: NeighboringRelation) -> Ledger:
    """Create an in-memory ledger for one session of an audit."""
    return Ledger(neighboring_relation=relation, privacy_unit="one record of an audit")


def sessions(
    first: tuple[Queryable, Ledger], remake: Callable[[Ledger], Queryable], runs: int, ask: "Asking"
) -> Iterator[tuple[Queryable, Session]]:
    """Yield ``runs`` sessions: one of the given oracle, then of new ones, each with a ledger of its own.

    Raises:
        AssertionError: A query has no record in the ledger, or the public fields of a release differ from the first's.
    """
    oracle, ledger = first
    for run in range(runs):
        if run:
            ledger = in_memory(ledger.neighboring_relation)
            oracle = remake(ledger)
        yield oracle, [ask(oracle, ledger, query) for query in range(ask.queries)]


class Asking:
    """Query oracles, and check that the public fields of their releases are always the same.

    The query point is zero, since the gradients of a linear problem are the same everywhere.

    Args:
        columns: Size of the query point, for an oracle without ``source.shapes``.
        queries: Number of queries in a session.
        backward: Call ``backward()`` instead of ``query``, and check that ``.grad`` is the release's gradient.
    """

    def __init__(self, columns: int, queries: int, *, backward: bool = False) -> None:
        self.queries = queries
        self._columns = columns
        self._backward = backward
        self._promises: Any = None

    def __call__(self, oracle: Queryable, ledger: Ledger, query: int) -> Release:
        """Make the session's next query, number ``query``, and return its release."""
        release = backward(oracle) if self._backward else oracle.query(self._point(oracle))
        made = sum(session.queries_made for session in ledger.sessions)
        assert made == query + 1, f"{query + 1} queries were answered, and the ledger has {made}."
        check_paid(release, ledger)
        if isinstance(oracle, GradientOracle):
            check_own_release(oracle, release)
        if self._promises is None:
            self._promises = promises(release)
        assert promises(release) == self._promises, (
            f"divisor, noise_std and shapes must not depend on data, and are {promises(release)} in one release and "
            f"{self._promises} in another. Under add_or_remove_one, declare a num_records that is not len(rows)."
        )
        return release

    def _point(self, oracle: Queryable) -> dict[str, Tensor]:
        source = source_of(oracle)
        shapes = {DEFAULT_NAME: torch.Size([self._columns])} if source is None else source.shapes
        return {name: torch.zeros(shape) for name, shape in shapes.items()}


def check_paid(release: Release, ledger: Ledger) -> None:
    """Check that the release names a session of the ledger, and the number of its last query."""
    paid = {session.id: session for session in ledger.sessions if session.queries_made}
    assert release.session in paid, "a release's session is none of the ledger's that paid."
    last = paid[release.session].last_query
    assert release.query == last, f"a release's query is {release.query}, and the session's last one {last}."


def check_own_release(oracle: GradientOracle, release: Release) -> None:
    """Check that the release of a :class:`~tacita.GradientOracle` holds no more than ``released`` over the divisor.

    Raises:
        AssertionError: ``divisor`` or ``noise_std`` is not the oracle's, or ``gradient`` is not what its estimator
            makes of ``released`` and ``divisor``, bit for bit.
    """
    divisor, noise_std = oracle.sampler.expected_batch_size, oracle.gate.noise_std
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
    """Call ``backward()`` and return its release; afterwards the parameters count as updated.

    Raises:
        AssertionError: A parameter's ``.grad`` is not the release's gradient, bit for bit.
    """
    params = trainable(oracle.source.model)
    for parameter in params.values():
        parameter.grad = torch.ones_like(parameter)  # backward() must replace it, not add to it
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
    """Return whether two tensors have the same shape and dtype, and are equal bit for bit."""
    if one is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(*(x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (one, other)))


def has_parts(oracle: Any) -> bool:
    """Return whether ``oracle`` is a ``GradientOracle`` (or of a subclass) with a mechanism of this library's kind."""
    return isinstance(oracle, GradientOracle) and isinstance(oracle.mechanism, Mechanism)


def is_plain(oracle: Any) -> bool:
    """Return whether ``oracle`` does exactly what its parts do.

    That is: no method or property of GradientOracle is overridden, by a subclass or on the instance; its gate is the
    one with which it was built; and no method of gate, session, streams or parts was replaced on the instance.
    """
    return (
        has_parts(oracle)
        and not OWN & vars(oracle).keys()
        and all(inspect.getattr_static(type(oracle), name) is vars(GradientOracle)[name] for name in OWN)
        and type(oracle).__getattribute__ is object.__getattribute__
        and _line_as_built(oracle)
        and all(map(as_its_class, (oracle.source, oracle.estimator, oracle.mechanism, oracle.sampler)))
    )


def _line_as_built(oracle: GradientOracle) -> bool:
    gate, randomness = oracle.gate, oracle.randomness
    inside: dict[type, Any] = {
        ReleaseGate: gate,
        QueryDraws: oracle.draws,
        LedgerSession: gate.session,
        QueryCoins: gate.coins,
        Reservations: gate._reservations,
        Randomness: randomness,
    }
    return (
        all(type(one) is kind and as_its_class(one) for kind, one in inside.items())
        and gate._mechanism is oracle.mechanism
        and oracle.draws.sampler is oracle.sampler
        and oracle.draws._gate is gate
        and gate._randomness is gate.coins._randomness is randomness
    )


def as_its_class(thing: Any) -> bool:
    """Return whether no attribute of the instance hides a method or property of its class."""
    hidden = [inspect.getattr_static(type(thing), name, None) for name in getattr(thing, "__dict__", {})]
    return not any(callable(one) or isinstance(one, property | staticmethod | classmethod) for one in hidden)


def check_as_charged(oracle: Queryable, ledger: Ledger) -> None:
    """Check that a :class:`~tacita.GradientOracle` is still the one for which its session was registered.

    Raises:
        AssertionError: Estimator, sampler, mechanism, noise, records or plan were changed since, so that the ledger
            charges for another oracle than this one.
    """
    if not isinstance(oracle, GradientOracle):
        return
    stated = oracle._plan.noise_std(oracle.mechanism)
    assert dict(oracle.gate.noise_std) == dict(oracle.noise_std) == stated, (
        f"the gate adds noise of noise_std {dict(oracle.gate.noise_std)}, and the oracle's mechanism states {stated}."
    )
    assert oracle._plan.event(oracle.mechanism) == oracle.event == oracle.session.event, (
        "the ledger charges for another event than that of the oracle's estimator, sampler and mechanism."
    )
    assert oracle._plan.data.source is oracle.source, "gradients are taken from another source than the oracle's."
    assert oracle.draws.sampler is oracle.sampler, "the records are drawn by another sampler than the oracle states."
    assert oracle.planned_queries == oracle.session.planned_queries, "planned_queries is not the session's."
    assert oracle.session in ledger.sessions, "the session that pays is none of the ledger's."
    _check_streams(oracle)
    if oracle.draws.rows is not None:
        distinct_rows(oracle.draws.rows, oracle.source.num_rows)


def _check_streams(oracle: GradientOracle) -> None:
    """Fail unless batches, noise and tags of redone queries come from the streams that the oracle was built with.

    Runs cannot tell: a key that somebody knows draws as well as any other, batches that are drawn once for two queries
    move no single release, and a redone query is none of an audit's.
    """
    gate, randomness = oracle.gate, oracle.randomness
    registered = oracle.session.registration
    assert gate._randomness is randomness, "the gate draws from another Randomness than the oracle's."
    assert randomness.secure or not registered.secure_randomness, (
        "the oracle's Randomness is seeded, and its session was registered for secure randomness."
    )
    if type(gate) is ReleaseGate:
        coins = gate.coins
        own = type(coins) is QueryCoins and as_its_class(coins) and coins._randomness is randomness
        own = own and coins.session == gate._name
        assert own, "batches are drawn by other coins than the session's own."
        name = randomness.name_for(oracle.session.id, oracle.session.ledger)
        assert gate._name == name, "the gate draws under another name than its session's."
        assert "_fingerprint" not in vars(gate), "another fingerprint than the gate's decides what a redone query is."


def remade(oracle: Queryable, make: Callable[[Ledger], Queryable]) -> Callable[[Ledger], Queryable]:
    """Return a function that builds ``oracle`` again for another ledger; a plain oracle's parts are used again."""
    if isinstance(oracle, GradientOracle) and is_plain(oracle):
        return lambda ledger: _same_parts(oracle, ledger)
    return make


def looped(found: Iterator[tuple[Queryable, Session]]) -> Trace:
    """Return the releases of sessions as a trace; batches and noiseless values are unknown."""
    views = torch.stack([torch.stack([_view(release) for release in session]) for _, session in found])
    return Trace(residual=views, shift=views, drawn=None, others=None)


def replayed(parts: Parts, worlds: Worlds, present: bool, found: Iterator[tuple[Queryable, Session]]) -> Trace:
    """Return the releases of sessions of a plain oracle, beside the noiseless values of the batches that they drew."""
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
    """Return the released values of a session's queries, (queries, coordinates)."""
    return torch.stack([torch.cat([x.flatten() for xs in r.released.values() for x in xs.values()]) for r in session])


def promises(release: Release) -> tuple[Any, ...]:
    """Return the public fields of a release, which must not depend on data."""
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
        rows=oracle.draws.rows,
        max_rows_per_unit=oracle.sampler.max_rows_per_unit,
    )


def _batches(oracle: Any, num_rows: int, queries: int, present: bool) -> Tensor:
    """Return which rows the oracle drew in each query, (queries, rows); rows outside its data were not drawn."""
    here = oracle.source.num_rows
    drawn = torch.zeros(queries, num_rows, dtype=torch.bool)
    for query in range(queries):
        drawn[query, :here] = torch.from_numpy(oracle.sampler.mask(query, oracle.gate.coins, here))
    return drawn


def _view(release: Release) -> Tensor:
    """Return everything that was released, in units of its noise.

    The gradient follows the released values; it is zeros if it is only the released values over the divisor.
    """
    blocks = [x.flatten() / (release.noise_std[b] or 1) for b, xs in release.released.items() for x in xs.values()]
    scale = release.divisor / (max(release.noise_std.values()) or 1)
    gradient = [g.flatten() * scale for g in release.gradient.values()]
    seen, shown = torch.cat(blocks), torch.cat(gradient)
    derived = seen.shape == shown.shape and torch.allclose(seen, shown, rtol=1e-4, atol=1e-6, equal_nan=True)
    return torch.cat([seen, torch.zeros_like(seen) if derived else shown])
