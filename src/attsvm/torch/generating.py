"""`generate` of a model that is watched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from attsvm.torch.watch import Watch


class Generating:
    """model.generate, which tells the watches what ends a text and refuses what they could not follow.

    Refused are ways that move sequences between rows or take tokens back, and a second generation before the
    first has ended. One for all watches of a model, which come and go in any order.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.usual, self.own = model, model.generate, "generate" in vars(model)
        self.watches: list[Watch] = []
        self.busy = False

    def __call__(self, *args: Any, **how: Any) -> Any:
        config = how.get("generation_config") or getattr(self.model, "generation_config", None)
        beams = how.get("num_beams", getattr(config, "num_beams", 1)) or 1
        helped = how.get("assistant_model") or how.get("prompt_lookup_num_tokens")
        if beams > 1 or helped:
            way = f"num_beams={beams}" if beams > 1 else "assisted decoding"
            raise ValueError(
                f"{way}: rows are reordered or tokens taken back, so a running score would mix sequences. "
                "Generate greedily or by sampling, or watch afterwards by one pass over the texts."
            )
        if self.busy:
            raise RuntimeError(
                "the model is generating already, and a watch keeps the scores of one batch. "
                "Generate one after the other, or give each thread a model and a watch of its own."
            )
        self.busy = True
        try:
            for watching in self.watches:
                watching._begin_turn(how["eos_token_id"] if "eos_token_id" in how else ends_of(config))
            return self.usual(*args, **how)
        finally:
            self.busy = False
            usual = ends_of(getattr(self.model, "generation_config", None))
            for watching in self.watches:
                watching._ends, watching._turn = usual, False


def join(model: nn.Module, watching: Watch) -> None:
    """One more watch of a model; one without `generate` needs nothing."""
    if getattr(model, "generate", None) is None:
        return
    if not isinstance(model.generate, Generating):
        model.generate = Generating(model)
    model.generate.watches.append(watching)


def leave(model: nn.Module, watching: Watch) -> None:
    """One watch less; the last one gives the model's own `generate` back."""
    ours = getattr(model, "generate", None)
    if not isinstance(ours, Generating) or watching not in ours.watches:
        return
    ours.watches.remove(watching)
    if not ours.watches:
        del model.generate
        if ours.own:
            model.generate = ours.usual


def ends_of(config: Any) -> Any:
    """The tokens that end a text."""
    return getattr(config, "eos_token_id", None)
