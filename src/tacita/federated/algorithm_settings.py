"""Settings of federations as TOML: read strictly, and the algorithm that they name, with the settings it needs.

Errors name what is wrong, what was given, and what may be given instead.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from tacita import _validate
from tacita._files import replace_durably
from tacita._near_names import did_you_mean
from tacita.clipping import FlatClipper
from tacita.errors import ResumeError
from tacita.federated.algorithms import Clip21SGDM, ClipSGD, FederatedAlgorithm, FederatedAveraging
from tacita.federated.clipped_difference import MOST_OF_A_RECORD
from tacita.federated.quantile_averaging import QuantileAveraging
from tacita.federated.released_shift import ReleasedShiftSGDM
from tacita.federated.server_adam import ServerAdam

AlgorithmName = Literal[
    "clip21-sgdm", "clip21-sgd", "clip-sgd", "federated-averaging", "quantile-averaging", "released-shift-sgdm"
]
LOCAL = ("local_steps", "local_lr")
NEEDED: Mapping[str, tuple[str, ...]] = {
    "clip21-sgdm": ("max_grad_norm", "momentum_weight"),
    "clip21-sgd": ("max_grad_norm",),
    "clip-sgd": ("max_grad_norm",),
    "federated-averaging": ("max_grad_norm", *LOCAL),
    "quantile-averaging": ("threshold", "quantile", "threshold_lr", "count_share", *LOCAL),
    "released-shift-sgdm": ("max_grad_norm", "momentum_weight"),
}  # what an algorithm needs beside lr; all others of these must be left out
ALL_NEEDED = tuple(dict.fromkeys(name for names in NEEDED.values() for name in names))
OF_THE_OTHER = {"config": ("expected_rows", "serve and join"), "federation": ("data", "simulate")}  # by which it shows

_Settings = TypeVar("_Settings", bound=msgspec.Struct)


def read_toml(path: str | Path, kind: str) -> str:
    """Return the text of a file of settings; ``kind`` is the name of the argument, for the message."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError):
        raise ValueError(f"{kind} must be a readable text file, got {str(path)!r}.") from None


def settings_from_toml(cls: type[_Settings], text: str, kind: str) -> _Settings:
    """Return settings of a TOML text; an unknown name, a missing one or a wrong type or choice is refused.

    Args:
        cls: The class of the settings.
        text: The TOML text.
        kind: What is read, for messages.
    """
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{kind} is not valid: {error}.") from None
    hints = get_type_hints(cls)
    for name, value in found.items():
        if name not in hints:
            other, commands = OF_THE_OTHER[kind]
            if other in found:
                raise ValueError(
                    f"{kind} has the setting {other!r}, so that it is a file for tacita federate {commands}: the two "
                    "kinds of files differ, see docs/federated.md and docs/federated-flower.md."
                )
            known = f"it must be one of {', '.join(hints)}"
            raise ValueError(f"{kind} has no setting {name!r}: {known}.{did_you_mean(name, hints)}")
        choices = get_args(hints[name]) if get_origin(hints[name]) is Literal else ()
        if choices and value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")
    try:
        return msgspec.convert(found, cls)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(f"{kind} is not valid: {error}.") from None


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Name the settings that differ, with both values, which are public; a server may send any, so they are cut."""
    return ", ".join(
        f"{name} is {repr(there.get(name))[:40]} there and {value!r} here"
        for name, value in json.loads(json.dumps(here)).items()
        if there.get(name) != value
    )


def hold_to(path: Path, settings: Mapping[str, Any], *, begun: bool = True) -> None:
    """Compare ``settings`` with those in the file ``path``; write them there if no run has ``begun`` with others.

    Raises:
        ResumeError: One differs.
    """
    if not (begun and path.exists()):
        replace_durably(path, json.dumps(settings).encode())
    elif found := differences(json.loads(path.read_bytes()), settings):
        raise ResumeError(
            f"the folder holds a run with other settings: {found}. Repeat those that are there, or choose another "
            "folder."
        )


def check_delta(delta: float, allow_large: bool) -> None:
    """Raise ``ValueError`` unless ``delta`` is in (0, 1), and below 0.01 or allowed."""
    if _validate.delta("delta", delta) >= _validate.LARGE_DELTA and not allow_large:
        raise ValueError(
            f"delta must be below {_validate.LARGE_DELTA:g}, got {delta:g}: at that delta all data of a client may be "
            "published. Choose a smaller one, or set allow_large_delta = true."
        )


def check_algorithm(settings: Any) -> None:
    """Raise ``ValueError`` unless ``settings`` have what their algorithm needs, and nothing of another one."""
    needed = NEEDED[settings.algorithm]
    for name in ALL_NEEDED:
        given = getattr(settings, name, None) is not None
        if given and name not in needed:
            raise ValueError(
                f"{name} must be left out of algorithm = {settings.algorithm!r}, which needs {', '.join(needed)}."
            )
        if name in needed and not given:
            raise ValueError(f"{name} is missing: give it with algorithm = {settings.algorithm!r}.")
    for name in ("max_grad_norm", "threshold"):
        if (getattr(settings, name, None) or 0) > MOST_OF_A_RECORD:
            raise ValueError(
                f"{name} must be at most 2^400 = {MOST_OF_A_RECORD:.2g}, got {getattr(settings, name):g}: the square "
                "of a message's norm would not be finite. Multiply the loss by a public number."
            )
    build_algorithm(settings)  # checks the ranges


def build_algorithm(settings: Any) -> FederatedAlgorithm:
    """Return the algorithm that ``settings`` name."""
    name = settings.algorithm
    more = {key: getattr(settings, key) for key in NEEDED[name] if key not in ("max_grad_norm", "momentum_weight")}
    common = {"lr": settings.lr, "adam": getattr(settings, "adam", None), **more}
    if name == "quantile-averaging":
        return QuantileAveraging(**common)
    common["clipper"] = FlatClipper(max_grad_norm=settings.max_grad_norm)
    if name == "clip-sgd":
        return ClipSGD(**common)
    if name == "federated-averaging":
        return FederatedAveraging(**common)
    if name == "released-shift-sgdm":
        return ReleasedShiftSGDM(**common, momentum_weight=settings.momentum_weight)
    weight = 1.0 if name == "clip21-sgd" else settings.momentum_weight
    return Clip21SGDM(**common, momentum_weight=weight)


def server_adam(betas: tuple[float, float] | None, eps: float | None) -> ServerAdam | None:
    """Return Adam on the server; ``None`` if neither is given."""
    if betas is None and eps is None:
        return None
    if betas is None or eps is None:
        missing, given = ("adam_betas", "adam_eps") if betas is None else ("adam_eps", "adam_betas")
        raise ValueError(f"{missing} is missing: give it with {given}, or leave both out for gradient descent.")
    return ServerAdam(betas=betas, eps=eps)
