"""Optimizers of optax and torch as rules of ours: the same steps, or the nearest and what differs.

An optax transformation is a pair of functions: its parts are read from their closures, and an unknown part
is never guessed. A torch optimizer says everything in its type and its groups. torch is not imported: the
caller who passes one of its optimizers has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import optax

from attsvm.norms import frobenius, l1, linf, nuclear, spectral
from attsvm.training.rules import (
    Adam,
    Compositional,
    Foreign,
    GradientDescent,
    Mirror,
    Number,
    Optimizer,
    PerBlock,
    Polyak,
    Rate,
    Rule,
    Steepest,
)
from attsvm.training.types import OptimizerLike, Options

VERBS: dict[type[Any], str] = {
    Adam: "adam",
    Compositional: "compositional",
    GradientDescent: "gd",
    Mirror: "mirror",
    Polyak: "polyak",
    Steepest: "steepest",
}
"""The rules of ours and the functions that make them; their arguments have the names of the fields."""

NORMS = {frobenius: "frobenius", l1: "l1", linf: "linf", nuclear: "nuclear", spectral: "spectral"}

HEAVY_BALL = "momentum that sums gradients"
NEWTON_SCHULZ = "Newton–Schulz steps in place of the exact direction"
RIDGE = "weight decay inside of the gradient, which is a ridge on the loss"


class Twin(NamedTuple):
    """The rule of ours that is nearest to an optimizer, and what differs.

    name: of the optimizer. difference: empty if both take the same steps.
    rule is None where no rule of ours is near.
    """

    name: str
    rule: Rule | None
    difference: str = ""


def twin_of(optimizer: OptimizerLike) -> Twin | None:
    """The twin of an optimizer; None where the argument is no optimizer. A rule of ours is its own twin."""
    if type(optimizer) is Optimizer:
        optimizer = optimizer.rule
    if type(optimizer) is PerBlock:  # every array by itself: the same rule
        return twin_of(optimizer.rule)
    if type(optimizer) is Foreign:
        return _of_foreign(optimizer)
    if isinstance(optimizer, tuple(VERBS)):
        rule: Any = optimizer
        difference = "" if type(rule) in VERBS else "a class of one's own, whose steps may differ"
        return Twin(repr(rule), rule, difference)
    if isinstance(optimizer, optax.GradientTransformation):
        return _of_optax(optimizer)
    return _of_torch(optimizer) if is_torch(optimizer) else None


def is_torch(optimizer: object) -> bool:
    """Whether it is an optimizer of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(optimizer, torch.optim.Optimizer)


def written(rule: Any) -> str:
    """The call that makes a rule, such as steepest(norm=spectral, lr=0.1)."""
    values = {f.name: getattr(rule, f.name) for f in fields(rule)}
    changed = [f.name for f in fields(rule) if f.default is MISSING or values[f.name] != f.default]
    arguments = {name: _norm(values[name]) if name == "norm" else _number(values[name]) for name in changed}
    return f"{VERBS[type(rule)]}({', '.join(f'{name}={text}' for name, text in arguments.items())})"


def _norm(norm: Any) -> str:
    if isinstance(norm, tuple):
        return f"({', '.join(map(_norm, norm))})"
    return NORMS.get(norm, repr(norm))


def _number(value: Any) -> str:
    return getattr(value, "__name__", "schedule") if callable(value) else repr(value)


# ---------------------------------------------------------------------- optax


def _of_foreign(rule: Foreign) -> Twin | None:
    if rule.scaled or type(rule.optimizer) is Optimizer:
        return twin_of(rule.optimizer)
    twin = _of_optax(rule.optimizer)
    if type(twin.rule) is GradientDescent:
        twin = twin._replace(rule=Steepest(frobenius, twin.rule.lr))
    rule_of_ours = twin.rule
    signs = type(rule_of_ours) is Steepest and rule_of_ours.norm == linf and not rule_of_ours.momentum
    if twin.difference or signs:  # a direction alone: no length enters
        return twin
    return twin._replace(difference="it is given mantissas, whose lengths are not those of gradients")


class _Member(NamedTuple):
    """A member of an optax chain: the function that made it, and its settings."""

    name: str
    settings: Options

    def __getattr__(self, name: str) -> Any:
        return self.settings.get(name)


def _members(update: object) -> list[_Member]:
    """The members of a chain, read from the closure of its update function."""
    if not (isinstance(update, FunctionType) and update.__module__.partition(".")[0] == "optax"):
        return [_Member(getattr(update, "__qualname__", "a function of one's own"), {})]
    names, cells = update.__code__.co_freevars, update.__closure__ or ()
    member = _Member(
        update.__qualname__.partition(".")[0],
        {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)},
    )
    if member.name == "chain":
        return [member for inner in member.update_fns for member in _members(inner)]
    if member.name == "with_extra_args_support":
        return _members(member.tx.update)
    if member.name == "partition" and getattr(member.param_labels, "__qualname__", "").startswith("muon."):
        return _members(member.transforms["muon"].update)
    return [member]


def _of_optax(optimizer: OptimizerLike) -> Twin:
    members = [member for member in _members(optimizer.update) if member.name != "identity"]
    name = f"the optax chain {', '.join(member.name for member in members) or 'identity'}"
    members = [
        member
        for member in members
        if not (member.name == "add_decayed_weights" and _zero(member.weight_decay))
    ]
    lr, decay = _negative(members.pop()) if members else None, 0.0
    if members and members[-1].name == "add_decayed_weights":
        decay = members.pop().weight_decay
    reader = _READERS.get(tuple(member.name for member in members))
    if lr is None or callable(decay) or reader is None:
        return Twin(name, None, "a part that is not known")
    return Twin(name, *reader(lr, decay, *members))


def _negative(member: _Member) -> Any:
    """The learning rate of the last member of a chain, which scales by its negative; None of another one."""
    if member.name == "scale" and np.size(member.step_size) == 1:
        return -float(member.step_size)
    if member.name == "scale_by_schedule":
        scale: Callable[[Any], Any] = member.step_size_fn
        return lambda k: -scale(k)
    return None


def _zero(value: Any) -> bool:
    return not callable(value) and float(value) == 0


def _sums(lr: Rate, decay: Number, average: _Member) -> tuple[Rule, str]:
    return GradientDescent(lr), HEAVY_BALL if average.name == "trace" else "momentum"


def _signs(lr: Rate, decay: Number, average: _Member, signs: _Member) -> tuple[Rule, str]:
    # A sum and an average have the same sign; lengths do not enter.
    return Steepest(linf, lr, average.decay, decay), "a look ahead (nesterov)" if average.nesterov else ""


def _adam(lr: Rate, decay: Number, moments: _Member) -> tuple[Rule, str]:
    ahead = "a look ahead (nesterov)" if moments.nesterov else ""
    inside = "eps_root under the root" if moments.eps_root else ""
    rule = Adam(lr, moments.b1, moments.b2, moments.eps, decay)
    return rule, ", ".join(filter(None, (ahead, inside)))


def _near_adam(difference: str) -> Callable[..., tuple[Rule, str]]:
    def read(lr: Rate, decay: Number, moments: _Member) -> tuple[Rule, str]:
        return Adam(lr, moments.b1, moments.b2, moments.eps, decay), difference

    return read


def _muon(lr: Rate, decay: Number, muon: _Member, *shape: _Member) -> tuple[Rule, str]:
    ahead = " and a look ahead (nesterov)" if muon.nesterov else ""
    return Steepest(spectral, lr, muon.beta, decay), f"{NEWTON_SCHULZ}{ahead}; vectors take steps of Adam"


def _unit(lr: Rate, decay: Number, length: _Member) -> tuple[Rule, str]:
    return Steepest(frobenius, lr, 0.0, decay), "" if _zero(
        length.eps
    ) and length.scale_factor == 1 else "eps beside the length"


_READERS: dict[tuple[str, ...], Callable[..., tuple[Rule, str]]] = {
    (): lambda lr, decay: (GradientDescent(lr), "" if _zero(decay) else RIDGE),
    ("trace",): _sums,
    ("ema",): _sums,
    ("scale_by_sign",): lambda lr, decay, signs: (Steepest(linf, lr, 0.0, decay), ""),
    ("trace", "scale_by_sign"): _signs,
    ("ema", "scale_by_sign"): _signs,
    ("scale_by_adam",): _adam,
    ("scale_by_amsgrad",): _near_adam("the largest second moment so far"),
    ("scale_by_belief",): _near_adam("squares of the distance from the average"),
    ("scale_by_rms",): lambda lr, decay, rms: (
        Adam(lr, 0.0, rms.decay, rms.eps, decay),
        "no correction of the first averages",
    ),
    ("scale_by_lion",): lambda lr, decay, lion: (
        Steepest(linf, lr, lion.b2, decay),
        "two averages of the gradient",
    ),
    ("scale_by_muon",): _muon,
    ("scale_by_muon", "scale_by_shape"): _muon,
    ("normalize_by_update_norm",): _unit,
}
"""By the members of a chain before decay and learning rate: the rule of ours, and how it differs."""


# ---------------------------------------------------------------------- torch


def _of_torch(optimizer: OptimizerLike) -> Twin:
    groups = [
        {name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups
    ]
    group, kind = groups[0], type(optimizer)
    ours = kind.__module__.startswith("attsvm.torch.")
    name = f"{'attsvm.torch' if ours else 'torch.optim'}.{kind.__name__}"
    reader = _TORCH.get(f"{kind.__module__.partition('.')[0]}.{kind.__name__}")
    if reader is None or not (ours or getattr(sys.modules["torch"].optim, kind.__name__, None) is kind):
        return Twin(f"{kind.__module__}.{kind.__name__}", None, "a rule that is not known")
    rate = float(group.get("initial_lr", group["lr"]))
    # A scheduler of torch changes lr from outside: its schedule cannot be evaluated.
    rule, *differences = reader(group, (lambda k: rate + 0.0 * k) if "initial_lr" in group else rate)
    differences += ["ascent (maximize=True)"] if group.get("maximize") else []
    differences += ["groups with different settings"] if any(g != group for g in groups) else []
    differences += [f"{group['heads']} heads that step apart"] if group.get("heads", 1) > 1 else []
    return Twin(name, rule, ", ".join(filter(None, differences)))


def _torch_sgd(group: Options, lr: Rate) -> tuple[Any, ...]:
    return GradientDescent(lr), group["momentum"] and HEAVY_BALL, group["weight_decay"] and RIDGE


def _torch_adam(group: Options, lr: Rate) -> tuple[Any, ...]:
    decoupled = group.get("decoupled_weight_decay", False)
    b1, b2 = map(float, group["betas"])
    rule = Adam(lr, b1, b2, float(group["eps"]), float(group["weight_decay"]) if decoupled else 0.0)
    inside = group["weight_decay"] and not decoupled and RIDGE
    return rule, group["amsgrad"] and "the largest second moment so far (amsgrad)", inside


def _torch_adamw(group: Options, lr: Rate) -> tuple[Any, ...]:
    return _torch_adam({**group, "decoupled_weight_decay": True}, lr)


def _torch_muon(group: Options, lr: Rate) -> tuple[Any, ...]:
    rule = Steepest(spectral, lr, float(group["momentum"]), float(group["weight_decay"]))
    return rule, NEWTON_SCHULZ, group["nesterov"] and "a look ahead (nesterov)"


def _torch_steepest(group: Options, lr: Rate) -> tuple[Any, ...]:
    rule = Steepest(group["norm"], lr, float(group["momentum"]), float(group["weight_decay"]))
    return rule, group["polar"] != "svd" and NEWTON_SCHULZ, group["nesterov"] and "a look ahead (nesterov)"


def _torch_mirror(group: Options, lr: Rate) -> tuple[Any, ...]:
    return Mirror(float(group["p"]), lr, bool(group["normalised"])), group["weight_decay"] and RIDGE


def _torch_compositional(group: Options, lr: Rate) -> tuple[Any, ...]:
    rule = Compositional(group["norm"], lr, float(group["ridge"]), float(group["weight_decay"]))
    return rule, group["polar"] != "svd" and NEWTON_SCHULZ, group["momentum"] and "momentum"


_TORCH: dict[str, Callable[[Options, Rate], tuple[Any, ...]]] = {
    "torch.SGD": _torch_sgd,
    "torch.Adam": _torch_adam,
    "torch.AdamW": _torch_adamw,
    "torch.Muon": _torch_muon,
    "attsvm.SteepestDescent": _torch_steepest,
    "attsvm.LpMirrorDescent": _torch_mirror,
    "attsvm.Compositional": _torch_compositional,
}
