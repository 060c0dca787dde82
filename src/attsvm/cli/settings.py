"""Training in words: what `attsvm train` and a study can say, and the arguments of train() that it means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attsvm._support.options import BadOption, look_up
from attsvm.norms import capabilities_of
from attsvm.norms.names import norm_of

ASKS = {
    "steepest": ("norm", "lr", "momentum", "decay"),
    "gd": ("lr",),
    "mirror": ("norm", "lr"),
    "polyak": (),
    "adam": ("lr", "decay", "eps", "b2"),
    "compositional": ("norm", "lr", "decay"),
}
"""The options that each optimizer takes."""
OPTIONS = ("norm", "lr", "momentum", "decay", "eps", "b2")
"""The options that not every optimizer takes."""

MEANT = {
    "muon": "steepest with the norm spectral",
    "sign": "steepest with the norm linf",
    "signum": "steepest with the norm linf and momentum",
    "adamw": "adam with decay",
    "sgd": "gd",
}
"""Names from other libraries, and what each is called here."""

FACTORS = {"kq": ("rank", "separate"), "diagonal_kq": ("separate",), "diagonal": ("depth",)}
"""The options of weights that are products."""


def asks(optimizer: str) -> tuple[str, ...]:
    """The options of an optimizer. For a name from another library the error says what it is called here."""
    if optimizer in MEANT:
        raise BadOption(f"no optimizer {optimizer!r}: here it is {MEANT[optimizer]}.")
    options: tuple[str, ...] = look_up("optimizer", optimizer, ASKS)
    return options


@dataclass(frozen=True)
class Settings:
    """What a run is trained with, in words.

    rank: of K and Q, 0 for no restriction. separate: K and Q are normalised apart. depth: factors of a
    diagonal. heads: several side by side, 0 for one; across: what the optimizer takes as one of them, as the
    norm of MultiHead. batch: examples per step, 0 for all of them. eps, b2: Adam's; with eps 0 its steps
    survive saturation. train_head: the linear head moves, too, by steps of the same rule.
    """

    optimizer: str = "steepest"
    norm: str = "frobenius"
    lr: float = 0.1
    weight: str = "full"
    loss: str = "logistic"
    steps: int = 2_000
    momentum: float = 0.0
    decay: float = 0.0
    rank: int = 0
    separate: bool = False
    depth: int = 1
    heads: int = 0
    across: str = "joint"
    batch: int = 0
    eps: float = 1e-8
    b2: float = 0.999
    train_head: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """The options that have an effect."""
        several = ("heads", "across") if self.heads else ()
        return (*asks(self.optimizer), *FACTORS.get(self.weight, ()), *several, "batch", "train_head")

    @property
    def factors(self) -> int:
        """The number of factors of W. With several of them zero is a saddle."""
        return self.depth if self.weight == "diagonal" else 2 if self.weight in FACTORS else 1

    def arguments(self) -> dict[str, Any]:
        """The arguments of train() for these settings."""
        from attsvm.training import batches, losses, optimizers, weights

        rules: dict[str, Callable[[], Any]] = {
            "steepest": lambda: optimizers.steepest(
                norm_of(self.norm), self.lr, momentum=self.momentum, decay=self.decay
            ),
            "gd": lambda: optimizers.gd(self.lr),
            "mirror": lambda: optimizers.mirror(_exponent(self.norm), self.lr),
            "polyak": lambda: optimizers.polyak(),
            "adam": lambda: optimizers.adam(self.lr, b2=self.b2, eps=self.eps, decay=self.decay),
            "compositional": lambda: self._compositional(),
        }
        kinds = {
            "full": lambda: weights.FullWeight(),
            "kq": lambda: weights.KeyQuery(self.rank or None, self.separate),
            "diagonal": lambda: weights.Diagonal(self.depth),
            "diagonal_kq": lambda: weights.Diagonal(2, self.separate),
        }
        known_losses = {name: getattr(losses, name) for name in ("logistic", "exponential", "correlation")}
        weight = look_up("weight", self.weight, kinds)()
        if self.heads:
            look_up("across", self.across, dict.fromkeys(weights.ACROSS))
            weight = weights.MultiHead(self.heads, weight, self.across)
        asks(self.optimizer)  # refuses a name that is none of these
        rule = rules[self.optimizer]
        return {
            "optimizer": rule(),
            "train_head": rule() if self.train_head else None,
            "weight": weight,
            "loss": look_up("loss", self.loss, known_losses),
            "steps": self.steps,
            "batch": batches.Batches(self.batch) if self.batch > 0 else None,
        }

    def _compositional(self) -> Any:
        from attsvm.training.optimizers import compositional

        single_heads = not self.heads or self.across == "apart"
        if self.weight != "kq" or self.separate or not single_heads:
            raise BadOption(
                "compositional steps need K and Q of one head together. Pass the weight kq, not separate, "
                "and across apart where there are several heads."
            )
        return compositional(self.lr, norm=norm_of(self.norm), decay=self.decay)


def _exponent(name: str) -> float:
    norm = norm_of(name)
    if capabilities_of(norm).acts_on != "entries":
        raise BadOption(
            f"mirror descent has an entrywise norm, not the {norm} one. Pass the norm lp:P, P > 1."
        )
    return norm.p
