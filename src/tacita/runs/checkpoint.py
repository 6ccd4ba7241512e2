"""Checkpoints: the whole state of a run in one file, as safetensors with JSON in the header. Nothing is pickled.

A checkpoint is private: it lies beside the key, and an oracle's state may hold raw gradients. Never share it; share the
model that a finished run writes.

It is whole, whatever ranks had shards of the model: they gather one shard after the other, and rank 0 keeps the result.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map, tree_map_with_path

from tacita._counted import counted
from tacita._files import replace_durably
from tacita._tree import with_tensors, without_tensors
from tacita.errors import ResumeError, UnsupportedModuleError
from tacita.gradients.processes import Processes, is_dtensor, is_sharded
from tacita.methods import ExponentialAverage, RandomIterate, SuffixAverage
from tacita.oracles import GradientOracle, trainable

FORMAT = "tacita checkpoint 1"
NO_WORDS: dict[str, str] = dict.fromkeys(("format", "layout", "head"), "")  # of tensors that stand alone


@dataclass
class TrainingState:
    """The parts of a run that a checkpoint saves and restores.

    Of parameters that the model does not train, which may be most of it, a checkpoint holds a digest: they are where
    the model came from.

    Attributes:
        model: The network; what it trains, and its buffers.
        optimizer: Any ``torch.optim`` optimizer.
        oracle: The oracle that answers the queries.
        average: Turns the iterates into the final model: an average, or one of them at random; ``None`` for the last.
        scheduler: A learning-rate scheduler, if there is one.
        optimizer_settings: Kind and settings of the optimizer, as it was built.
        optimizer_changes: For each resume with another optimizer, the number of queries made until then.
        public_losses: Pairs (queries made, mean loss on public data) so far.
        stopped: Whether the loss on public data has ended the run before the end of its plan.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    oracle: GradientOracle
    average: SuffixAverage | ExponentialAverage | RandomIterate | None = None
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
    optimizer_settings: str = field(init=False)
    optimizer_changes: list[int] = field(default_factory=list, init=False)
    public_losses: list[tuple[int, float]] = field(default_factory=list, init=False)
    stopped: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.optimizer_settings = described(self.optimizer) + _schedule(self.scheduler)

    @property
    def ranks(self) -> Processes:
        """The processes of the run."""
        return self.oracle.source.ranks

    @property
    def sharded(self) -> bool:
        """Whether this process has shards of the model."""
        return is_sharded(self.model)

    def to_tree(self) -> dict[str, Any]:
        """Return the state as nested dicts and lists of tensors, numbers and strings.

        Of a sharded model every rank calls this, and rank 0 alone has the whole tensors.

        Raises:
            UnsupportedModuleError: The optimizer keeps shards of another shape than their parameter's.
        """
        self._check_shards_of_optimizer()
        tree = {
            "model": self._tensors(),
            "frozen": self.frozen,
            "optimizer": self.optimizer.state_dict(),
            "oracle": self.oracle.state_dict() if self.ranks.leads else None,
            "average": None if self.average is None else self.average.state_dict(),
            "average_kind": type(self.average).__name__,
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "optimizer_settings": self.optimizer_settings,
            "optimizer_changes": self.optimizer_changes,
            "public_losses": self.public_losses,
            "stopped": self.stopped,
        }
        return self.gathered(tree)

    def gathered(self, tree: Any) -> Any:
        """Return a tree with its shards made whole, one after the other, for which every rank calls this.

        A whole tensor is on the CPU of rank 0; elsewhere ``None`` stands for it.
        """
        return tree_map(partial(whole, self.ranks), tree) if self.sharded else tree

    def from_tree(self, tree: Mapping[str, Any]) -> None:
        """Restore what :meth:`to_tree` returned; of a sharded model, this rank's shards of it.

        If the optimizer, its settings or its schedule differ from the checkpoint's, it starts anew from the
        checkpoint's parameters, and so does the scheduler. Its iterates differ, so that no query is redone: every
        number with a line stays paid for and is left behind, and each later query has a batch, noise and a charge of
        its own.

        Raises:
            ResumeError: The checkpoint is of another model, whose frozen parameters may differ alone; or of a run with
                another average of its iterates; or numbers would be left behind, and the event does not compose query
                by query.
        """
        tree = tree_map_with_path(self.shard_of, tree) if self.sharded else tree
        own = self._tensors_like(tree["model"])
        if tree.get("frozen", "") != self.frozen:
            raise ResumeError(
                "parameters that the model does not train differ from those that the run started with: restore them, "
                "or choose another folder."
            )
        if type(self.average).__name__ != tree["average_kind"]:
            raise ResumeError("the run was started with another average of its iterates: resume it with that one.")
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(tree["model"][name])
        self.oracle.load_state_dict(tree["oracle"])
        self.optimizer_changes = list(tree["optimizer_changes"])
        self.public_losses = [(int(made), float(loss)) for made, loss in tree.get("public_losses", ())]
        self.stopped = bool(tree.get("stopped", False))
        if self.average is not None:
            self.average.load_state_dict(tree["average"])
        if tree["optimizer_settings"] != self.optimizer_settings:
            self.oracle.gate.redo_nothing()
            self.optimizer_changes.append(self.oracle.gate.position)
            return
        self._restore_optimizer(tree)

    def take_over(self, tree: Mapping[str, Any]) -> None:
        """Take over what rank 0 has restored: the model, and unless they start anew, optimizer, scheduler, average.

        Args:
            tree: These parts of rank 0's :meth:`to_tree`; of tensors that are sharded here, the shards.
        """
        with torch.no_grad():
            for name, value in self._tensors_like(tree["model"]).items():
                value.copy_(tree["model"][name])
        if self.average is not None:
            self.average.load_state_dict(tree["average"])
        if "optimizer" in tree:
            self._restore_optimizer(tree)

    @cached_property
    def frozen(self) -> str:
        """SHA-256 of the parameters that the model does not train, read once, by all ranks at once; empty without."""
        kept = {name: value.detach() for name, value in self.model.named_parameters() if not value.requires_grad}
        found = ((name, whole(self.ranks, kept[name]) if self.sharded else kept[name]) for name in sorted(kept))
        return _digest(NO_WORDS, ((name, value.cpu()) for name, value in found if value is not None)) if kept else ""

    def shard_of(self, path: Sequence[Any], value: Any) -> Any:
        """Return this rank's shard of a whole tensor that stands at ``path`` of a tree, as its parameter is sharded.

        Anything else is returned as it is: a count, or a tensor that belongs to no parameter or has another shape.
        """
        own: Any = None
        match [getattr(one, "key", None) for one in path]:
            case ["model", name] | ["average", "mean", name]:
                own = self._named.get(name)
            case ["optimizer", "state", int(number), _]:
                own = self._numbered[number]
        if not (isinstance(value, Tensor) and is_dtensor(own) and own.shape == value.shape):
            return value
        return self.ranks.shard(value.to(own.device), own)

    @cached_property
    def _named(self) -> dict[Any, Tensor]:
        return dict(self.model.named_parameters())

    @cached_property
    def _numbered(self) -> list[Tensor]:
        """The parameters as the optimizer numbers them."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _check_shards_of_optimizer(self) -> None:
        for p, state in self.optimizer.state.items():
            for name, value in state.items():
                if is_dtensor(value) and value.shape != p.shape:
                    raise UnsupportedModuleError(
                        f"the optimizer keeps {name!r} in shards of another shape than its parameter's, which a "
                        "checkpoint does not restore: train without folder, or with another optimizer."
                    )

    def _tensors(self) -> dict[str, Tensor]:
        return {**trainable(self.model), **dict(self.model.named_buffers())}

    def _tensors_like(self, saved: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the tensors that are saved, by name; raise ``ResumeError`` unless ``saved`` is of the same model."""
        own = self._tensors()
        if own.keys() != saved.keys():
            raise ResumeError("the checkpoint is of another model: parameters or buffers have other names.")
        other = [name for name, value in own.items() if not _alike(value, saved[name])]
        if other:
            raise ResumeError(f"the checkpoint is of another model: shape or dtype differ for {', '.join(other)}.")
        return own

    def _restore_optimizer(self, tree: Mapping[str, Any]) -> None:
        by_number = {int(number): value for number, value in tree["optimizer"]["state"].items()}  # of the parameter
        self.optimizer.load_state_dict({**tree["optimizer"], "state": by_number})
        if self.scheduler is not None and tree["scheduler"] is not None:
            self.scheduler.load_state_dict(_in_types_of(self.scheduler.state_dict(), tree["scheduler"]))

    def changes_in_words(self) -> list[str]:
        """Return the changes of the optimizer and an early end in words, for the statement."""
        stopped = (
            f"The run ended after {self.oracle.gate.position} of {self.oracle.planned_queries} planned queries, by the "
            "loss on data that the caller declares to be public. The guarantee is that of the whole plan."
        )
        return [stopped] * self.stopped + [
            f"The optimizer was changed when the run was resumed, after {counted(made, 'query')}: those made since "
            "the last checkpoint stay paid for, and were not redone."
            for made in self.optimizer_changes
        ]


def described(optimizer: torch.optim.Optimizer) -> str:
    """Return the kind and the settings of an optimizer in words, with the number of its parameters.

    Example:
        >>> described(torch.optim.SGD([torch.zeros(2)], lr=0.5))[:36]
        "SGD [{'dampening': 0, 'differentiabl"
    """
    plain = [
        {name: value.tolist() if isinstance(value, Tensor) else value for name, value in group.items()}
        for group in ({**group, "params": len(group["params"])} for group in optimizer.param_groups)
    ]
    return f"{type(optimizer).__name__} {[dict(sorted(group.items())) for group in plain]}"


def _schedule(scheduler: torch.optim.lr_scheduler.LRScheduler | None) -> str:
    """Return the kind and the settings of a scheduler in words; functions count as one, whatever they compute."""
    if scheduler is None:
        return ""
    return f" {type(scheduler).__name__} {json.dumps(scheduler.state_dict(), default=lambda one: type(one).__name__)}"


def save(path: Path, tree: Mapping[str, Any], head: Mapping[str, Any]) -> None:
    """Write ``tree`` and ``head`` (binding, anchor of the ledger, ...) to ``path`` atomically, with mode 0600."""
    tensors: dict[str, Tensor] = {}
    words = {"format": FORMAT, "layout": json.dumps(without_tensors(tree, tensors)), "head": json.dumps(dict(head))}
    metadata = {**words, "sha256": _digest(words, sorted(tensors.items()))}
    replace_durably(path, safetensors.torch.save(tensors, metadata), mode=0o600)


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return ``(tree, head)`` as read from ``path``.

    Raises:
        ResumeError: The file cannot be read as a checkpoint, or is damaged.
    """
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            # Tensors are copied, because Windows does not let the next checkpoint replace a file that is mapped.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a dict
        words = {name: metadata[name] for name in ("format", "layout", "head")}
        if words["format"] != FORMAT or metadata["sha256"] != _digest(words, sorted(tensors.items())):
            raise ValueError("another format, or damaged")
        return with_tensors(json.loads(metadata["layout"]), tensors), json.loads(metadata["head"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        raise ResumeError(f"{path.name} cannot be read as a checkpoint of this version.") from error


def whole(ranks: Any, leaf: Any) -> Any:
    """Return what a shard is a shard of, on the CPU of rank 0; ``None`` elsewhere. Else return ``leaf``.

    Every rank calls this for the same shard.
    """
    if not is_dtensor(leaf):
        return leaf
    found = ranks.gathered(leaf.detach())
    return found.cpu() if ranks.leads else None


def _digest(words: Mapping[str, str], tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the SHA-256 of everything in a checkpoint. It shows damage, and is no defence against an adversary.

    Args:
        words: The texts.
        tensors: The tensors, in the order of their names.
    """
    digest = hashlib.sha256(json.dumps([words["format"], words["layout"], words["head"]]).encode())
    for name, value in tensors:
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _alike(value: Tensor, saved: Any) -> bool:
    """Return whether ``saved`` can be copied into ``value`` without being broadcast or rounded."""
    return isinstance(saved, Tensor) and saved.shape == value.shape and saved.dtype == value.dtype


def _in_types_of(own: Any, saved: Any) -> Any:
    """Return ``saved`` with the kinds of containers that ``own`` has: a scheduler may count in a ``Counter``."""
    if isinstance(own, Mapping) and isinstance(saved, Mapping):
        values = {key: _in_types_of(own.get(key), value) for key, value in saved.items()}
        return values if type(own) is dict else type(own)(values)  # type: ignore[call-arg]
    if isinstance(own, list | tuple) and isinstance(saved, list) and len(own) == len(saved):
        return type(own)(_in_types_of(*pair) for pair in zip(own, saved, strict=True))
    return saved
