"""Several processes: the ranks of a process group share the rows of each batch, and maybe the shards of the model.

The core knows one process (``tacita.gradients.processes``), and imports ``distributed.serving`` where it is given more.
"""
