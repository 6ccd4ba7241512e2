"""The cells in JAX, by JAX Privacy and without privacy: models of one sample, in plain functions, compiled.

python3.12 -m venv ENV && ENV/bin/pip install jax-privacy
python benchmarks/step_time.py --python JAX=ENV/bin/python
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax_privacy import clipping, noise_addition

CLIP, NOISE, LR = 1.0, 1.0, 0.01
BLOCKS = 6
Params = Any


@dataclass(frozen=True)
class Cell:
    """A cell of ``cells.py``: shapes of the parameters, scores of one sample, and what a batch is."""

    shapes: Any
    apply: Callable[[Params, jax.Array], jax.Array]
    features: tuple[int, ...]
    classes: int
    batch: int
    vocabulary: int = 0
    language: bool = False

    def params(self) -> Params:
        """Random parameters."""
        shapes, form = jax.tree.flatten(self.shapes, is_leaf=lambda one: isinstance(one, tuple))
        keys = jax.random.split(jax.random.key(0), len(shapes))
        return form.unflatten([0.05 * jax.random.normal(key, one) for key, one in zip(keys, shapes, strict=True)])

    def rows(self) -> tuple[jax.Array, jax.Array]:
        """Random samples with labels."""
        one, other = jax.random.split(jax.random.key(1))
        labels = jax.random.randint(other, (self.batch,), 0, self.classes)
        if not self.vocabulary:
            return jax.random.normal(one, (self.batch, *self.features)), labels
        tokens = jax.random.randint(one, (self.batch, *self.features), 0, self.vocabulary)
        return tokens, jnp.roll(tokens, -1, axis=1) if self.language else labels

    def loss(self, params: Params, x: jax.Array, label: jax.Array) -> jax.Array:
        """The loss of one sample: the mean over its tokens, if it has several."""
        logs = jax.nn.log_softmax(self.apply(params, x))
        return -jnp.take_along_axis(logs, label[..., None], axis=-1).mean()


# --- models of one sample --------------------------------------------------------------------------------------------


def dense(inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {"w": (inputs, outputs), "b": (outputs,)}


def linear(p: Params, x: jax.Array) -> jax.Array:
    return x @ p["w"] + p["b"]


def convolve(w: jax.Array, x: jax.Array, stride: int = 1, padding: str | list = "VALID") -> jax.Array:
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x[None], w, (stride, stride), padding, dimension_numbers=dims)[0]


def mlp(p: Params, x: jax.Array) -> jax.Array:
    return linear(p[1], jax.nn.relu(linear(p[0], x)))


def cnn(p: Params, x: jax.Array) -> jax.Array:
    for one in p[:2]:
        x = jnp.tanh(convolve(one["w"], x) + one["b"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2, 1), (2, 2, 1), "VALID")
    return linear(p[3], jnp.tanh(linear(p[2], x.ravel())))


def group_norm(p: Params, x: jax.Array, groups: int = 8) -> jax.Array:
    parts = x.reshape(*x.shape[:-1], groups, -1)
    mean, var = parts.mean((0, 1, 3), keepdims=True), parts.var((0, 1, 3), keepdims=True)
    return ((parts - mean) * jax.lax.rsqrt(var + 1e-5)).reshape(x.shape) * p["w"] + p["b"]


WIDTHS = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]


def residual_shapes(before: int, width: int) -> dict[str, Any]:
    convs = {"first": (3, 3, before, width), "second": (3, 3, width, width)}
    short = {} if before == width else {"short": (1, 1, before, width)}
    return {**convs, **short, "norms": [{"w": (width,), "b": (width,)} for _ in range(2)]}


def resnet(p: Params, x: jax.Array) -> jax.Array:
    same = [(1, 1), (1, 1)]
    x = jax.nn.relu(group_norm(p["norm"], convolve(p["stem"], x, padding=same)))
    for one in p["blocks"]:
        stride = 2 if "short" in one else 1
        inner = jax.nn.relu(group_norm(one["norms"][0], convolve(one["first"], x, stride, same)))
        inner = group_norm(one["norms"][1], convolve(one["second"], inner, padding=same))
        x = jax.nn.relu(inner + (convolve(one["short"], x, stride) if "short" in one else x))
    return linear(p["head"], x.mean((0, 1)))


def layer_norm(p: Params, x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * p["w"] + p["b"]


def block_shapes(width: int) -> dict[str, Any]:
    norms = [{"w": (width,), "b": (width,)} for _ in range(2)]
    mixing = {"inward": dense(width, 3 * width), "outward": dense(width, width)}
    return {"norms": norms, **mixing, "up": dense(width, 4 * width), "down": dense(4 * width, width)}


def blocks(p: Params, x: jax.Array, heads: int, causal: bool) -> jax.Array:
    for one in p["blocks"]:
        parts = linear(one["inward"], layer_norm(one["norms"][0], x)).reshape(len(x), 3, heads, -1)
        mixed = jax.nn.dot_product_attention(*(parts[:, k] for k in range(3)), is_causal=causal)
        x = x + linear(one["outward"], mixed.reshape(x.shape))
        inner = jax.nn.gelu(linear(one["up"], layer_norm(one["norms"][1], x)), approximate=False)
        x = x + linear(one["down"], inner)
    return layer_norm(p["norm"], x)


def vision(p: Params, x: jax.Array) -> jax.Array:
    patches = convolve(p["patches"]["w"], x, stride=4) + p["patches"]["b"]
    x = jnp.concatenate([p["token"], patches.reshape(64, -1)]) + p["places"]
    return linear(p["head"], blocks(p, x, heads=3, causal=False)[0])


def transformer(p: Params, x: jax.Array, language: bool) -> jax.Array:
    x = blocks(p, p["tokens"][x] + p["places"], heads=6, causal=language)
    return x @ p["head"]["w"] if language else linear(p["head"], x[0])


def transformer_shapes(width: int, head: Any, **first: Any) -> dict[str, Any]:
    norm = {"w": (width,), "b": (width,)}
    return {**first, "blocks": [block_shapes(width) for _ in range(BLOCKS)], "norm": norm, "head": head}


def convolution(size: int, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {"w": (size, size, inputs, outputs), "b": (outputs,)}


RESNET = {
    "stem": (3, 3, 3, 16),
    "norm": {"w": (16,), "b": (16,)},
    "blocks": [residual_shapes(*pair) for pair in pairwise(WIDTHS)],
    "head": dense(64, 10),
}
VISION = transformer_shapes(192, dense(192, 10), patches=convolution(4, 3, 192), token=(1, 192), places=(65, 192))
GPT = transformer_shapes(384, {"w": (384, 8192)}, tokens=(8192, 384), places=(128, 384))
BERT = transformer_shapes(384, dense(384, 2), tokens=(8192, 384), places=(64, 384))
CNN = [convolution(5, 1, 16), convolution(5, 16, 16), dense(256, 32), dense(32, 10)]
CELLS = {
    "a": Cell([dense(784, 256), dense(256, 10)], mlp, (784,), 10, 256),
    "b": Cell(CNN, cnn, (28, 28, 1), 10, 256),
    "c": Cell(RESNET, resnet, (32, 32, 3), 10, 64),
    "d": Cell(VISION, vision, (32, 32, 3), 10, 64),
    "e": Cell(GPT, partial(transformer, language=True), (128,), 8192, 8, vocabulary=8192, language=True),
    "f": Cell(BERT, partial(transformer, language=False), (64,), 2, 16, vocabulary=8192),
    "g": Cell(dense(1000, 2), linear, (1000,), 2, 4096),
}


# --- steps -----------------------------------------------------------------------------------------------------------


def _step(cell: Cell, update: Callable[..., tuple[Params, Any]], state: Any) -> Callable[[], None]:
    """Steps of ``update(params, batch, state) -> (gradient, state)``, compiled, on one fixed batch."""

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Params, state: Any, batch: tuple[jax.Array, jax.Array]) -> tuple[Params, Any]:
        grads, state = update(params, batch, state)
        return jax.tree.map(lambda p, g: p - LR * g, params, grads), state

    batch, held = cell.rows(), [(cell.params(), state)]

    def run() -> None:
        held[0] = jax.block_until_ready(step(*held[0], batch))

    return run


def plain(cell: Cell) -> Callable[[], None]:
    """JAX without privacy."""

    def mean(params: Params, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jax.vmap(cell.loss, (None, 0, 0))(params, *batch).mean()

    return _step(cell, lambda params, batch, state: (jax.grad(mean)(params, batch), state), ())


def private(cell: Cell) -> Callable[[], None]:
    """JAX Privacy: clipped gradients and Gaussian noise."""
    clipped = clipping.clipped_grad(
        cell.loss, l2_clip_norm=CLIP, batch_argnums=(1, 2), keep_batch_dim=False, normalize_by=cell.batch
    )
    noise = noise_addition.gaussian_privatizer(stddev=NOISE * CLIP / cell.batch, prng_key=0)
    return _step(
        cell, lambda params, batch, state: noise.update(clipped(params, *batch), state), noise.init(cell.params())
    )


IMPLEMENTATIONS = {"plain JAX, compiled": plain, "JAX Privacy, compiled": private}
