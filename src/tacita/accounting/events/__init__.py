"""Events: what a session spends, by what it releases and how it samples records. Each kind of release has a file."""

from tacita.accounting.events.event import Event, NoiseSettings, Spend
from tacita.accounting.events.guarantee import Guarantee

__all__ = ["Event", "Guarantee", "NoiseSettings", "Spend"]
