"""Probes beside a language model while it generates: a running score for every sequence of the batch.

The file holds the watch with its hooks, the stopping criterion made of its scores, and the replacement of the
model's `generate`. `running.py` reads what the hooks receive.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attsvm._support.architectures import BLOCKS, NORMS, first_attribute
from attsvm._support.optional_dependencies import missing
from attsvm._support.validation import as_integer, is_integer
from attsvm.torch.running import NO_TOKEN, DecoderPass, LayerProbes, TextReader

OnPass = Callable[[Any, int, float], None]
"""Called with the probe's key, the sequence and the score that passed the threshold."""


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
        self._model = model
        parts = _decoder_parts(model)
        indices = {layer: _layer_index(layer, len(parts.blocks)) for layer in probes}
        self._layers = {layer: LayerProbes(entry) for layer, entry in probes.items()}
        if len({*indices.values()}) < len(probes):
            raise ValueError(
                f"layers {[*probes]} name one twice. Pass {{layer: {{name: probe}}}} for several."
            )
        width = _state_width(model, parts.norm)
        for layer, layer_probes in self._layers.items():
            layer_probes.check_width(width, f"layer {layer}")
        last = self._layers[max(indices, key=indices.__getitem__)]
        self._texts = TextReader([*self._layers.values()], last, skip)
        self._set_generation(_eos_token_id(getattr(model, "generation_config", None)), begins=False)
        by_index = {indices[layer]: layer_probes for layer, layer_probes in self._layers.items()}
        hooks = _hooks(parts, by_index, weakref.ref(self))
        _add_watch(model, self)
        self._remove_hooks = weakref.finalize(self, _remove_watch, hooks, model, weakref.ref(self))
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
            if self._layers[layer].single:
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
            time that a probe's score of a sequence passes; with stop=False nothing else happens. NaN passes,
            because what cannot be scored must not go on.
        every: compare after so many tokens, then the scores of all tokens since the last comparison. These
            tokens are read together, which costs little more than reading one; a sequence may end so many
            tokens late.
        The score is that of all tokens that the model has read; the next pass reads the token just chosen.
        """
        by_layer = threshold if isinstance(threshold, Mapping) else dict.fromkeys(self._layers, threshold)
        if unknown := [layer for layer in by_layer if layer not in self._layers]:
            raise ValueError(
                f"no probe on layer {unknown[0]!r}. Pass {{layer: threshold}} of {[*self._layers]}."
            )
        for layer in by_layer:
            if max(self._layers[layer].classes.values()) > 1:
                raise ValueError(
                    f"a probe on layer {layer} has several classes. A threshold needs one score."
                )
        every = as_integer(every)
        if not (is_integer(every) and every >= 1):
            raise ValueError(f"every is {every!r}. Pass a number of tokens, at least 1.")
        limits = {layer: threshold_number(limit, sure) for layer, limit in by_layer.items()}
        columns = [ScoreColumn(key, limits.get(layer, math.nan)) for layer, key in self._columns()]
        return _criteria(ScoreLimits(self, columns, every, stop, call))

    def close(self) -> None:
        """Remove the hooks; the scores stay."""
        self._remove_hooks()

    def __repr__(self) -> str:
        layers = ", ".join(map(str, self._layers))
        size = f"{self._texts.n} sequences of {self._texts.length} tokens read"
        return f"Watch({type(self._model).__name__}, probes on layers {layers}: {size})"

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ while the model runs

    def _set_generation(self, eos_token_id: Any, begins: bool) -> None:
        """What ends a text from the next block on; begins: the next pass reads a block."""
        self._eos_token_id, self._block_next = eos_token_id, begins

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a pass of the decoder."""
        self._texts.begin(_decoder_pass(args, kwargs), self._block_next, self._eos_token_id)
        if self._texts.pending.block:
            self._block_next = False

    def _recent(self, passes: int | None) -> Tensor:
        """Scores after the last so many passes, or all, of all probes side by side: (n, passes, K)."""
        self._texts.read_pending()
        return self._texts.running.recent(passes)

    def _columns(self) -> Iterator[tuple[int, Any]]:
        """For each of the K scores its layer and its key: the layer, or (layer, name) of several probes."""
        for layer, probes in self._layers.items():
            for name, classes in probes.classes.items():
                yield from repeat((layer, layer if probes.single else (layer, name)), classes)

    def _by_layer(self, scores: Tensor) -> dict[int, Any]:
        """Scores (…, K) by layer and name; those of several classes stay together, (…, k)."""
        classes = [k for probes in self._layers.values() for k in probes.classes.values()]
        columns = iter(scores.split(classes, -1))
        by_layer: dict[int, Any] = {}
        for layer, probes in self._layers.items():
            by_name = {name: next(columns).squeeze(-1) for name in probes.classes}
            by_layer[layer] = by_name[""] if probes.single else {name: by_name[name] for name in probes.names}
        return by_layer


def watch(model: nn.Module, probes: Mapping[int, Any], *, skip: int = 1) -> Watch:
    """Keep running scores of probes on the hidden states of a decoder, while it generates or just reads.

    probes: {layer: probe}, layers as `heads.activations` counts them (0 the embeddings, k after block k, −1
        after the last norm); a fitted AttentionProbe or its `to_torch()`, or {name: probe} for several.
    skip: so many first tokens of each text do not count: 1 where the probe was fitted without the sink that a
        language model's first token is, as `heads.activations` leaves it out.

    A prompt is read as one block, then token by token with the cache; padding does not count, nor does what
    comes after a sequence's end. The scores equal `decision_function` of the same states. A chat in one cache
    is one text: another `generate`, or another block, continues the score of every row, and its mask says
    which tokens of the earlier answers count. Beams and assisted decoding are refused. Works with the
    decoders of transformers (Llama, Mistral, Qwen, Gemma, GPT-2, …).
    """
    if not isinstance(probes, Mapping) or not probes:
        raise ValueError(f"probes is {probes!r}. Pass {{layer: probe}}.")
    if not is_integer(skip) or skip < 0:
        raise ValueError(f"skip is {skip!r}. Pass a number of tokens, at least 0.")
    return Watch(model, probes, skip)


# ---------------------------------------------------------------------- the decoder and its hooks


class DecoderParts(NamedTuple):
    """The module that runs the blocks, the blocks, and the norm after the last block."""

    body: nn.Module
    blocks: nn.ModuleList
    norm: nn.Module


def _decoder_parts(model: nn.Module) -> DecoderParts:
    for body in model.modules():
        blocks, norm = first_attribute(body, BLOCKS), first_attribute(body, NORMS)
        if isinstance(blocks, nn.ModuleList) and isinstance(norm, nn.Module):
            return DecoderParts(body, blocks, norm)
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


def _hooks(
    parts: DecoderParts, layers: Mapping[int, LayerProbes], watching: weakref.ref[Watch]
) -> list[RemovableHandle]:
    """Hooks that give every layer its states, by its index among the hidden_states of transformers.

    The hooks refer to the watch weakly, so that a watch that is deleted removes them.
    """

    def begin(body: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (alive := watching()) is not None:
            alive._begin(args, kwargs)

    def add(probes: LayerProbes, states: Tensor) -> None:
        if (alive := watching()) is not None:
            probes.add(states, alive._texts.pending.block)

    def before_block(probes: LayerProbes, block: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        add(probes, args[0] if args else kwargs["hidden_states"])

    def after_norm(probes: LayerProbes, norm: nn.Module, args: Any, output: Tensor) -> None:
        add(probes, output)

    hooks = [parts.body.register_forward_pre_hook(begin, with_kwargs=True)]
    for index, probes in layers.items():
        if index < len(parts.blocks):
            hook = partial(before_block, probes)
            hooks.append(parts.blocks[index].register_forward_pre_hook(hook, with_kwargs=True))
        else:
            hooks.append(parts.norm.register_forward_hook(partial(after_norm, probes)))
    return hooks


def _decoder_pass(args: tuple[Any, ...], kwargs: dict[str, Any]) -> DecoderPass:
    """The inputs of a pass, from the arguments of the decoder's forward method."""
    ids = kwargs.get("input_ids", args[0] if args else None)
    inputs = ids if ids is not None else kwargs["inputs_embeds"]
    n, t = inputs.shape[:2]
    if not n or not t:
        raise ValueError(f"the model was given {n} texts of {t} tokens. {NO_TOKEN}")
    mask, cache = kwargs.get("attention_mask"), kwargs.get("past_key_values")
    if mask is not None and (not isinstance(mask, Tensor) or mask.ndim != 2):
        raise NotImplementedError(
            "the model was given a mask of pairs, from which padding cannot be read (a static cache). "
            "Generate with the default cache."
        )
    cached = 0 if cache is None else int(cache.get_seq_length())
    return DecoderPass(n, t, inputs.device, ids, mask, cached)


# ---------------------------------------------------------------------- stopping


def threshold_number(threshold: Any, sure: bool) -> float:
    """A threshold as a number; sure takes the upper end of its interval."""
    if isinstance(threshold, int | float) and not isinstance(threshold, bool) and not math.isnan(threshold):
        return float(threshold)
    if not hasattr(threshold, "threshold"):
        raise TypeError(f"threshold is {threshold!r}. Pass a number or what probe.threshold_at_fpr returned.")
    return float(threshold.high if sure else threshold.threshold)


class ScoreColumn(NamedTuple):
    """One of the K scores: its key (a layer, or layer and name), and its limit, NaN for no limit."""

    key: Any
    limit: float


class ScoreLimits:
    """Compares the scores of a watch with limits after every `every` tokens, and reports who passes.

    stop: what passes ends. on_pass: called once for each score and sequence until the next block.
    """

    def __init__(
        self, watching: Watch, columns: list[ScoreColumn], every: int, stop: bool, on_pass: OnPass | None
    ) -> None:
        self.watching, self.columns = watching, columns
        self.every, self.stop, self.on_pass = every, stop, on_pass
        self.all_limited = not any(math.isnan(column.limit) for column in columns)
        self.blocks_read = -1

    def ended(self, n: int, device: torch.device) -> Tensor:
        """After one more token of each sequence: which sequences end, booleans (n,)."""
        if self.watching._texts.blocks_read != self.blocks_read:
            self._start(n, device)
        self.calls += 1
        if self.calls % self.every:
            return self.no_row
        recent = self.watching._recent(self.every)
        over = ~(recent < self.limits)  # true for NaN, too: what cannot be scored must not go on
        over = over if self.all_limited else over & ~self.limits.isnan()
        passed = over.flatten(1).any(1)
        if self.stop:
            self.watching._texts.end(passed)
        if self.on_pass is not None and passed.any():
            self._report(self.on_pass, recent, over)
        return passed if self.stop else self.no_row

    def _start(self, n: int, device: torch.device) -> None:
        """After a block: count anew, and report every row anew."""
        self.blocks_read, self.calls = self.watching._texts.blocks_read, 0
        self.reported: set[tuple[Any, int]] = set()
        self.no_row = torch.zeros(n, dtype=torch.bool, device=device)
        self.limits = torch.tensor([column.limit for column in self.columns], device=device)

    def _report(self, on_pass: OnPass, recent: Tensor, over: Tensor) -> None:
        for row, k in torch.nonzero(over.any(1)).tolist():
            key = self.columns[k].key
            if (key, row) not in self.reported:
                self.reported.add((key, row))
                on_pass(key, row, float(recent[row, over[row, :, k], k][0]))


def _criteria(limits: ScoreLimits) -> Any:
    """The transformers.StoppingCriteriaList of `Watch.stop_at`."""
    try:
        from transformers import StoppingCriteria, StoppingCriteriaList
    except ModuleNotFoundError as error:
        raise missing("stopping a generation needs transformers", "hf") from error

    class ScorePassed(StoppingCriteria):
        def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
            return limits.ended(len(input_ids), input_ids.device)

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
                watching._set_generation(end_ids, begins=True)
            return self.original(*args, **options)
        finally:
            self.busy = False
            default = _eos_token_id(getattr(self.model, "generation_config", None))
            for watching in self.watches:
                watching._set_generation(default, begins=False)


def _add_watch(model: nn.Module, watching: Watch) -> None:
    """Register a watch with the model's `generate`; a model without `generate` needs nothing."""
    if getattr(model, "generate", None) is None:
        return
    if not isinstance(model.generate, WatchedGenerate):
        model.generate = WatchedGenerate(model)
    model.generate.watch_refs.append(weakref.ref(watching))


def _remove_watch(hooks: list[RemovableHandle], model: nn.Module, reference: weakref.ref[Watch]) -> None:
    """Remove a watch's hooks, and the watch from the model's `generate`.

    Without any watch the model's own `generate` comes back.
    """
    for hook in hooks:
        hook.remove()
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
