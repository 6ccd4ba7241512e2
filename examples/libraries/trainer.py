"""A ``transformers.Trainer`` whose gradients come from a private oracle.

    pip install '.[transformers]'; python examples/libraries/trainer.py

The Trainer's loader counts steps, and its schedule, callbacks, logs and files work on what the oracle released. It
computes no loss of the records, and none is logged. Twenty records are drawn in expectation, ten are in memory at once.
"""

import torch
from torch import Tensor, nn

import tacita

try:
    import transformers  # pyright: ignore[reportMissingImports]

    from tacita.finetune import PrivateTrainer
except ModuleNotFoundError as missing:
    if __name__ != "__main__":
        raise
    raise SystemExit(f'{missing.name} is not installed: pip install ".[transformers]" in the clone') from missing


def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return one loss for each sequence, never their mean."""
    scores = model(input_ids=batch["tokens"], use_cache=False).logits
    return nn.functional.cross_entropy(scores[:, :-1].mT, batch["tokens"][:, 1:], reduction="none").mean(1)


def main(folder: str = "trained") -> tacita.Ledger:
    """Train a small GPT-2 on made-up sentences, and load it again as transformers does."""
    torch.manual_seed(0)
    shape = {"vocab_size": 40, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2, "use_cache": False}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    args = transformers.TrainingArguments(
        output_dir=folder, report_to="none", save_strategy="no", logging_steps=5, disable_tqdm=True,
        per_device_train_batch_size=10, gradient_accumulation_steps=2, num_train_epochs=1,
    )  # fmt: skip
    trainer = PrivateTrainer(
        model,
        args,
        train_dataset={"tokens": (torch.arange(200)[:, None] + torch.arange(8)) % 40},
        loss_fn=losses,
        num_records=200,
        target_epsilon=3.0,
        target_delta=1e-4,
        privacy_unit="one sentence",
    )
    trainer.train()
    trainer.save_model()
    print(trainer.statement())
    transformers.GPT2LMHeadModel.from_pretrained(folder)
    return trainer.oracle.ledger


if __name__ == "__main__":
    main()
