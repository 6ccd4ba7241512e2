"""Train a private classifier of handwritten digits and print what may be promised about it.

Run it with ``make demo``. The data, 1,797 images of 8 x 8 pixels, come with scikit-learn. Every fifth image is
declared public and only tests the model; the others are protected: the printed statement holds for each of them.
"""

import torch
from rich.console import Console
from sklearn.datasets import load_digits
from torch import Tensor, nn

import tacita

EPSILON, DELTA = 3.0, 1e-5


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the private images with their labels, and the public ones (every fifth, by position)."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32) / 16  # 16 is the largest value of the format
    labels = torch.tensor(labels)
    public = torch.arange(len(labels)) % 5 == 4
    return (images[~public], labels[~public]), (images[public], labels[public])


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return one loss for each sample."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels, reduction="none")


def main() -> float:
    console = Console()
    private, public = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    console.print(f"Training on private images of digits with epsilon {EPSILON:g}, delta {DELTA:g}.")
    run = tacita.fit(
        model,
        losses,
        private,
        target_epsilon=EPSILON,
        target_delta=DELTA,
        epochs=50,
        num_records=1440,  # a declared guess, because the true number is protected too
        expected_batch_size=720,
        max_grad_norm=1.0,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.25, momentum=0.9),
        privacy_unit="one image",
        public_data=public,  # its loss is shown along the way, and costs no privacy
    )
    images, labels = public
    accuracy = (model(images).argmax(1) == labels).double().mean().item()
    console.print(f"Accuracy on {len(labels)} public test images: [bold]{accuracy:.1%}[/bold]\n")
    console.print(run.statement.text, highlight=False, markup=False, soft_wrap=True)
    return accuracy


if __name__ == "__main__":
    main()
