"""Bugs of engines, clipping and estimators: one record adds more than is stated, or something else than itself."""

import functools
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from tacita.clipping import FlatClipper, PerLayerClipper, _rounding
from tacita.estimators import ClippedSum
from tacita.gradients import NetworkSource, data, functional, methods, precision, rows, scan, seeds
from tacita.gradients import source as source_module
from tacita.gradients.chunked import ChunkedEngine
from tacita.gradients.ghost import capture, outer, rounding
from tacita.gradients.ghost import engine as ghost
from tacita.oracles import GradientOracle, gradient_oracle
from tests.planted.plant import bug, put, swap

ORACLE = "tests/oracles/test_gradient_oracle.py::"
CLIPPING = "tests/clipping/test_contract.py::"
CLIPPED_SUM = "tests/estimators/test_clipped_sum.py::"
SCAN = "tests/gradients/test_scan.py::"
SOURCE = "tests/gradients/test_source.py::"
ROWS = "tests/gradients/test_rows.py::"
SEEDS = "tests/gradients/test_seeds.py::"
LOOP = "tests/gradients/test_loop.py::"
VMAP = "tests/gradients/test_vmap.py::"
GHOST = "tests/gradients/test_ghost_engine.py::"
GHOST_RULES = "tests/gradients/test_ghost_rules.py::"

MIXERS = [
    SCAN + "test_a_contrastive_loss_is_refused",
    SCAN + "test_a_module_of_the_users_that_mixes_samples_is_refused",
]
HOSTILE = ORACLE + "test_a_hostile_row_adds_at_most_the_threshold"
PHYSICAL = [ORACLE + "test_physical_batches_change_nothing_but_the_order_of_summation"]


@bug(21, caught_by=[CLIPPED_SUM + "test_each_sample_is_clipped_before_the_sum"])
def mean_clipped_instead_of_samples():
    """The average gradient of a batch is clipped, and then multiplied by the batch's size."""

    def clipped(self, engine, state):
        groups = self.clipper.groups(engine.shapes)
        sums = engine.weighted_sums(torch.ones_like, groups)
        (total,), size = sums.values, max(1, len(sums.norms))
        norm = torch.stack([(t / size).norm() for t in total.values()]).norm()
        weight = self.clipper.weights(norm.view(1, 1).double()).item()
        return {block: {name: weight * total[name] for name in names} for block, names in groups.items()}, state

    put(ClippedSum, "__call__", clipped)


@bug(21, caught_by=[SCAN + "test_wrappers_and_lazy_modules_are_refused"])
def data_parallel_accepted():
    """A wrapper that adds up the gradients of samples before they are clipped is accepted."""
    swap(scan._wrapper, lambda name, module: None)


@bug(22, caught_by=PHYSICAL)
def noise_for_each_physical_batch():
    """Every physical batch gets noise of its own."""
    whole = ChunkedEngine.weighted_sums

    def noisy(self, rule, groups):
        sums = whole(self, rule, groups)
        for values in sums.values:
            for total in values.values():
                total.add_(sum(torch.randn_like(total) for _ in self._chunks))
        return sums

    put(ChunkedEngine, "weighted_sums", noisy)


@bug(22, caught_by=PHYSICAL)
def threshold_changes_within_a_batch():
    """The clipping threshold doubles from one physical batch to the next."""
    whole = ChunkedEngine.weighted_sums

    def adaptive(self, rule, groups):
        calls = iter(range(10**6))

        def loosened(norms: Tensor) -> tuple[Tensor, ...]:
            factor = 2.0 ** next(calls)
            return tuple(factor * weights for weights in rows.weight_arrays(rule, norms))

        return whole(self, loosened, groups)

    put(ChunkedEngine, "weighted_sums", adaptive)


@bug(
    24,
    caught_by=[
        SCAN + "test_batch_norm_in_training_mode_is_refused_frozen_or_not",
        "tests/training/test_fit.py::test_batch_norm_is_refused_with_the_way_out",
    ],
)
def batch_norm_accepted():
    """Batch normalisation in training mode is not looked for."""
    swap(scan._batch_norm, lambda name, module: None)


@bug(24, caught_by=[SCAN + "test_batch_norm_in_training_mode_is_refused_frozen_or_not"])
def frozen_batch_norm_accepted():
    """Batch normalisation is only looked for where it has trainable parameters."""
    whole = scan._batch_norm

    def lenient(name, module):
        return whole(name, module) if any(p.requires_grad for p in module.parameters()) else None

    swap(whole, lenient)


@bug(24, caught_by=[SCAN + "test_a_buffer_that_a_forward_pass_changes_is_refused_and_stays_as_it_was"])
def mutable_buffer_accepted():
    """A module that remembers the data in a buffer is accepted."""
    swap(scan._changed, lambda names: ())


@bug(24, caught_by=[*MIXERS, SCAN + "test_attention_over_the_batch_axis_is_refused"])
def batch_mixing_accepted():
    """Nothing checks that a sample's loss is its own."""
    swap(scan._mixing, lambda model, loss_fn, probe: ())


@bug(24, caught_by=[SOURCE + "test_a_mode_that_mixes_samples_is_refused_later_too"])
def mode_checked_only_once():
    """A module put back into training mode after the source was built is not seen."""
    put(source_module, "check_modules", lambda model: None)


@bug(25, caught_by=[CLIPPING + "test_contract", HOSTILE])
def nan_keeps_its_weight():
    """A sample whose norm is NaN is not clipped: min(1, nan) is taken for 1."""

    def weights(threshold, norms):
        exact = norms.double()
        return torch.where(exact > threshold, _rounding.bounded_quotient(threshold, exact, norms.dtype), 1.0)

    swap(_rounding.clip_weights, weights)


@bug(25, caught_by=[VMAP + "test_a_hostile_row_of_weight_zero_is_absent"])
def zero_times_nan():
    """A sample of weight 0 is multiplied by it, and 0 times NaN is NaN."""
    put(rows, "_without_absent", lambda held, weights: held)


@bug(25, caught_by=[HOSTILE, GHOST + "test_a_hostile_row_leaves_the_others_alone"])
def zero_times_nan_in_the_ghost_engine():
    """The ghost engine takes no weight for absence, and 0 times NaN is NaN."""
    whole = ghost.row_weights
    swap(whole, lambda weights, dtype, norms=None: [replace(w, plain=True) for w in whole(weights, dtype, norms)])


@bug(26, 39, caught_by=[CLIPPING + "test_contract"])
def weight_rounded_to_nearest():
    """A clip factor is rounded to the nearest number, so that half of the samples exceed the threshold."""

    def quotient(threshold, norms, dtype):
        return torch.where(norms.isfinite(), threshold / norms, 0.0).clamp(max=torch.finfo(dtype).max).to(dtype)

    swap(_rounding.bounded_quotient, quotient)


@bug(26, 39, caught_by=[ROWS + "test_round_down_never_exceeds"])
def weight_rounded_up_when_narrowed():
    """A float64 weight becomes the nearest float32."""
    swap(rows.round_down, lambda weights, dtype: weights.to(dtype))


@bug(39, caught_by=[ROWS + "test_a_clipped_row_stays_within_the_threshold_in_its_own_dtype"])
def no_room_for_the_product():
    """The room for rounding is that of float64, in which norms are, while rows are weighted in float32."""
    swap(rows.with_room, lambda weights, dtype: weights)


@bug(26, 39, caught_by=[ROWS + "test_autocast_does_not_round_the_sum"])
def sums_under_autocast():
    """Weighted sums are taken in bfloat16 or TF32 where the user's training loop is."""
    swap(precision.full_precision, lambda device: nullcontext())


@bug(
    26,
    caught_by=[
        ROWS + "test_norms_of_millions_of_values_are_upper_bounds_and_tight",
        ROWS + "test_large_float32_values_do_not_overflow",
    ],
)
def norms_in_single_precision():
    """Squares are summed in the gradient's own precision."""
    put(rows, "_squared_norms", lambda held: held.square().cumsum(dim=-1)[..., -1].double())


@bug(26, caught_by=[VMAP + "test_sums_and_norms_are_float32_or_better"])
def sums_in_half_precision():
    """Clipped gradients are summed in the parameter's precision."""
    swap(rows.wide, lambda dtype: dtype)


@bug(27, caught_by=[ORACLE + "test_parameters_the_optimizer_misses_are_named_after_the_first_step"])
def parameters_left_out_in_silence():
    """Parameters that the optimizer does not hold stay as they are, and nobody is told."""
    put(gradient_oracle._UpdateCheck, "before", lambda self, params: None)


@bug(27, caught_by=[SOURCE + "test_other_parameters_than_those_at_the_start_are_refused"])
def parameters_frozen_in_silence():
    """Parameters frozen (or freed) after the oracle was built change what is clipped."""
    put(NetworkSource, "_check_params", lambda self, params: None)


@bug(28, caught_by=[ORACLE + "test_a_tied_weight_is_one_parameter"])
def tied_weight_counted_twice():
    """A parameter under two names is two parameters, each with the whole gradient."""

    def twice(model):
        return {name: p for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}

    swap(functional.trainable, twice)
    swap(gradient_oracle.trainable, twice)


@bug(28, caught_by=[GHOST + "test_equals_the_loop[transformer_tied-0-FlatClipper]"])
def uses_added_up_as_if_orthogonal():
    """The norm of a parameter used twice is that of its uses, without their inner product."""

    def apart(self, name, rounding_margin):
        parts = [named.rule.grads(named.use.only((local,)))[local] for named, local in self._meeting[name]]
        return sum(ghost.squared_norm_of(part, rounding_margin=rounding_margin) for part in parts)

    put(ghost.Uses, "_shared", apart)


@bug(28, caught_by=[LOOP + "test_tied_parameters_appear_once_with_their_total_gradient"])
def one_use_of_a_tied_weight_missed():
    """Only one of the two places of a tied weight is differentiated."""
    put(torch.func, "functional_call", functools.partial(torch.func.functional_call, tie_weights=False))


@bug(29, caught_by=[SOURCE + "test_a_layer_not_used_in_a_step_leaves_nothing_of_an_earlier_one"])
def stale_norms():
    """A layer that is not used in a step keeps the norms and gradients of the step before."""
    whole, seen = capture.capture, {}

    def remembering(model, loss_fn, params, chunk):
        seen.update({id(found.use.module): found for found in whole(model, loss_fn, params, chunk)})
        return list(seen.values())

    swap(whole, remembering)


@bug(30, caught_by=[ORACLE + "test_backward_assigns_and_never_adds"])
def gradient_added_to_the_last():
    """A step's gradient is added to what was there."""
    assign = GradientOracle.backward

    def adding(self):
        before = {p: p.grad for p in self.source.model.parameters() if p.grad is not None}
        release = assign(self)
        for p, grad in before.items():
            p.grad = p.grad + grad
        return release

    put(GradientOracle, "backward", adding)


@bug(
    33,
    caught_by=[
        SCAN + "test_a_loss_that_is_not_one_a_sample_is_refused",
        LOOP + "test_a_loss_of_the_wrong_shape_is_refused",
    ],
)
def mean_loss_accepted():
    """A loss that is one number for the batch is spread over its samples."""
    swap(functional.is_per_sample, lambda losses, size: True)


@bug(33, caught_by=[SCAN + "test_a_division_by_the_batch_size_is_refused"])
def loss_divided_by_the_batch_accepted():
    """A loss that is divided by a count over the batch (its tokens, say) is accepted."""
    swap(scan._number_matters, lambda model, loss_fn, probe: False)


@bug(20, caught_by=[CLIPPING + "test_contract"])
def layers_clipped_at_the_whole_threshold():
    """Each of L layers is clipped at C, while C / sqrt(L) is stated."""
    put(PerLayerClipper, "weights", lambda self, norms: _rounding.clip_weights(0.7, norms))


@bug(20, caught_by=[CLIPPING + "test_contract"])
def contribution_understated():
    """A clipper states half of what a sample can add."""
    put(FlatClipper, "max_contribution", lambda self, shapes: {"all": self.max_grad_norm / 2})


@bug(39, 47, caught_by=[GHOST_RULES + "test_contract[linear_gram]"])
def ghost_norms_without_their_margin():
    """Ghost norms are reported as computed, without the term that their rounding can hide."""
    put(ghost.GhostEngine, "rounding_margin", False)


@bug(39, 47, caught_by=[GHOST_RULES + "test_contract[linear_gram]"])
def rounding_taken_for_exact():
    """The bound on rounding errors, from which every margin of a norm follows, is zero."""
    swap(rounding.gamma, lambda terms, dtype: 0.0)


@bug(47, caught_by=[GHOST_RULES + "test_contract[linear_gram]"])
def gram_norms_cancel():
    """A Gram norm is believed where its rounding has cancelled it."""

    def gram(a, d, reach, *, rounding_margin=True):
        return ((a @ a.mT) * (d @ d.mT)).sum(dim=(1, 2)).double().clamp(min=0.0)

    swap(outer.gram_squares, gram)
    swap(outer.with_margin, lambda squares, reach, positions, dtype: squares)


@bug(35, caught_by=[SOURCE + "test_nobody_without_the_secret_knows_the_augmentation"])
def augmentation_known_to_all():
    """Augmentation follows from the record's index alone: one record removed changes what all others add."""

    def item(self, index, seed):
        seeds.seed_generators(seeds.derived_seed(0, "record", index))
        return self._dataset[index]

    put(data.ItemRows, "_item", item)


@bug(35, caught_by=[SOURCE + "test_nobody_without_the_secret_knows_the_augmentation"])
def augmentation_from_the_users_seed():
    """Records of a query without a seed are augmented by torch's generator, which the user has seeded."""
    swap(seeds.fresh_seed, torch.initial_seed)


@bug(35, caught_by=[SOURCE + "test_records_and_model_draw_apart"])
def one_stream_for_records_and_model():
    """The first record is augmented with the draws that its dropout is made from."""
    whole = seeds.derived_seed
    swap(whole, lambda *labels: whole(*(label for label in labels if label not in ("record", "chunk"))))


@bug(35, caught_by=[SEEDS + "test_seeds_alike_in_their_last_bits_are_different_seeds"])
def dropout_of_32_bits():
    """The generator that dropout draws from keeps 32 bits of its seed: all masks can be tried."""
    swap(seeds.fill, lambda generator, seed: generator.manual_seed(seed % 2**63))


@bug(42, caught_by=[SOURCE + "test_method_and_refusals_do_not_tell_whether_there_is_a_record"])
def shapes_from_the_first_record():
    """Method and refusals, which are public, depend on whether there is a record at all."""
    put(data.ArrayRows, "like", lambda self: self.fetch(data._FIRST, 0) if self.num_rows else None)


@bug(51, caught_by=[SOURCE + "test_labels_are_the_indices_whatever_their_position"])
def labels_by_position():
    """A record's label is its position in the batch, which one absent record moves."""
    whole = NetworkSource.engine

    def engine(self, *args, **settings):
        found = whole(self, *args, **settings)
        found._labels = torch.arange(len(found._labels))
        return found

    put(NetworkSource, "engine", engine)


@bug(52, caught_by=[GHOST + "test_an_in_place_operation_on_a_view_is_refused", GHOST + "test_uses_that_are_refused"])
def uses_not_counted():
    """A use of a layer that the hooks do not see is left out."""
    swap(capture._check_every_use_was_seen, lambda losses, names, calls: None)


@bug(52, caught_by=["tests/gradients/test_methods.py::test_an_engine_that_differs_from_the_loop_is_not_used"])
def fast_engine_not_tried():
    """A fast engine is used without having been compared with the loop."""
    swap(methods._difference, lambda engine, definition: "")
