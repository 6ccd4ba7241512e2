"""Bugs of engines, clipping and estimators: one record adds more than is stated, or something else than itself."""

from contextlib import contextmanager, nullcontext

import torch

from tacita import _validate
from tacita.clipping import flat
from tacita.errors import UnsupportedModuleError
from tacita.estimators import ClippedSum
from tacita.gradients import (
    LoopEngine,
    NetworkSource,
    ProgramEngine,
    batches,
    data,
    engine_choice,
    functional,
    network_source,
    record_batch,
    weighted_sums,
)
from tacita.gradients.chunked import ChunkedEngine
from tacita.gradients.program import check, run, writer
from tacita.gradients.program import engine as program
from tacita.gradients.rules import convolution, normalization, outer, rounding
from tacita.gradients.rules import uses as ghost
from tacita.oracles import GradientOracle, gradient_oracle
from tests.planted.plant import bug, put, swap

ORACLE = "tests/oracles/test_gradient_oracle.py::"
CLIPPING = "tests/clipping/test_contract.py::"
CLIPPED_SUM = "tests/estimators/test_clipped_sum.py::"
SCAN = "tests/gradients/test_scan.py::"
SOURCE = "tests/gradients/test_network_source.py::"
ROWS = "tests/gradients/test_weighted_sums.py::"
LOOP = "tests/gradients/test_loop.py::"
GHOST = "tests/gradients/program/test_engine.py::"
HOSTILE_MODELS = "tests/gradients/test_hostile_models.py::test_no_model_lets_a_record_move_more_than_its_share"
RULES = "tests/gradients/test_batching_rules.py::test_what_sees_the_batch_is_refused"
GHOST_RULES = "tests/gradients/rules/test_layer_rules.py::"
MARGINS = "tests/gradients/rules/test_margins.py::"
GROUP_NORM = "tests/gradients/rules/test_group_norm.py::"
RECORDED = "tests/gradients/program/test_early_norms.py::"
CHOICE = "tests/gradients/test_engine_choice.py::"
PATCHES = "tests/gradients/rules/test_patch_gram.py::"

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


@bug(24, caught_by=[SOURCE + "test_a_mode_that_mixes_samples_is_refused_later_too"])
def mode_checked_only_once():
    """A module put back into training mode after the source was built is not seen."""
    put(network_source, "check_modules", lambda model: None)
    put(NetworkSource, "_try_again", lambda self, params: None)


@bug(24, caught_by=[SCAN + "test_a_loss_that_keeps_something_outside_of_the_model_is_refused"])
def loss_with_a_memory_accepted():
    """A loss keeps what it computed on one batch in a tensor outside of the model, and uses it on the next."""
    put(engine_choice, "_check_repeats", lambda *args: None)


@bug(26, 39, caught_by=[CLIPPING + "test_contract"])
def weight_rounded_to_nearest():
    """A clip factor is rounded to the nearest number, so that half of the samples exceed the threshold."""

    def nearest(threshold, exact, dtype, device):
        limit = torch.as_tensor(threshold, dtype=torch.float64, device=device).to(exact)
        return limit, limit

    swap(flat._bounds, nearest)


@bug(26, 39, caught_by=[ROWS + "test_round_down_never_exceeds"])
def weight_rounded_up_when_narrowed():
    """A float64 weight becomes the nearest float32."""
    swap(weighted_sums.round_down, lambda weights, dtype: weights.to(dtype))


@bug(39, caught_by=[ROWS + "test_a_clipped_row_stays_within_the_threshold_in_its_own_dtype"])
def no_room_for_the_product():
    """The room for rounding is that of float64, in which norms are, while rows are weighted in float32."""
    swap(weighted_sums.with_room, lambda weights, dtype: weights)


@bug(26, 39, caught_by=[ROWS + "test_autocast_does_not_round_the_sum"])
def sums_under_autocast():
    """Weighted sums are taken in bfloat16 or TF32 where the user's training loop is."""
    swap(weighted_sums.full_precision, lambda device: nullcontext())


@bug(27, caught_by=[SOURCE + "test_other_parameters_than_those_at_the_start_are_refused"])
def parameters_frozen_in_silence():
    """Parameters frozen (or freed) after the oracle was built change what is clipped."""
    put(NetworkSource, "_refuse", lambda self, params: None)


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

    def apart(self, name):
        parts = [named.rule.grads(named.use.only((local,)))[local] for named, local in self._meeting[name]]
        return sum(ghost.squared_norm_of(part, rounding_margin=self._margin) for part in parts)

    put(ghost.Uses, "_shared", apart)


@bug(28, caught_by=[LOOP + "test_tied_parameters_appear_once_with_their_total_gradient"])
def one_use_of_a_tied_weight_missed():
    """Only one of the two places of a tied weight is differentiated."""
    walk = functional.ModuleTree.__init__

    def blind(self, model):
        walk(self, model)
        last = self.modules[-1][1]._parameters
        self.places = [place for place in self.places if place[0] is not last]

    put(functional.ModuleTree, "__init__", blind)


@bug(29, caught_by=[SOURCE + "test_a_layer_not_used_in_a_step_leaves_nothing_of_an_earlier_one"])
def stale_norms():
    """A layer that is not used in a step keeps the norms and gradients of the step before."""
    whole, seen = ProgramEngine._found, {}

    def remembering(self, *args):
        found = whole(self, *args)
        seen.update({tuple(named.parameters.values()): named for named in found})
        return list(seen.values())

    put(ProgramEngine, "_found", remembering)


@bug(30, caught_by=[ORACLE + "test_backward_assigns_and_never_adds"])
def gradient_added_to_the_last():
    """A step's gradient is added to what was there."""
    assign = GradientOracle.backward

    def adding(self, **words):
        before = {p: p.grad for p in self.source.model.parameters() if p.grad is not None}
        release = assign(self, **words)
        for p, grad in before.items():
            p.grad = p.grad + grad
        return release

    put(GradientOracle, "backward", adding)


@bug(39, 47, caught_by=[GHOST_RULES + "test_contract[linear_gram]"])
def ghost_norms_without_their_margin():
    """Ghost norms are reported as computed, without the term that their rounding can hide."""
    put(ProgramEngine, "rounding_margin", False)


@bug(47, caught_by=[GHOST_RULES + "test_contract[linear_gram]"])
def gram_norms_cancel():
    """A Gram norm is believed where its rounding has cancelled it."""

    def gram(a, d):
        return ((a @ a.mT) * (d @ d.mT)).sum(dim=(1, 2)).double().clamp(min=0.0)

    swap(outer.gram_squares, gram)


@bug(47, caught_by=[PATCHES + "test_norms_are_upper_bounds_where_positions_cancel"])
def patches_cancel():
    """Inner products of patches are believed where their rounding has cancelled the norm."""

    def believed(of_a, of_d, again, *, roundings):
        return (of_a.products * of_d.products).sum(dim=(1, 2)).double()

    swap(convolution.squares_of_grams, believed)


@bug(47, caught_by=[MARGINS + "test_the_term_of_a_gram_norm_pays_for_the_worst_errors_of_its_inner_products[coherent]"])
def gram_term_of_one_factor():
    """Of a Gram norm's two factors only one is taken for rounded."""
    whole = outer._term_constants

    def of_inputs_alone(*given):
        constants = whole(*given)
        return (*constants[:5], 0.0, *constants[6:])

    swap(whole, of_inputs_alone)


@bug(42, caught_by=[SOURCE + "test_method_and_refusals_do_not_tell_whether_there_is_a_record"])
def shapes_from_the_first_record():
    """Method and refusals, which are public, depend on whether there is a record at all."""
    put(data.ArrayRows, "like", lambda self: self.fetch(data._FIRST, 0) if self.num_rows else None)


@bug(75, caught_by=[SOURCE + "test_augmentation_of_a_record_does_not_depend_on_the_others"])
def augmentation_by_position():
    """What a record's augmentation draws depends on its place in the batch, which one absent record moves."""

    def fetch(self, indices, seed):
        with data.generators_kept():
            items = []
            for position, index in enumerate(indices):
                data.seed_generators(data.derived_seed(seed, "record", position))
                items.append(self._dataset[int(index)])
            return (self._collate_fn or batches.stacked)(items)

    put(data.ItemRows, "fetch", fetch)


@bug(52, caught_by=[GHOST + "test_uses_that_are_served[in_place_on_a_view]"])
def edges_of_views_lost():
    """What a model does in place on a view rewrites its history, and the layer's gradient is lost."""
    put(torch.Tensor, "_is_view", lambda self: False)


@bug(26, 39, caught_by=[RECORDED + "test_autocast_around_a_query_reaches_no_norm"])
def norms_taken_early_in_low_precision():
    """Norms that are taken during the backward pass are in bfloat16 or TF32 where the user's training loop is."""
    whole = ghost.norms_taken

    def careless(named, chosen):
        exact = put(ghost, "full_precision", lambda device: nullcontext())
        try:
            with torch.autocast("cpu", torch.bfloat16):
                return whole(named, chosen)
        finally:
            put(ghost, "full_precision", exact)

    put(program, "norms_taken", careless)


@bug(
    54,
    55,
    98,
    caught_by=[
        HOSTILE_MODELS + "[sort_one_layer_only-program-unscanned]",
        HOSTILE_MODELS + "[centre_by_the_batch-program-unscanned]",
    ],
)
def the_model_sees_the_batch():
    """The forward pass runs on the whole batch, and row i of every layer is credited to record i."""

    class Batch(record_batch.RecordBatch):
        def one(self, physical):
            return physical.squeeze(1) if physical.ndim > 1 and physical.shape[1] == 1 else physical

        def all(self, tensor):
            return tensor

        def differs(self, tensor):
            return isinstance(tensor, torch.Tensor) and not (tensor.is_leaf and tensor.requires_grad)

    @contextmanager
    def whole_batch(size):
        yield Batch(size, 0)

    class Whole:
        def __init__(self, model, loss_fn, params, fixed, like):
            self.written, self.writes_record = set(), False
            self.given = model, loss_fn, [*params, *fixed], like

        def play(self, inputs, each_its_own):
            model, loss_fn, names, like = self.given
            rows = inputs[len(names) :]
            _, rebuild = batches.flatten(like, len(batches.tensors_in(like)[0]))
            tensors = dict(zip(names, inputs, strict=False))
            whole = rebuild(rows)
            return [functional.losses_at(model, loss_fn, tensors, whole, len(rows[0]))]

    swap(record_batch.records, whole_batch)
    swap(writer.written_down, Whole)
    put(engine_choice.MethodChoice, "_obstacle", lambda *args, **more: "")
    put(run, "check_rows", lambda *args: None)


@bug(52, caught_by=[CHOICE + "test_a_program_that_differs_from_the_loop_is_refused"])
def fast_engine_not_tried():
    """A fast engine is used without having been compared with the loop."""
    swap(engine_choice._difference, lambda pairs: "")


@bug(58, caught_by=[SOURCE + "test_a_record_is_collated_without_the_others"])
def records_collated_together():
    """A collate_fn of the user's sees all records of a physical batch, and pads them to the longest."""

    def fetch(self, indices, seed):
        return self._collate_fn([self._item(int(i), seed) for i in indices])

    put(data.ItemRows, "fetch", fetch)


@bug(53, caught_by=[SOURCE + "test_a_model_that_writes_its_batch_leaves_the_data_set_as_it_is"])
def data_set_lent_to_models_that_write():
    """A model that writes its batch in place gets the data set's own memory, so that later queries read other rows."""
    put(check, "written_by", lambda node: [])
    put(writer._Writer, "check_written", lambda self, tensor: None)


@bug(56, caught_by=[GHOST + "test_a_very_long_row_is_not_carried_past_a_small_threshold"])
def long_rows_beside_what_underflows():
    """A weight times an output gradient is a subnormal number, rounded up, and the input that it meets is 1e37 long."""
    put(rounding, "LARGEST_SQUARE", torch.inf)


@bug(39, caught_by=[GHOST + "test_no_threshold_lets_subnormal_factors_pass"])
def thresholds_as_small_as_subnormal_factors():
    """A threshold is so small that a weighted factor of a gradient is subnormal, and the other factor 2^63 long."""
    put(_validate, "LEAST_THRESHOLD", 2.0**-100)


@bug(54, caught_by=[GROUP_NORM + "test_each_image_has_the_scale_of_its_record"])
def scales_of_a_group_norm_in_the_order_of_images():
    """Copies of a group norm's scale stand first image by first image, so that records hold each other's gradients."""
    swap(normalization._for_each_image, lambda copy, images: copy.repeat(images, 1).flatten())


@bug(54, caught_by=[GROUP_NORM + "test_a_record_moves_its_share_whatever_the_strides"])
def strides_of_a_group_norm_forgotten():
    """The kernel of a group norm reads a view as if it had no gaps, and so credits positions to other records."""
    swap(normalization._in_order, lambda tensor, *shape: tensor.reshape(shape))


@bug(59, caught_by=[SOURCE + "test_no_message_counts_the_records_of_a_batch"])
def messages_count_records():
    """The message about a loss of the wrong shape says how many records the batch has."""

    def normal(self, chunk, *args):
        raise UnsupportedModuleError(f"something is wrong with these {chunk.size} samples")

    for kind in (ProgramEngine, LoopEngine):
        put(kind, "_chunk_sums", normal)


@bug(54, caught_by=[RULES + "[Compressed]"])
def saved_tensors_shown_to_hooks():
    """Hooks of the user's get the tensors that autograd saves of all records."""
    put(torch.autograd.graph, "disable_saved_tensors_hooks", lambda message: nullcontext())


@bug(58, caught_by=["tests/gradients/test_record_fields.py::test_a_record_names_its_fields_in_an_order_of_its_own"])
def fields_in_the_order_of_the_first_record():
    """The first record of a batch decides in which order a model's code meets the fields of all others."""
    put(data.ItemRows, "_arranged", lambda self, batch: batch)


@bug(caught_by=["tests/gradients/test_threads.py::test_no_thread_takes_the_tensors_of_another_for_the_model_s"])
def threads_do_not_take_turns():
    """A thread takes the tensors that another one has put into a model for the model's own, and leaves them there."""
    put(functional, "IN_TURN", nullcontext())
