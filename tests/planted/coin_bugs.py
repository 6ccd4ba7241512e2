"""Bugs of coins, of what user code may write, and of interrupts."""

from contextlib import contextmanager, nullcontext

from tacita.gradients import engine_choice, functional, loop, seeds
from tacita.gradients.program import writer
from tacita.ledger.journal import Journal
from tacita.oracles import gate, gradient_oracle
from tests.planted.plant import bug, put, swap

COINS = "tests/gradients/test_coins.py::"
WRITES = "tests/gradients/test_writes.py::"
INTERRUPTS = "tests/oracles/test_interrupts.py::"
SHARED = COINS + "test_draws_that_records_share_are_refused_by_programs"


@bug(81, caught_by=[SHARED + "[features_of_a_fresh_generator]", SHARED + "[mask_of_a_seed]"])
def draws_are_not_looked_at():
    """A program holds any draw, whatever it comes from and whoever has seeded it."""
    put(
        writer._Below,
        "__torch_dispatch__",
        lambda self, func, types, args=(), kwargs=None: func(*args, **kwargs or {}),
    )
    put(writer, "nothing_drawn", nullcontext)


@bug(82, caught_by=[COINS + "test_generators_of_the_user_are_refused[RandomState, of the model-loop]"])
def generators_of_ones_own_accepted():
    """A generator that model or loss own goes on from one query to the next."""
    put(engine_choice, "_check_repeats", lambda *args: None)


@bug(
    82,
    caught_by=[
        COINS + "test_coins_of_the_loop_are_secret",
        COINS + "test_no_generator_tells_how_many_records_were_drawn",
    ],
)
def only_torch_is_seeded():
    """Python's and NumPy's generators stay as the user left them, and go on."""

    @contextmanager
    def kept(device=seeds._CPU):
        with seeds.torch.random.fork_rng(devices=[]):
            yield

    swap(seeds.generators_kept, kept)
    swap(seeds.seed_generators, lambda seed, device=seeds._CPU: seeds.fill(seeds.torch.default_generator, seed))


@bug(75, 82, caught_by=[COINS + "test_and_the_loop_serves_them_with_coins_by_record"])
def coins_of_the_loop_by_position():
    """A record's coins in the loop follow its place in the batch."""

    def by_place(self, chunk, row):
        seeds.seed_generators(seeds.derived_seed(self.seed or 0, "model", row), self._device)

    put(loop.LoopEngine, "_seed_record", by_place)


@bug(
    53,
    85,
    caught_by=[
        WRITES + "test_a_refused_embedding_is_not_rescaled",
        WRITES + "test_nothing_that_is_written_stays_in_the_model",
    ],
)
def user_code_gets_the_models_own_tensors():
    """The model's own parameters and buffers are handed to its code."""
    put(functional, "_copy", lambda tensor: tensor.detach())


@bug(85, caught_by=[WRITES + "test_nothing_that_is_written_stays_in_the_model[unscanned-by_a_list-loop]"])
def containers_keep_what_was_put_in():
    """A list of the model keeps what a refused pass has appended."""
    put(functional, "_FILLED", ())


@bug(85, caught_by=[INTERRUPTS + "test_a_query_recovers_from_an_interrupt_at_any_line"])
def an_interrupted_line_is_forgotten():
    """A gate that an interrupt left half done is neither finished nor taken back."""
    put(Journal, "settle", lambda self: None)


@bug(85, caught_by=[INTERRUPTS + "test_a_query_recovers_from_an_interrupt_at_any_line"])
def asking_for_ever():
    """A flag says that a query is under way, also after an interrupt."""
    swap(gate._is_running, lambda call: call is not None)


@bug(
    20, caught_by=["tests/oracles/test_gradient_oracle.py::test_a_threshold_that_is_changed_after_the_build_is_refused"]
)
def thresholds_may_change():
    """A clipper whose threshold was changed after the build is used as it is."""
    put(gradient_oracle.GradientOracle, "_check_bounds", lambda self: None)
