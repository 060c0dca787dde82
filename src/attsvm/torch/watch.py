"""Probes beside a language model while it generates: a running score for every sequence of the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from attsvm.extras import missing
from attsvm.query_key import BLOCKS, NORMS, named
from attsvm.torch.probe import Panel, Probe

Call = Callable[[Any, int, float], None]


class Watch:
    """Hooks on a decoder that keep the score of every sequence up to the token read last.

        with watch(model, {20: probe}) as watching:
            out = model.generate(**inputs, stopping_criteria=watching.stop_at(0.8))
        watching.scores[20]                     # (n,), the probe's decision_function of the states read
        watching.history[20]                    # (n, passes): after the prompt, then after every token

    Made by `watch`, which says the rest. Leaving the block removes the hooks; scores and history stay.
    """

    def __init__(self, model: nn.Module, probes: Mapping[int, Any], skip: int) -> None:
        self._model, self._skip = model, skip
        body, blocks, norm = _decoder(model)
        self._panels = {_layer(layer, len(blocks)): _Layer(given, model) for layer, given in probes.items()}
        self._names = {layer: _layer(layer, len(blocks)) for layer in probes}
        self._length, self._counts = -1, torch.zeros(0, 1, dtype=torch.bool)
        self._seen, self._ended, self._ends = torch.zeros(0), torch.zeros(0), torch.zeros(0)
        self._hooks = [body.register_forward_pre_hook(self._begin, with_kwargs=True)]
        for layer, panel in self._panels.items():
            self._hooks.append(_hook(panel, self, layer, blocks, norm))
        self._generate = getattr(model, "generate", None)
        if self._generate is not None:
            model.generate = self._checked

    @property
    def scores(self) -> dict[int, Any]:
        """The newest scores of every layer (n,), or {name: (n,)} where it has several probes."""
        return {given: self._panels[layer].told(-1) for given, layer in self._names.items()}

    @property
    def history(self) -> dict[int, Any]:
        """All scores of every layer, (n, passes): one of the prompt, then one of every token."""
        return {given: self._panels[layer].told(None) for given, layer in self._names.items()}

    def stop_at(
        self, threshold: Any, *, sure: bool = False, stop: bool = True, call: Call | None = None
    ) -> Any:
        """A transformers.StoppingCriteriaList that ends a sequence once a score is at least the threshold.

        threshold: a number or what `probe.threshold_at_fpr` returned, for all probes or {layer: …} for some;
            sure=True takes the upper end of its interval. call(layer, sequence, score) is called the first
            time that one passes; with stop=False nothing else happens.
        The score is that of all tokens that the model has read; the one just chosen is read by the next pass.
        """
        given = threshold if isinstance(threshold, Mapping) else dict.fromkeys(self._names, threshold)
        limits = {layer: _number(one, sure) for layer, one in given.items()}
        return _criteria(self, limits, stop, call)

    def close(self) -> None:
        """Remove the hooks; the scores stay."""
        for hook in self._hooks:
            hook.remove()
        if self._hooks and self._generate is not None:
            del self._model.generate
        self._hooks = []

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ while the model runs

    def _checked(self, *args: Any, **how: Any) -> Any:
        """model.generate, but for ways that move sequences between rows or take tokens back."""
        config = how.get("generation_config") or getattr(self._model, "generation_config", None)
        beams = how.get("num_beams", getattr(config, "num_beams", 1)) or 1
        helped = how.get("assistant_model") or how.get("prompt_lookup_num_tokens")
        if beams > 1 or helped:
            way = f"num_beams={beams}" if beams > 1 else "assisted decoding"
            raise ValueError(
                f"{way}: rows are reordered or tokens taken back, so a running score would mix sequences. "
                "Generate greedily or by sampling, or watch afterwards by one pass over the texts."
            )
        assert self._generate is not None
        return self._generate(*args, **how)

    def _begin(self, body: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Which tokens of this pass count, for every layer."""
        ids = kwargs.get("input_ids", args[0] if args else None)
        shape = (ids if ids is not None else kwargs["inputs_embeds"]).shape[:2]
        past = kwargs.get("past_key_values")
        length = 0 if past is None else int(past.get_seq_length())
        real = _real(kwargs.get("attention_mask"), shape, next(body.parameters()).device)
        if length == 0:
            self._seen = real.new_zeros(shape[0], dtype=torch.long)
            self._ended = real.new_zeros(shape[0])
            self._ends = _ends(self._model, real.device)
            for panel in self._panels.values():
                panel.start(shape[0])
        elif length != self._length or len(self._seen) != shape[0]:
            raise RuntimeError(
                f"the model goes on after {length} tokens of {shape[0]} sequences, the watch has seen "
                f"{max(self._length, 0)} of {len(self._seen)}. Begin before the first pass; keep the rows."
            )
        if length and shape[1] == 1 and ids is not None:
            # A token that ends a text is padding, and so is what follows it.
            self._ended = self._ended | torch.isin(ids[:, 0], self._ends)
        place = self._seen[:, None] + real.cumsum(1)
        self._counts = real & (place > self._skip) & ~self._ended[:, None]
        self._seen, self._length = place[:, -1], length + shape[1]


def watch(model: nn.Module, probes: Mapping[int, Any], *, skip: int = 1) -> Watch:
    """Keep running scores of probes on the hidden states of a decoder, while it generates or just reads.

    probes: {layer: probe}, layers as `heads.activations` counts them (0 the embeddings, k after block k, −1
        after the last norm); a fitted AttentionProbe or its `to_torch()`, or {name: probe} for several.
    skip: so many first tokens of each text do not count: 1 where the probe was fitted without the sink that a
        language model's first token is, as `heads.activations` leaves it out.

    A prompt is read as one block, then token by token with the cache; padding on the left does not count, nor
    does what comes after a sequence's end. The scores equal `decision_function` of the same states. Beams and
    assisted decoding are refused. Works with transformers' decoders (Llama, Mistral, Qwen, Gemma, GPT-2, …).
    """
    if not isinstance(probes, Mapping) or not probes:
        raise ValueError(f"probes is {probes!r}. Pass {{layer: probe}}.")
    return Watch(model, probes, skip)


# ---------------------------------------------------------------------- details


class _Layer:
    """The probes of one layer; those that can be are one product."""

    def __init__(self, given: Any, model: nn.Module) -> None:
        self.single = not isinstance(given, Mapping)
        named = {"": given} if self.single else dict(given)
        if not named:
            raise ValueError("a layer has no probes. Pass a probe, or {name: probe}.")
        weight = next(model.parameters())
        modules = {name: _as_module(probe).to(weight.device) for name, probe in named.items()}
        together = [name for name, one in modules.items() if not len(one.maps) and one.head.shape[2] == 1]
        parts: dict[tuple[str, ...], Probe] = {
            (name,): modules[name] for name in named if name not in together
        }
        if len(together) > 1:
            parts[tuple(together)] = Panel([modules[name] for name in together])
        elif together:
            parts[tuple(together)] = modules[together[0]]
        self.names = list(named)
        self.parts = parts
        self.start(0)

    def start(self, n: int) -> None:
        self.states = {names: one.start(n) for names, one in self.parts.items()}
        self.scores: dict[str, list[Tensor]] = {name: [] for name in self.names}

    def take(self, states: Tensor, counts: Tensor) -> None:
        with torch.no_grad():
            for names, one in self.parts.items():
                self.states[names], scores = one.step(self.states[names], states, counts)
                several = scores.unbind(1) if len(names) > 1 else (scores,)
                for name, score in zip(names, several, strict=True):
                    self.scores[name].append(score)

    def told(self, which: int | None) -> Any:
        """The last scores, or all: of the one probe, or by name."""
        if not self.scores[self.names[0]]:
            raise RuntimeError("the model has not run since the watch began. Call it, or generate, first.")
        found = {
            name: scores[which] if which is not None else torch.stack(scores, 1)
            for name, scores in self.scores.items()
        }
        return found[""] if self.single else found


def _as_module(probe: Any) -> Probe:
    """A module of our own: the caller's stays where it is."""
    module = deepcopy(probe) if isinstance(probe, Probe) else getattr(probe, "to_torch", lambda: None)()
    if not isinstance(module, Probe):
        raise TypeError(f"a probe is {type(probe).__name__}. Pass a fitted AttentionProbe or its to_torch().")
    return module


def _decoder(model: nn.Module) -> tuple[nn.Module, nn.ModuleList, nn.Module]:
    """The module that runs the blocks, the blocks, and the norm after the last."""
    for body in model.modules():
        blocks, norm = named(body, BLOCKS), named(body, NORMS)
        if isinstance(blocks, nn.ModuleList) and isinstance(norm, nn.Module):
            return body, blocks, norm
    raise ValueError(
        f"{type(model).__name__} has no blocks ({' or '.join(BLOCKS)}) with a norm after them "
        f"({', '.join(NORMS)}). Pass a decoder of transformers."
    )


def _layer(layer: int, count: int) -> int:
    if not -count - 1 <= layer <= count:
        raise ValueError(f"layer {layer} of {count}. Pass 0 (embeddings) to {count}, or from the end.")
    return int(layer) % (count + 1)


def _hook(panel: _Layer, watching: Watch, layer: int, blocks: nn.ModuleList, norm: nn.Module) -> Any:
    """The states of a layer, as transformers numbers its hidden_states."""
    if layer < len(blocks):

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            panel.take(args[0] if args else kwargs["hidden_states"], watching._counts)

        return blocks[layer].register_forward_pre_hook(before, with_kwargs=True)
    return norm.register_forward_hook(lambda module, args, out: panel.take(out, watching._counts))


def _real(mask: Any, shape: Any, device: torch.device) -> Tensor:
    """Which tokens of this pass are no padding (n, T)."""
    if mask is None:
        return torch.ones(tuple(shape), dtype=torch.bool, device=device)
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        raise NotImplementedError(
            "the model was given a mask of pairs, from which padding cannot be read (a static cache). "
            "Generate with the default cache."
        )
    return mask[:, -shape[1] :].bool()


def _ends(model: nn.Module, device: torch.device) -> Tensor:
    """The tokens that end a text."""
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return torch.as_tensor([] if ends is None else ends, dtype=torch.long, device=device)


def _number(threshold: Any, sure: bool) -> float:
    if isinstance(threshold, int | float) and not isinstance(threshold, bool) and not math.isnan(threshold):
        return float(threshold)
    if not hasattr(threshold, "threshold"):
        raise TypeError(f"threshold is {threshold!r}. Pass a number or what probe.threshold_at_fpr returned.")
    return float(threshold.high if sure else threshold.threshold)


def _criteria(watching: Watch, limits: dict[int, float], stop: bool, call: Call | None) -> Any:
    try:
        from transformers import StoppingCriteria, StoppingCriteriaList
    except ModuleNotFoundError as error:
        raise missing("stopping a generation needs transformers", "hf") from error
    told: set[tuple[Any, int]] = set()

    class Passed(StoppingCriteria):
        def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
            passed = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
            for key, score in _flat(watching.scores):
                limit = limits.get(key if isinstance(key, int) else key[0], math.inf)
                over = (score >= limit).to(passed.device)
                passed = passed | over
                if call is not None:
                    for row in torch.nonzero(over)[:, 0].tolist():
                        if (key, row) not in told:
                            told.add((key, row))
                            call(key, row, float(score[row]))
            return passed if stop else torch.zeros_like(passed)

    return StoppingCriteriaList([Passed()])


def _flat(scores: dict[int, Any]) -> Iterable[tuple[Any, Tensor]]:
    """Scores by layer, or by (layer, name) where it has several probes."""
    for layer, found in scores.items():
        if isinstance(found, Tensor):
            yield layer, found
        else:
            yield from (((layer, name), one) for name, one in found.items())
