"""A ``transformers.Trainer`` whose gradients come from a private oracle.

    pip install '.[transformers]'; python examples/libraries/trainer.py

The records are the oracle's. The Trainer is handed none: its loader counts steps, and its schedule, callbacks, logs and
checkpoints work on what the oracle released. It computes no loss of the records, and none is logged.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import tacita

try:
    import transformers  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as missing:
    if __name__ != "__main__":
        raise
    raise SystemExit(f'{missing.name} is not installed: pip install ".[transformers]" in the clone') from missing


class PrivateTrainer(transformers.Trainer):
    """Take each step with a release of ``oracle``: one query a step, for as many steps as are planned.

    Args:
        oracle: A gradient oracle of ``model``, which holds the records.
        model: The model, as the oracle has it.
        args: ``transformers.TrainingArguments`` for one process, without gradient accumulation or half precision.
            ``max_steps`` becomes the oracle's plan. ``max_grad_norm`` clips the noisy gradient: 0 leaves it alone.
        others: What else a Trainer takes, but ``train_dataset``. ``eval_dataset`` must be public: its loss is shown.

    Raises:
        ValueError: A setting would take gradients from elsewhere than the oracle, or scale them.
    """

    def __init__(self, oracle: tacita.GradientOracle, model: nn.Module, args: transformers.TrainingArguments, **others):
        if others.get("train_dataset") is not None:
            raise ValueError("train_dataset must be left out: the records are the oracle's.")
        _check(args)
        if oracle.source.model is not model:
            raise ValueError("model must be the one that the oracle was built for, unwrapped.")
        self.oracle = oracle
        super().__init__(model=model, args=args, **others)
        self.args.max_steps = oracle.planned_queries

    def get_train_dataloader(self) -> DataLoader:
        """Count steps, in place of reading records."""
        steps: Any = [{} for _ in range(self.oracle.planned_queries)]
        return DataLoader(steps, batch_size=None)

    def train(self, resume_from_checkpoint=None, **others):
        """Train to the end of the plan. A Trainer's checkpoint knows nothing of a ledger, and cannot be continued."""
        if resume_from_checkpoint:
            raise ValueError("resume_from_checkpoint must be left out: tacita.fit(folder=...) has runs that continue.")
        return super().train(**others)

    def training_step(self, model: nn.Module, inputs: dict, num_items_in_batch=None) -> Tensor:
        """Ask the oracle for a gradient; it is in ``.grad`` afterwards. What is returned is no loss: there is none."""
        model.train()
        self.oracle.backward()
        return torch.zeros((), device=self.args.device)

    def log(self, logs: dict[str, float], *others, **named) -> None:
        """Log what is public: the constant in place of a loss is left out."""
        super().log(
            {name: value for name, value in logs.items() if name not in ("loss", "train_loss")}, *others, **named
        )


def _check(args: transformers.TrainingArguments) -> None:
    """Refuse what changes gradients on their way from the oracle to the optimizer, or takes a step more than once."""
    wanted = {"gradient_accumulation_steps": 1, "fp16": False, "world_size": 1, "deepspeed": None}
    wanted |= {"auto_find_batch_size": False}
    for name, value in wanted.items():
        if getattr(args, name, value) != value:
            raise ValueError(f"{name} must be {value}, got {getattr(args, name)!r}.")
    if args.n_gpu > 1 or args.fsdp:
        raise ValueError("args must be for one device: several would wrap the model. tacita has process_group=.")


def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return one loss for each sequence, never their mean."""
    scores = model(input_ids=batch["tokens"], use_cache=False).logits
    return nn.functional.cross_entropy(scores[:, :-1].mT, batch["tokens"][:, 1:], reduction="none").mean(1)


def main(folder: str = "trained") -> tacita.Ledger:
    """Train a small GPT-2 on made-up sentences, and load it again as transformers does."""
    torch.manual_seed(0)
    shape = {"vocab_size": 40, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2, "use_cache": False}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one sentence")
    oracle = tacita.ClippedGradientOracle(
        model.train(),
        losses,
        {"tokens": (torch.arange(200)[:, None] + torch.arange(8)) % 40},
        ledger=ledger,
        sampler=tacita.PoissonSampler(expected_batch_size=20, num_records=200),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.CalibratedGaussian(target_epsilon=3.0, target_delta=1e-4),
        planned_queries=10,
    )
    args = transformers.TrainingArguments(
        output_dir=folder, report_to="none", save_strategy="no", logging_steps=5, max_grad_norm=0.0, disable_tqdm=True
    )
    trainer = PrivateTrainer(oracle, model, args)
    trainer.train()
    trainer.save_model(folder)
    print(tacita.statement(ledger, 1e-4))
    transformers.GPT2LMHeadModel.from_pretrained(folder)
    return ledger


if __name__ == "__main__":
    main()
