"""Probes beside a language model while it generates: a running score for every sequence of the batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attsvm.query_key import BLOCKS, NORMS, named
from attsvm.torch.stopping import Call, criteria, number
from attsvm.torch.watched_layer import HELD, Layer


class Watch:
    """Hooks on a decoder that keep the score of every sequence up to the token read last.

        with watch(model, {20: probe}) as watching:
            out = model.generate(**inputs, stopping_criteria=watching.stop_at(0.8, every=16))
        watching.scores[20]                     # (n,), the probe's decision_function of the states read
        watching.history[20]                    # (n, passes): after the prompt, then after every token

    Made by `watch`, which says the rest. Leaving the block removes the hooks; scores and history stay.
    """

    def __init__(self, model: nn.Module, probes: Mapping[int, Any], skip: int) -> None:
        self._model, self._skip = model, skip
        body, blocks, norm = _decoder(model)
        self._names = {layer: _layer(layer, len(blocks)) for layer in probes}
        self._layers = {self._names[layer]: Layer(given) for layer, given in probes.items()}
        self.begun = 0  # so many times a prompt was read
        self._counting = Counting(0, skip, None, torch.device("cpu"))
        self._length, self._held, self._row = -1, 0, -1
        self._ends: Any = _ends(getattr(model, "generation_config", None))
        self._hooks = [body.register_forward_pre_hook(self._begin, with_kwargs=True)]
        for layer, panel in self._layers.items():
            self._hooks.append(_hook(panel, self, layer, blocks, norm))
        self._generate = getattr(model, "generate", None)
        if self._generate is not None:
            model.generate = self._checked

    @property
    def scores(self) -> dict[int, Any]:
        """The newest scores of every layer (n,), or {name: (n,)} where it has several probes."""
        return self._told(lambda found: found[:, -1], 1)

    @property
    def history(self) -> dict[int, Any]:
        """All scores of every layer, (n, passes): one of the prompt, then one of every token."""
        return self._told(lambda found: found, None)

    def recent(self, last: int) -> Iterable[tuple[Any, Tensor]]:
        """The scores after the last so many passes, (n, last), by layer, or by (layer, name) of several."""
        self._catch_up()
        for given, layer in self._names.items():
            for name, found in self._layers[layer].told(last).items():
                yield (given if self._layers[layer].single else (given, name)), found

    def stop_at(
        self,
        threshold: Any,
        *,
        every: int = 1,
        sure: bool = False,
        stop: bool = True,
        call: Call | None = None,
    ) -> Any:
        """A transformers.StoppingCriteriaList that ends a sequence once a score is at least the threshold.

        threshold: a number or what `probe.threshold_at_fpr` returned, for all probes or {layer: …} for some;
            sure=True takes the upper end of its interval. call(layer, sequence, score) is called the first
            time that one passes; with stop=False nothing else happens.
        every: look at the scores after so many tokens, at all since the last look. Tokens are read together
            then, which costs little more than reading one; a sequence may end so many tokens late.
        The score is that of all tokens that the model has read; the one just chosen is read by the next pass.
        """
        given = threshold if isinstance(threshold, Mapping) else dict.fromkeys(self._names, threshold)
        if unknown := [layer for layer in given if layer not in self._names]:
            raise ValueError(
                f"no probe on layer {unknown[0]!r}. Pass {{layer: threshold}} of {[*self._names]}."
            )
        for layer in given:
            if max(self._layers[self._names[layer]].classes.values()) > 1:
                raise ValueError(
                    f"a probe on layer {layer} has several classes. A threshold needs one score."
                )
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every is {every!r}. Pass a number of tokens, at least 1.")
        limits = {layer: number(one, sure) for layer, one in given.items()}
        return criteria(self, limits, every, stop, call)

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
        self._ends = how["eos_token_id"] if "eos_token_id" in how else _ends(config)
        try:
            return self._generate(*args, **how)
        finally:
            self._ends = _ends(getattr(self._model, "generation_config", None))

    def _begin(self, body: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Which tokens of this pass count, for every layer; those of one token are asked later."""
        ids = kwargs.get("input_ids", args[0] if args else None)
        given = ids if ids is not None else kwargs["inputs_embeds"]
        n, count = given.shape[:2]
        past, mask = kwargs.get("past_key_values"), _of_tokens(kwargs.get("attention_mask"))
        length = 0 if past is None else int(past.get_seq_length())
        if length == 0:
            self._start(n, given.device)
        elif length != self._length or len(self._counting.seen) != n:
            raise RuntimeError(
                f"the model goes on after {length} tokens of {n} sequences, the watch has seen "
                f"{max(self._length, 0)} of {len(self._counting.seen)}. "
                "Begin before the first pass; keep the rows."
            )
        self._length = length + count
        if length and count == 1:
            self._hold(ids, mask)
        else:
            self._catch_up()
            self._row, self._counts = -1, self._counting(_real(mask, n, count, given.device), None)

    def _start(self, n: int, device: torch.device) -> None:
        self.begun, self._held = self.begun + 1, 0
        self._counting = Counting(n, self._skip, self._ends, device)
        with torch.inference_mode(False):
            self._said = torch.empty((HELD, n, 1), dtype=torch.long, device=device)
        self._words = list(self._said)
        self._mask: Tensor | None = None
        for layer in self._layers.values():
            layer.start()

    def _hold(self, ids: Tensor | None, mask: Tensor | None) -> None:
        """One more token of each sequence, whose mask is the last column."""
        full = self._held >= min(layer.room for layer in self._layers.values())
        # The last mask tells of all tokens held; where it cannot, they are read before.
        short = mask is not None and mask.shape[1] <= self._held
        if full or short or (mask is None) != (self._mask is None):
            self._catch_up()
        self._row, self._mask = self._held, mask
        if len(self._counting.ends):
            self._words[self._row].copy_(ids) if ids is not None else self._words[self._row].fill_(-1)
        self._held += 1

    def _take(self, layer: Layer, states: Tensor) -> None:
        if self._row < 0:
            layer.read(states, self._counts)
        else:
            layer.hold(states, self._row)

    def _catch_up(self) -> None:
        """Let the probes read the tokens held; one of a pass that broke off does not count."""
        done = min((layer.filled for layer in self._layers.values()), default=0) if self._held else 0
        if done:
            mask = None if self._mask is None else self._mask[:, -self._held :][:, :done]
            real = _real(mask, self._said.shape[1], done, self._said.device)
            counts = self._counting(real, self._said[:done, :, 0].T)
            for layer in self._layers.values():
                layer.catch_up(counts)
        self._held = 0

    def _told(self, of: Any, last: int | None) -> dict[int, Any]:
        self._catch_up()
        found = {}
        for given, layer in self._names.items():
            told = {name: of(one) for name, one in self._layers[layer].told(last).items()}
            found[given] = told[""] if self._layers[layer].single else told
        return found


class Counting:
    """Which tokens count: no padding, none of the first `skip` of a text, nothing from its end on."""

    def __init__(self, n: int, skip: int, ends: Any, device: torch.device) -> None:
        self.skip = skip
        self.ends = torch.as_tensor([] if ends is None else ends, dtype=torch.long, device=device).flatten()
        self.seen = torch.zeros(n, dtype=torch.long, device=device)
        self.ended = torch.zeros(n, dtype=torch.bool, device=device)

    def __call__(self, real: Tensor, said: Tensor | None) -> Tensor:
        """Of the next tokens (n, T), given which are no padding and, where they were generated, their ids."""
        ended = self.ended[:, None].expand(real.shape)
        if said is not None and len(self.ends):
            ended = ended | (torch.isin(said, self.ends).cumsum(1) > 0)
        place = self.seen[:, None] + real.cumsum(1)
        self.seen, self.ended = place[:, -1], ended[:, -1]
        return real & (place > self.skip) & ~ended


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


def _hook(panel: Layer, watching: Watch, layer: int, blocks: nn.ModuleList, norm: nn.Module) -> Any:
    """The states of a layer, as transformers numbers its hidden_states."""
    if layer < len(blocks):

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            watching._take(panel, args[0] if args else kwargs["hidden_states"])

        return blocks[layer].register_forward_pre_hook(before, with_kwargs=True)
    return norm.register_forward_hook(lambda module, args, out: watching._take(panel, out))


def _of_tokens(mask: Any) -> Tensor | None:
    """A mask (n, T) of tokens, or none."""
    if mask is not None and (not isinstance(mask, Tensor) or mask.ndim != 2):
        raise NotImplementedError(
            "the model was given a mask of pairs, from which padding cannot be read (a static cache). "
            "Generate with the default cache."
        )
    return mask


def _real(mask: Tensor | None, n: int, count: int, device: torch.device) -> Tensor:
    """Which of the last tokens are no padding (n, count)."""
    if mask is None:
        return torch.ones((n, count), dtype=torch.bool, device=device)
    return mask[:, -count:].bool()


def _ends(config: Any) -> Any:
    """The tokens that end a text."""
    return getattr(config, "eos_token_id", None)
