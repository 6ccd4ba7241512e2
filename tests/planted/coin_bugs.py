"""Bugs of coins, of what user code may write, and of interrupts."""

from contextlib import contextmanager, nullcontext

from tacita.gradients import engine_choice, functional, seeds
from tacita.gradients.program import writer
from tests.planted.plant import bug, put, swap

COINS = "tests/gradients/test_coins.py::"
WRITES = "tests/gradients/test_writes.py::"
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


@bug(82, caught_by=[COINS + "test_generators_of_the_user_are_refused"])
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


@bug(85, caught_by=[WRITES + "test_nothing_that_is_written_stays_in_the_model[unscanned-by_a_list-loop]"])
def containers_keep_what_was_put_in():
    """A list of the model keeps what a refused pass has appended."""
    put(functional, "_FILLED", ())
