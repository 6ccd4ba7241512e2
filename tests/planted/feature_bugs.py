"""Bugs of features: what other images, or the data themselves, decide; and trainings that no share pays for."""

from dataclasses import replace

import numpy as np

from tacita.oracles.payment import Payment
from tacita.tables import extraction, moments
from tests.planted.plant import bug, put, swap

EXTRACTION = "tests/tables/test_extraction.py::"
MOMENTS = "tests/tables/test_moments.py::"


@bug(24, caught_by=[EXTRACTION + "test_no_other_image_shows_in_the_features_of_one"])
def images_centred_by_their_own_mean():
    """Each pixel is centred by its mean over all images, before any query."""
    each = extraction.extracted

    def centred(transform, pixels, lower, upper):
        mean = pixels.mean(0) if len(pixels) else 0
        return each(transform, np.clip(pixels - mean + upper / 2, lower, upper), lower, upper)

    swap(each, centred)


@bug(18, caught_by=[MOMENTS + "test_a_record_moves_the_sums_by_at_most_the_thresholds"])
def moments_without_thresholds():
    """The means and squares of a record are not clipped at the thresholds that the noise is for."""
    clipper = moments.PerLayerClipper

    def loose(*, max_grad_norm):
        return clipper(max_grad_norm={name: 1e6 * norm for name, norm in max_grad_norm.items()})

    put(moments, "PerLayerClipper", loose)


@bug(caught_by=[MOMENTS + "test_a_session_is_bound_to_both_thresholds"])
def moments_of_other_thresholds():
    """A session that was registered for one threshold of means or squares may be used with another."""
    session_for = Payment.session_for

    def unbound(self, *args, bound, **rest):
        forgotten = ("max_mean_norm", "max_square_norm")
        kept = replace(self, settings={n: x for n, x in self.more_settings.items() if n not in forgotten})
        bound = {name: one for name, one in bound.items() if name != "program"}  # which holds both, too
        return session_for(kept, *args, bound=bound, **rest)

    put(Payment, "session_for", unbound)


@bug(caught_by=[MOMENTS + "test_a_session_is_bound_to_the_scale"])
def moments_of_another_scale():
    """A query for moments may be redone with another scale: other values under the same noise."""
    session_for = Payment.session_for

    def unbound(self, *args, bound, **rest):
        kept = replace(self, settings={n: x for n, x in self.more_settings.items() if n != "scale"})
        return session_for(kept, *args, bound=bound, **rest)

    put(Payment, "session_for", unbound)
