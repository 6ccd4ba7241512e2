"""Callbacks that write a run into MLflow or TensorBoard: releases, public losses and epsilon, and no times.

    pip install '.[trackers]'; python examples/libraries/trackers.py

Both keep the time of every number. How long a step takes depends on how many records it drew, so the number of the step
is handed in for the time. MLflow still notes when a run began and ended: the time of the run as a whole.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import tacita


class Tracker(tacita.Callback):
    """What both have in common: which numbers are written, every ``every`` steps."""

    def __init__(self, every: int = 10):
        self.every = every

    def add(self, name: str, value: float, step: int) -> None:
        """Write one number."""
        raise NotImplementedError

    def on_step(self, releases: Sequence[tacita.Release], spent) -> None:
        length = torch.cat([value.flatten() for value in releases[-1].gradient.values()]).norm().item()
        self.add("noisy gradient", length, spent.queries)
        self.add("epsilon so far", spent.epsilon_so_far, spent.queries)

    def on_public_loss(self, loss: float, spent) -> None:
        self.add("loss on public data", loss, spent.queries)

    def on_end(self, spent) -> None:
        self.add("epsilon", spent.epsilon, spent.queries)


class TensorBoard(Tracker):
    """Write into a folder that ``tensorboard --logdir FOLDER`` shows."""

    def __init__(self, folder: str | Path, every: int = 10):
        super().__init__(every)
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder)

    def add(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step, walltime=step)

    def on_end(self, spent) -> None:
        super().on_end(spent)
        self._writer.close()


class MLflow(Tracker):
    """Write into a new run of an experiment."""

    def __init__(self, uri: str, experiment: str, every: int = 10):
        super().__init__(every)
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

        self._client = MlflowClient(uri)
        found = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if found is None else found.experiment_id
        self.run_id = self._client.create_run(number).info.run_id

    def add(self, name: str, value: float, step: int) -> None:
        self._client.log_metric(self.run_id, name, value, timestamp=step, step=step)

    def on_end(self, spent) -> None:
        super().on_end(spent)
        self._client.set_terminated(self.run_id)


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return one loss for each record, never their mean."""
    return (model(batch[0]).squeeze(1) - batch[1]).square()


def main(folder: Path, trackers: Sequence[Tracker]) -> tacita.Run:
    """Train a small model on made-up records, and write the run down."""
    torch.manual_seed(0)
    x = torch.randn(300, 4)
    run = tacita.fit(
        nn.Linear(4, 1),
        losses,
        (x[:200], x[:200].sum(1)),
        target_epsilon=3.0,
        target_delta=1e-4,
        epochs=2,
        num_records=200,
        expected_batch_size=20,
        public_data=(x[200:], x[200:].sum(1)),
        folder=folder,
        callbacks=trackers,
        progress=False,
    )
    print(run.statement)
    return run


if __name__ == "__main__":
    place = Path(tempfile.mkdtemp())
    try:
        both = [TensorBoard(place / "tensorboard"), MLflow(f"sqlite:///{place}/mlflow.db", "private")]
    except ModuleNotFoundError as missing:
        raise SystemExit(f'{missing.name} is not installed: pip install ".[trackers]" in the clone') from missing
    main(place / "run", both)
    print(f"written to {place}")
