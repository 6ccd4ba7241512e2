"""Clippers: weights from norms, which bound the contribution of one sample."""

from tacita.clipping.automatic import AutomaticClipper as AutomaticClipper
from tacita.clipping.clipper import Clipper as Clipper
from tacita.clipping.flat import FlatClipper as FlatClipper
from tacita.clipping.flat import bounded_quotient as bounded_quotient
from tacita.clipping.flat import clip_weights as clip_weights
from tacita.clipping.per_layer import PerLayerClipper as PerLayerClipper
