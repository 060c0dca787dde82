"""Probes beside a language model while it generates: a running score for every sequence of the batch.

The file holds the watch with its hooks, the stopping criterion made of its scores, and the replacement of the
model's `generate`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attsvm._support.architectures import BLOCKS, NORMS, first_attribute
from attsvm._support.optional_dependencies import missing
from attsvm._support.validation import as_integer, is_integer
from attsvm.torch.running import (
    ENDED,
    LayerProbes,
    RunningScores,
    concatenated,
    counted_tokens,
    pending_limit,
)

OnPass = Callable[[Any, int, float], None]
"""Called with the probe's key, the sequence and the score that passed the threshold."""

NO_TOKEN = "Pass at least one each; a text that is empty may begin with the tokenizer's bos_token."


class Watch:
    """Hooks on a decoder that keep the score of every sequence up to the token read last.

        with watch(model, {20: probe}) as watching:
            out = model.generate(**inputs, stopping_criteria=watching.stop_at(0.8, every=16))
        watching.scores[20]                     # (n,), the probe's decision_function of the states read
        watching.history[20]                    # (n, passes): after the prompt, then after every token

    Made by `watch`, whose docstring says what counts. Leaving the block removes the hooks; scores and history
    stay. Deleting a watch removes its hooks, too: the hooks and the model refer to it weakly.
    """

    def __init__(self, model: nn.Module, probes: Mapping[int, Any], skip: int) -> None:
        self._model, self._skip = model, skip
        body, blocks, norm = _decoder_parts(model)
        self._indices = {layer: _layer_index(layer, len(blocks)) for layer in probes}
        self._layers = {self._indices[layer]: LayerProbes(entry) for layer, entry in probes.items()}
        if len(self._layers) < len(probes):
            raise ValueError(
                f"layers {[*probes]} name one twice. Pass {{layer: {{name: probe}}}} for several."
            )
        width = _state_width(model, norm)
        for layer in self._indices:
            self._probes_of(layer).check_width(width, f"layer {layer}")
        self._last_layer = self._layers[max(self._layers)]  # the last one that a pass reaches
        self._keys = [
            layer if self._probes_of(layer).single else (layer, name)
            for layer in self._indices
            for name, classes in self._probes_of(layer).classes.items()
            for _ in range(classes)
        ]
        panels = [panel for layer in self._layers.values() for panel in layer.panels]
        self._member = torch.block_diag(*(panel.member for panel in panels))
        self._intercept = torch.cat([panel.intercept for panel in panels])
        # How many blocks (prompts, or additions to them) were read, and whether the next pass is one.
        self._blocks_read, self._block_next = 0, False
        self._eos_token_id: Any = _eos_token_id(getattr(model, "generation_config", None))
        self._start(0, torch.device("cpu"))
        hooks = [body.register_forward_pre_hook(_begin_hook(weakref.ref(self)), with_kwargs=True)]
        hooks += [_hook(layer, weakref.ref(self), k, blocks, norm) for k, layer in self._layers.items()]
        _add_watch(model, self)
        self._remove_hooks = weakref.finalize(self, _remove, hooks, model, weakref.ref(self))
        self._remove_hooks.atexit = False

    @property
    def scores(self) -> dict[int, Any]:
        """The newest scores of every layer (n,), or {name: (n,)} where it has several probes."""
        return self._by_layer(self._recent(1)[:, -1])

    @property
    def history(self) -> dict[int, Any]:
        """All scores of every layer, (n, passes): one of the prompt, then one of every token.

        Where the cache goes on in another turn, one of what was added, then one of every token of the answer.
        """
        return self._by_layer(self._recent(None))

    def recent(self, last: int) -> Iterable[tuple[Any, Tensor]]:
        """The scores after the last so many passes, (n, last), by layer, or by (layer, name) of several."""
        for layer, scores in self._by_layer(self._recent(last)).items():
            if self._probes_of(layer).single:
                yield layer, scores
            else:
                yield from (((layer, name), probe_scores) for name, probe_scores in scores.items())

    def stop_at(
        self,
        threshold: Any,
        *,
        every: int = 1,
        sure: bool = False,
        stop: bool = True,
        call: OnPass | None = None,
    ) -> Any:
        """A transformers.StoppingCriteriaList that ends a sequence once a score is at least the threshold.

        threshold: a number or what `probe.threshold_at_fpr` returned, for all probes or {layer: …} for some;
            sure=True takes the upper end of its interval. call(layer, sequence, score) is called the first
            time that a probe's score of a sequence passes; with stop=False nothing else happens. A NaN, which
            no state should give, passes.
        every: compare the scores after so many tokens, those of all tokens since the last comparison. These
            tokens are read together, which costs little more than reading one; a sequence may end so many
            tokens late.
        The score is that of all tokens that the model has read; the next pass reads the token just chosen.
        """
        by_layer = threshold if isinstance(threshold, Mapping) else dict.fromkeys(self._indices, threshold)
        if unknown := [layer for layer in by_layer if layer not in self._indices]:
            raise ValueError(
                f"no probe on layer {unknown[0]!r}. Pass {{layer: threshold}} of {[*self._indices]}."
            )
        for layer in by_layer:
            if max(self._probes_of(layer).classes.values()) > 1:
                raise ValueError(
                    f"a probe on layer {layer} has several classes. A threshold needs one score."
                )
        every = as_integer(every)
        if not (is_integer(every) and every >= 1):
            raise ValueError(f"every is {every!r}. Pass a number of tokens, at least 1.")
        limits = {layer: threshold_number(limit, sure) for layer, limit in by_layer.items()}
        layers = [key[0] if isinstance(key, tuple) else key for key in self._keys]
        return _criteria(self, [limits.get(layer, math.nan) for layer in layers], every, stop, call)

    def close(self) -> None:
        """Remove the hooks; the scores stay."""
        self._remove_hooks()

    def __repr__(self) -> str:
        layers = ", ".join(map(str, self._indices))
        size = f"{self._n} sequences of {self._length} tokens read"
        return f"Watch({type(self._model).__name__}, probes on layers {layers}: {size})"

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ while the model runs

    def _begin_generation(self, eos_token_id: Any) -> None:
        """Before a generation: the next pass reads a block; eos_token_id: what ends a text."""
        self._eos_token_id, self._block_next = eos_token_id, True

    def _start(self, n: int, device: torch.device) -> None:
        """Before the first pass over new sequences."""
        self._length, self._n = 0, n
        self._answer: list[tuple[Tensor, Tensor]] = []  # products and counts since the last block
        self._running = RunningScores(self._member, self._intercept, n, device)
        self._n_read = torch.zeros((n, 1), dtype=torch.long, device=device)
        self._clear_pending()

    def _clear_pending(self) -> None:
        """Nothing is pending: neither a block nor passes of one token each."""
        self._block, self._pending, self._count = False, 0, 1
        self._mask: Tensor | None = None
        self._generated: list[Tensor] = []
        for layer in self._layers.values():
            layer.pending = []

    def _begin(self, body: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a pass: read what is pending if this pass cannot wait with it."""
        ids = kwargs.get("input_ids", args[0] if args else None)
        inputs = ids if ids is not None else kwargs["inputs_embeds"]
        n, count = inputs.shape[:2]
        if not n or not count:
            raise ValueError(f"the model was given {n} texts of {count} tokens. {NO_TOKEN}")
        if len(self._last_layer.pending) < self._pending:  # the pass before broke off
            self._read_pending()
        cache, mask = kwargs.get("past_key_values"), _token_mask(kwargs.get("attention_mask"))
        length = 0 if cache is None else int(cache.get_seq_length())
        if length == 0:
            if mask is not None and not bool(mask.any(1).all()):
                empty = int(mask.any(1).int().argmin())
                raise ValueError(f"the mask leaves no token of text {empty}. {NO_TOKEN}")
            self._start(n, inputs.device)
        elif length != self._length or n != self._n:
            raise RuntimeError(
                f"the model goes on after {length} tokens of {n} sequences, the watch has seen "
                f"{self._length} of {self._n}. Begin before the first pass; keep the rows."
            )
        block = length == 0 or count > 1 or self._block_next
        if self._pending and (block or self._block or not self._can_wait(mask)):
            self._read_pending()
        if block:
            ends = [] if self._eos_token_id is None else self._eos_token_id
            self._end_ids = torch.as_tensor(ends, dtype=torch.long, device=inputs.device).flatten()
            self._blocks_read, self._block_next = self._blocks_read + 1, False
            self._can_end = len(self._end_ids) > 0
        self._length, self._count, self._block, self._mask = length + count, count, block, mask
        self._pending += 1
        if self._can_end and not block:
            self._generated.append(inputs.new_full((n, 1), -1).long() if ids is None else ids.clone())

    def _can_wait(self, mask: Tensor | None) -> bool:
        """Whether another token can be pending; the last mask must cover all pending tokens."""
        if mask is None or self._mask is None:
            return mask is self._mask and self._pending < self._pending_limit
        return self._pending < min(self._pending_limit, mask.shape[1])

    def _read_pending(self) -> None:
        """Let the probes read what is pending; a pass that broke off does not count."""
        passes, layers = len(self._last_layer.pending), self._layers.values()
        if passes:
            device = self._n_read.device
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                products = concatenated(
                    [layer.pending_products(passes, self._block).to(device) for layer in layers], -1
                )
                if self._block:
                    self._read_block(products)
                else:
                    self._read_tokens(products, passes)
            self._pending_limit = pending_limit(self._n, max(layer.width for layer in layers))
        if passes < self._pending:
            self._length -= self._count
        self._clear_pending()

    def _read_tokens(self, products: Tensor, passes: int) -> None:
        """Read generated tokens. Those of a text that has ended do not count until another turn begins."""
        real = None if self._mask is None else self._mask[:, -self._pending :][:, :passes]
        generated = concatenated(self._generated[:passes], 1) if self._generated else None
        counts, n_read = counted_tokens(self._n_read, passes, real, generated, self._end_ids, self._skip)
        self._running.read(products, counts, True)
        self._n_read = n_read
        self._answer.append((products, counts))

    def _read_block(self, products: Tensor) -> None:
        """Read a prompt, or an addition to it: a text that had ended goes on.

        Tokens of the last answer that did not count then count now where the mask has them.
        """
        products = concatenated([*(answer for answer, _ in self._answer), products], 1)
        count, mask = products.shape[1], self._mask
        real = None if mask is None else mask[:, -count:]
        n_read = torch.full_like(self._n_read, self._length - count)
        n_read = n_read if mask is None else mask[:, :-count].sum(1, True)
        counts, n_read = counted_tokens(n_read, count, real, None, self._end_ids, self._skip)
        if self._answer:
            counted = concatenated([answer_counts for _, answer_counts in self._answer], 1)
            counts[:, : counted.shape[1]] &= ~counted
        self._running.read(products, counts, False)
        self._n_read, self._answer = n_read, []

    def _recent(self, passes: int | None) -> Tensor:
        """Scores after the last so many passes, or all, of all probes side by side: (n, passes, K)."""
        self._read_pending()
        return self._running.recent(passes)

    def _end(self, passed: Tensor) -> None:
        """No further token of these sequences counts."""
        self._n_read = self._n_read.masked_fill(passed[:, None], -ENDED)

    def _probes_of(self, layer: int) -> LayerProbes:
        return self._layers[self._indices[layer]]

    def _by_layer(self, scores: Tensor) -> dict[int, Any]:
        """Scores (…, K) by layer and name; those of several classes stay together, (…, k)."""
        by_layer: dict[int, Any] = {}
        classes = [k for layer in self._layers.values() for k in layer.classes.values()]
        columns = iter(scores.split(classes, -1))
        for requested in self._indices:
            layer = self._probes_of(requested)
            by_name = {name: next(columns).squeeze(-1) for name in layer.classes}
            named = {name: by_name[name] for name in layer.names}  # in the caller's order
            by_layer[requested] = named[""] if layer.single else named
        return by_layer


def watch(model: nn.Module, probes: Mapping[int, Any], *, skip: int = 1) -> Watch:
    """Keep running scores of probes on the hidden states of a decoder, while it generates or just reads.

    probes: {layer: probe}, layers as `heads.activations` counts them (0 the embeddings, k after block k, −1
        after the last norm); a fitted AttentionProbe or its `to_torch()`, or {name: probe} for several.
    skip: so many first tokens of each text do not count: 1 where the probe was fitted without the sink that a
        language model's first token is, as `heads.activations` leaves it out.

    A prompt is read as one block, then token by token with the cache; padding does not count, nor does what
    comes after a sequence's end. The scores equal `decision_function` of the same states. A chat that goes on
    in the same cache is one text: another `generate`, or a block, goes on scoring every row, and its mask
    says what is in answers that had ended. Beams and assisted decoding are refused. Works with transformers'
    decoders (Llama, Mistral, Qwen, Gemma, GPT-2, …).
    """
    if not isinstance(probes, Mapping) or not probes:
        raise ValueError(f"probes is {probes!r}. Pass {{layer: probe}}.")
    if not is_integer(skip) or skip < 0:
        raise ValueError(f"skip is {skip!r}. Pass a number of tokens, at least 0.")
    return Watch(model, probes, skip)


# ---------------------------------------------------------------------- the decoder and its hooks


def _decoder_parts(model: nn.Module) -> tuple[nn.Module, nn.ModuleList, nn.Module]:
    """The module that runs the blocks, the blocks, and the norm after the last block."""
    for body in model.modules():
        blocks, norm = first_attribute(body, BLOCKS), first_attribute(body, NORMS)
        if isinstance(blocks, nn.ModuleList) and isinstance(norm, nn.Module):
            return body, blocks, norm
    raise ValueError(
        f"{type(model).__name__} has no blocks ({' or '.join(BLOCKS)}) with a norm after them "
        f"({', '.join(NORMS)}). Pass a decoder of transformers."
    )


def _state_width(model: nn.Module, norm: nn.Module) -> int | None:
    """Features of a decoder's states, by the norm after the last block or by its configuration."""
    weight = next(norm.parameters(), None)
    if weight is not None:
        return int(weight.shape[-1])
    width = getattr(getattr(model, "config", None), "hidden_size", None)
    return width if isinstance(width, int) else None


def _layer_index(layer: int, count: int) -> int:
    """A layer, which may be counted from the end, as transformers numbers its hidden_states."""
    if not is_integer(layer) or not -count - 1 <= layer <= count:
        numbers = f"0 (embeddings) to {count}, or from the end"
        raise ValueError(f"layer {layer!r} of a model of {count} blocks. Pass a whole number: {numbers}.")
    return int(layer) % (count + 1)


def _hook(
    layer: LayerProbes, watching: weakref.ref[Watch], number: int, blocks: nn.ModuleList, norm: nn.Module
) -> Any:
    """A hook that gives the layer its states, as transformers numbers its hidden_states."""

    def receive(states: Tensor) -> None:
        if (alive := watching()) is not None:
            layer.add(states, alive._block)

    if number < len(blocks):

        def pre_hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            receive(args[0] if args else kwargs["hidden_states"])

        return blocks[number].register_forward_pre_hook(pre_hook, with_kwargs=True)
    return norm.register_forward_hook(lambda module, args, out: receive(out))


def _begin_hook(watching: weakref.ref[Watch]) -> Any:
    def pre_hook(body: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (alive := watching()) is not None:
            alive._begin(body, args, kwargs)

    return pre_hook


def _remove(hooks: list[Any], model: nn.Module, watching: weakref.ref[Watch]) -> None:
    for hook in hooks:
        hook.remove()
    _remove_watch(model, watching)


def _token_mask(mask: Any) -> Tensor | None:
    """The mask, which must be one of tokens (n, T), or None."""
    if mask is not None and (not isinstance(mask, Tensor) or mask.ndim != 2):
        raise NotImplementedError(
            "the model was given a mask of pairs, from which padding cannot be read (a static cache). "
            "Generate with the default cache."
        )
    return mask


# ---------------------------------------------------------------------- stopping


def threshold_number(threshold: Any, sure: bool) -> float:
    """A threshold as a number; sure takes the upper end of its interval."""
    if isinstance(threshold, int | float) and not isinstance(threshold, bool) and not math.isnan(threshold):
        return float(threshold)
    if not hasattr(threshold, "threshold"):
        raise TypeError(f"threshold is {threshold!r}. Pass a number or what probe.threshold_at_fpr returned.")
    return float(threshold.high if sure else threshold.threshold)


def _criteria(watching: Watch, limits: list[float], every: int, stop: bool, on_pass: OnPass | None) -> Any:
    """The transformers.StoppingCriteriaList of `Watch.stop_at`. limits: one per score, NaN for no limit."""
    try:
        from transformers import StoppingCriteria, StoppingCriteriaList
    except ModuleNotFoundError as error:
        raise missing("stopping a generation needs transformers", "hf") from error

    unlimited = [math.isnan(limit) for limit in limits]

    class ScorePassed(StoppingCriteria):
        def __init__(self) -> None:
            self.blocks_read, self.calls, self.reported = -1, 0, set[tuple[Any, int]]()
            self.no_row = self.limits = self.unlimited = torch.zeros(0)

        def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
            if watching._blocks_read != self.blocks_read:
                self.blocks_read, self.calls, self.reported = watching._blocks_read, 0, set()
                device = input_ids.device
                self.no_row = torch.zeros(len(input_ids), dtype=torch.bool, device=device)
                self.limits, self.unlimited = (torch.tensor(x, device=device) for x in (limits, unlimited))
            self.calls += 1
            if self.calls % every:
                return self.no_row
            recent = watching._recent(every)
            over = ~(recent < self.limits)  # true for NaN, too: what cannot be scored must not go on
            over = over & ~self.unlimited if any(unlimited) else over
            passed = over.flatten(1).any(1)
            if stop:
                watching._end(passed)
            if on_pass is not None and passed.any():
                self.report(on_pass, recent, over)
            return passed if stop else self.no_row

        def report(self, on_pass: OnPass, recent: Tensor, over: Tensor) -> None:
            for row, column in torch.nonzero(over.any(1)).tolist():
                key = watching._keys[column]
                if (key, row) not in self.reported:
                    self.reported.add((key, row))
                    on_pass(key, row, float(recent[row, over[row, :, column], column][0]))

    return StoppingCriteriaList([ScorePassed()])


# ---------------------------------------------------------------------- the model's `generate`


class WatchedGenerate:
    """model.generate, which tells the watches what ends a text and refuses what they could not follow.

    Refused are methods that move sequences between rows or take tokens back, and a second generation before
    the first has ended. One serves all watches of a model, which come and go in any order.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.original = model, model.generate
        self.overridden = "generate" in vars(model)  # by the instance, not by its class
        self.watch_refs: list[weakref.ref[Watch]] = []
        self.busy = False

    @property
    def watches(self) -> list[Watch]:
        """The watches that are not deleted."""
        return [alive for reference in self.watch_refs if (alive := reference()) is not None]

    def __call__(self, *args: Any, **options: Any) -> Any:
        config = options.get("generation_config") or getattr(self.model, "generation_config", None)
        beams = options.get("num_beams", getattr(config, "num_beams", 1)) or 1
        assisted = options.get("assistant_model") or options.get("prompt_lookup_num_tokens")
        if beams > 1 or assisted:
            method = f"num_beams={beams}" if beams > 1 else "assisted decoding"
            raise ValueError(
                f"{method}: rows are reordered or tokens taken back, so a running score would mix sequences. "
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
                end_ids = options["eos_token_id"] if "eos_token_id" in options else _eos_token_id(config)
                watching._begin_generation(end_ids)
            return self.original(*args, **options)
        finally:
            self.busy = False
            default = _eos_token_id(getattr(self.model, "generation_config", None))
            for watching in self.watches:
                watching._eos_token_id, watching._block_next = default, False


def _add_watch(model: nn.Module, watching: Watch) -> None:
    """Register a watch with the model's `generate`; a model without `generate` needs nothing."""
    if getattr(model, "generate", None) is None:
        return
    if not isinstance(model.generate, WatchedGenerate):
        model.generate = WatchedGenerate(model)
    model.generate.watch_refs.append(weakref.ref(watching))


def _remove_watch(model: nn.Module, reference: weakref.ref[Watch]) -> None:
    """Remove a watch from the model's `generate`; without any watch the model's own `generate` comes back."""
    generate = getattr(model, "generate", None)
    if not isinstance(generate, WatchedGenerate) or reference not in generate.watch_refs:
        return
    generate.watch_refs.remove(reference)
    if not generate.watch_refs:
        del model.generate
        if generate.overridden:
            model.generate = generate.original


def _eos_token_id(config: Any) -> Any:
    """The tokens that end a text."""
    return getattr(config, "eos_token_id", None)
