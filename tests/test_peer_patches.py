"""The patches that put tacita under other products: short, and every name of tacita in them exists as it is called."""

import ast
import functools
import inspect
import re
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import tacita
from tacita.finetune import PrivateTrainer

PEERS = Path(__file__).parents[1] / "benchmarks" / "peers"
PATCHES = sorted(PEERS.glob("*.patch"))


def new_file(patch: Path) -> str:
    """Return the text of the one file that a patch adds."""
    part = patch.read_text().split("--- /dev/null\n")[1].split("\n--- ")[0]
    return "\n".join(line[1:] for line in part.splitlines() if line.startswith("+") and not line.startswith("+++"))


def resolved(node: ast.expr, names: dict) -> Any:
    """Return what an expression such as ``tacita.FlatClipper`` names; ``None`` if it does not begin with tacita."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = resolved(node.value, names)
        return None if owner is None else getattr(owner, node.attr)
    of_base = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    return types.SimpleNamespace(__init__=PrivateTrainer) if of_base else None


def wrong_calls(text: str) -> list[str]:
    """Return the calls of tacita in a module that its signatures do not take, as far as arguments are written out."""
    found = []
    for call in ast.walk(ast.parse(text)):
        called = resolved(call.func, {"tacita": tacita}) if isinstance(call, ast.Call) else None
        if isinstance(call, ast.Call) and called is not None:
            given = {keyword.arg: None for keyword in call.keywords if keyword.arg}
            signature = inspect.signature(called)
            taken = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
            try:
                signature.replace(parameters=taken).bind(*call.args, **given)
            except TypeError as error:
                found.append(f"line {call.lineno}: {error}")
    return found


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_a_patch_is_short_and_its_head_says_to_which_commit_it_applies(patch):
    lines = patch.read_text().splitlines()
    assert len(lines) <= 100
    assert re.search(r" at [0-9a-f]{40}: git apply ", lines[0])


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_the_names_of_tacita_in_a_patch_take_the_arguments_that_it_gives(patch):
    added = "\n".join(line[1:] for line in patch.read_text().splitlines() if re.match(r"\+(?!\+\+)", line))
    used = {name for line in added.splitlines() for name in re.findall(r"\btacita((?:\.\w+)+)", line.split("#")[0])}
    assert used
    for name in used - {".finetune"}:
        functools.reduce(getattr, name.strip(".").split("."), tacita)
    assert wrong_calls(new_file(patch)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        "tacita.FlatClipper(max_norm=1.0)",
        "tacita.accounting.most_queries(1, 2, 3)",
        "tacita.pad_to()",
        "class A(PrivateTrainer):\n    def __init__(self): super().__init__(1, 2, target_eps=3, train_dataset=4)",
    ],
)
def test_a_call_that_tacita_does_not_take_is_seen(wrong):
    assert len(wrong_calls(wrong)) == 1


class Rows(Dataset):
    """20 records, as a ``datasets.Dataset`` has them."""

    def __len__(self):
        return 20

    def __getitem__(self, number):
        return torch.full((3,), float(number))

    def with_format(self, kind):
        return self


def test_the_engine_of_the_mostlyai_patch_trains_within_the_budget_and_counts_earlier_runs(tmp_path):
    names: dict = {"__name__": "engine", "__doc__": "words"}
    exec(new_file(PEERS / "mostlyai-engine.patch"), names)
    workspace, loader = types.SimpleNamespace(model_path=tmp_path), DataLoader(Rows(), batch_size=4)

    def engine(max_epsilon):
        made = names["PrivacyEngine"](workspace, 1000, max_epsilon, 1e-5, lambda m, x: m(x).squeeze(1), 2, None)
        model = torch.nn.Linear(3, 1)
        return made, model, lambda: made.make_private(model, None, loader, 1.0, 1.0, True)

    first, model, begin = engine(8.0)
    begin()
    assert 0 < first.oracle.planned_queries < 1000
    before = model.weight.clone()
    assert first.step(torch.optim.SGD(model.parameters(), lr=1.0))
    assert not torch.equal(before, model.weight)
    assert 7 < first.get_epsilon(1e-5) <= 8
    second, _, begin = engine(16.0)
    assert second.get_epsilon(1e-5) == first.get_epsilon(1e-5)
    begin()
    assert first.get_epsilon(1e-5) < second.get_epsilon(1e-5) <= 16
    with pytest.raises(ValueError, match="planned_queries"):  # the earlier runs have used it up
        engine(16.0)[2]()
