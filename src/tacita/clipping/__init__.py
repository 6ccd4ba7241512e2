"""Weights from norms: what bounds the contribution of one sample."""

from tacita.clipping.automatic import AutomaticClipper as AutomaticClipper
from tacita.clipping.clipper import Clipper as Clipper
from tacita.clipping.flat import FlatClipper as FlatClipper
from tacita.clipping.per_layer import PerLayerClipper as PerLayerClipper
