"""Several processes: the ranks of a process group share the rows of each batch, and maybe the shards of the model.

The core knows one process (``tacita.gradients.processes``), and imports this room where it is given another.
"""

from tacita.distributed.serving import ServingRanks

__all__ = ["ServingRanks"]
