"""Fixed features of images: computed record by record from public settings, so that they cost no privacy."""

from tacita.features.extraction import scattering as scattering
from tacita.features.normalization import FixedNormalization as FixedNormalization
from tacita.features.scattering import Scattering as Scattering
from tacita.features.typical_sizes import typical_sizes as typical_sizes
