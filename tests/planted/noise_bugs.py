"""Bugs of noise and keys: too little noise, the same noise twice, noise that can be guessed."""

import math
import secrets
import sys
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch

from tacita import _box_muller
from tacita.adaptive_clipping import BELOW
from tacita.ledger.registry import SessionRegistry
from tacita.mechanisms import GaussianMechanism
from tacita.oracles import GradientOracle, ReleaseGate
from tacita.random import Key, Randomness, Stream
from tests.planted.plant import bug, put, swap

GAUSSIAN = "tests/mechanisms/test_gaussian.py::"
ORACLE = "tests/oracles/test_gradient_oracle.py::"
LINE = "tests/oracles/test_gate.py::"
RANDOM = "tests/test_random.py::"
STREAM = "tests/test_stream.py::"
THREADS = "tests/oracles/test_threads.py::"

STATED_NOISE = ORACLE + "test_release_is_the_clipped_sum_plus_the_stated_noise"
NO_NOISE_TWICE = LINE + "test_no_noise_is_used_twice"


@bug(20, caught_by=[STATED_NOISE])
def noise_of_the_mean_on_the_sum():
    """The noise of the mean is added to the sum."""
    build = GradientOracle._build

    def built(self, *args, **settings):
        build(self, *args, **settings)
        self.gate.noise_std = {block: std / self.divisor for block, std in self.noise_std.items()}

    put(GradientOracle, "_build", built)


@bug(
    20,
    caught_by=[GAUSSIAN + "test_blocks_share_one_noise_multiplier", ORACLE + "test_per_layer_blocks_share_the_noise"],
)
def layers_noised_as_the_largest():
    """The noise of several layers is that of the largest alone, not of all together."""

    def noise_std(self, bounds, sizes):
        return dict.fromkeys(bounds, self.noise_multiplier * max(bounds.values()))

    put(GaussianMechanism, "noise_std", noise_std)


@bug(26, caught_by=[STATED_NOISE])
def noise_in_half_precision():
    """Noise is rounded to bfloat16."""
    whole = ReleaseGate._normals

    def coarse(self, query):
        draw = whole(self, query)
        return lambda block, like: {name: z.bfloat16().to(z.dtype) for name, z in draw(block, like).items()}

    put(ReleaseGate, "_normals", coarse)


@bug(26, caught_by=[STREAM + "test_noise_of_few_bits_is_refused"])
def half_precision_offered():
    """A stream gives bfloat16 noise to whoever asks."""
    whole = Stream.normals

    def obliging(self, shape, *, dtype=torch.float32, **more):
        return whole(self, shape, dtype=dtype if dtype == torch.float64 else torch.float32, **more).to(dtype)

    put(Stream, "normals", obliging)


def noise_from(stream: Callable[[ReleaseGate, int, str], Stream]) -> None:
    """Let the noise of a query's block come from ``stream(gate, query, block)``."""

    def normals(self, query):
        def draw(block, like):
            sizes, dtype = [x.numel() for x in like.values()], next(iter(like.values())).dtype
            flat = stream(self, query, block).normals(sum(sizes), dtype=dtype)
            return {name: z.view(x.shape) for (name, x), z in zip(like.items(), flat.split(sizes), strict=True)}

        return draw

    put(ReleaseGate, "_normals", normals)


@bug(34, caught_by=[NO_NOISE_TWICE])
def same_noise_in_every_query():
    """The noise does not depend on the number of the query."""
    noise_from(lambda gate, query, block: gate._randomness.key.stream(gate.session.id, "noise", 0, block))


@bug(34, caught_by=[NO_NOISE_TWICE])
def same_noise_in_every_block():
    """Two blocks of one release get the same noise."""
    noise_from(lambda gate, query, block: gate._randomness.key.stream(gate.session.id, "noise", query, "all"))


@bug(34, caught_by=[NO_NOISE_TWICE])
def same_noise_in_every_session():
    """Two sessions of one key draw the same noise."""
    noise_from(lambda gate, query, block: gate._randomness.key.stream("any", "noise", query, block))


@bug(34, 43, caught_by=[NO_NOISE_TWICE, STATED_NOISE])
def same_noise_after_a_resume():
    """Noise comes from the session's own key, which no checkpoint moves on."""
    noise_from(lambda gate, query, block: gate._randomness.session_key(gate.session.id).stream("noise", query, block))


@bug(34, caught_by=[STATED_NOISE])
def noise_from_the_coins():
    """Noise and the coins of the batch are read from one stream."""
    noise_from(lambda gate, query, block: gate.coins.for_query(query))


@bug(48, caught_by=["tests/oracles/test_gate.py::test_a_matching_line_is_the_identical_release_and_free"])
def fresh_noise_under_the_same_number():
    """A redone query gets fresh noise on the same batch, and no charge."""
    noise_from(lambda gate, query, block: Key.system().stream("noise"))


@bug(34, caught_by=[STATED_NOISE, NO_NOISE_TWICE])
def same_noise_in_every_parameter():
    """The stream starts anew for each parameter."""
    whole = ReleaseGate._normals

    def normals(self, query):
        return lambda block, like: {name: whole(self, query)(block, {name: x})[name] for name, x in like.items()}

    put(ReleaseGate, "_normals", normals)


@bug(34, caught_by=[LINE + "test_two_oracles_cannot_draw_the_same_noise", RANDOM + "test_a_name_is_taken_once"])
def one_name_for_two_oracles():
    """Two oracles draw under one name, and so the same noise for different sums."""
    put(Randomness, "claim", lambda self, session, *, ledger, resumed=False: self.name_for(session, ledger))


@bug(
    60,
    caught_by=[
        THREADS + "test_no_number_has_its_noise_on_two_values",
        THREADS + "test_a_state_counts_every_query",
        THREADS + "test_a_stationary_test_answers_one_thread_at_a_time",
    ],
    may_wait=True,
)
def queries_of_two_threads_at_once():
    """Two threads ask one oracle, and one number's noise stands on the values of both."""
    whole = ReleaseGate.__init__

    def built(self, *args, **more):
        whole(self, *args, **more)
        self.lock = nullcontext()

    put(ReleaseGate, "__init__", built)


@bug(60, caught_by=[THREADS + "test_sessions_of_many_threads_stand_in_one_intact_ledger"])
def lines_of_two_threads_at_once():
    """Two threads write the ledger, and a line is lost or two have one number."""
    whole = SessionRegistry.__init__

    def built(self, *args):
        whole(self, *args)
        self.lock = nullcontext()

    put(SessionRegistry, "__init__", built)


@bug(35, caught_by=[RANDOM + "test_a_system_key_is_256_bits_of_the_system"])
def key_of_31_bits():
    """A key comes from a seed of 31 bits."""
    put(Key, "system", classmethod(lambda cls: cls(cls.insecure(secrets.randbits(31))._secret, secure=True)))


@bug(
    38,
    caught_by=[
        STREAM + "test_the_float64_tail_reaches_8_5_sigma_and_no_word_gives_an_infinity",
        STREAM + "test_float64_normals_are_box_muller_of_the_words",
    ],
)
def normals_from_24_bits():
    """Uniforms of 24 bits: the tail of the noise ends at 5.8 standard deviations."""

    def coarse(out, words):
        pairs = words.reshape(-1, 2, 512)
        radius = np.sqrt(-2 * np.log((pairs[:, 0] + 2.0**23 + 1) * 2.0**-24))
        angle = pairs[:, 1] * math.pi * 2.0**-23
        values = out.reshape(-1, 2, 512)
        values[:, 0], values[:, 1] = radius * np.cos(angle), radius * np.sin(angle)

    def filled(fill, dtype, count):
        words = np.empty(count, dtype)
        fill(words.view(np.uint8))
        return words

    swap(_box_muller.fill_float64, lambda out, fill: coarse(out, filled(fill, "<i8", len(out)) >> 40))


@bug(38, caught_by=["tests/ledger/test_statement.py::test_it_can_be_read_by_an_officer"])
def floating_point_not_mentioned():
    """The statement does not say that attacks on floating-point noise are out of its scope."""
    module = sys.modules["tacita.ledger.statement"]  # the function of that name hides it
    put(module, "CAVEATS", tuple(caveat for caveat in module.CAVEATS if "floating" not in caveat))


@bug(caught_by=["tests/oracles/test_adaptive_clipping.py::test_the_contract"])
def count_of_adaptive_clipping_without_noise():
    """The count that the threshold follows is released as it is, beside a noisy sum."""
    whole = GaussianMechanism.__call__

    def call(self, values, noise_std, normals):
        released = whole(self, values, noise_std, normals)
        for block, tensors in values.items():
            if BELOW in tensors:
                released[block][BELOW] = tensors[BELOW]
        return released

    put(GaussianMechanism, "__call__", call)
