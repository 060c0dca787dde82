"""Probes beside a language model while it generates: a running score for every sequence of the batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attsvm.given import whole
from attsvm.torch.generating import ends_of, join, leave
from attsvm.torch.running import ENDED, Running, counting, joined
from attsvm.torch.stopping import Call, criteria, number
from attsvm.torch.watched_layer import Layer, decoder, place, room

NOTHING = "Pass at least one each; a text that is empty may begin with the tokenizer's bos_token."


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
        body, blocks, norm = decoder(model)
        self._names = {layer: place(layer, len(blocks)) for layer in probes}
        self._layers = {self._names[layer]: Layer(given) for layer, given in probes.items()}
        if len(self._layers) < len(probes):
            raise ValueError(
                f"layers {[*probes]} name one twice. Pass {{layer: {{name: probe}}}} for several."
            )
        self._last = self._layers[max(self._layers)]  # when it has been through, all have
        self._keys = [
            layer if self._of(layer).single else (layer, name)
            for layer in self._names
            for name, classes in self._of(layer).classes.items()
            for _ in range(classes)
        ]
        panels = [panel for layer in self._layers.values() for panel in layer.panels]
        self._member = torch.block_diag(*(panel.member for panel in panels))
        self._intercept = torch.cat([panel.intercept for panel in panels])
        self.begun, self._turn = 0, False  # so many times a prompt, or more of it, was read; one is next
        self._ends: Any = ends_of(getattr(model, "generation_config", None))
        self._start(0, torch.device("cpu"))
        self._hooks = [body.register_forward_pre_hook(self._begin, with_kwargs=True)]
        for k, layer in self._layers.items():
            self._hooks.append(_hook(layer, self, k, blocks, norm))
        join(model, self)

    @property
    def scores(self) -> dict[int, Any]:
        """The newest scores of every layer (n,), or {name: (n,)} where it has several probes."""
        return self._told(self._recent(1)[:, -1])

    @property
    def history(self) -> dict[int, Any]:
        """All scores of every layer, (n, passes): one of the prompt, then one of every token.

        Where the cache goes on in another turn, one of what was added, then one of every token of the answer.
        """
        return self._told(self._recent(None))

    def recent(self, last: int) -> Iterable[tuple[Any, Tensor]]:
        """The scores after the last so many passes, (n, last), by layer, or by (layer, name) of several."""
        for layer, told in self._told(self._recent(last)).items():
            yield from (
                [(layer, told)]
                if self._of(layer).single
                else (((layer, name), one) for name, one in told.items())
            )

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
            time that one passes; with stop=False nothing else happens. NaN, which no state should be, passes.
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
            if max(self._of(layer).classes.values()) > 1:
                raise ValueError(
                    f"a probe on layer {layer} has several classes. A threshold needs one score."
                )
        if not (whole(every) and every >= 1):
            raise ValueError(f"every is {every!r}. Pass a number of tokens, at least 1.")
        limits = {layer: number(one, sure) for layer, one in given.items()}
        layers = [key[0] if isinstance(key, tuple) else key for key in self._keys]
        return criteria(self, [limits.get(layer, math.nan) for layer in layers], every, stop, call)

    def close(self) -> None:
        """Remove the hooks; the scores stay."""
        for hook in self._hooks:
            hook.remove()
        leave(self._model, self)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ while the model runs

    def _begin_turn(self, ends: Any) -> None:
        """Before a generation: the next pass reads a prompt, or more of it; ends: tokens that end a text."""
        self._ends, self._turn = ends, True

    def _start(self, n: int, device: torch.device) -> None:
        """Before the first pass over new sequences."""
        self._length, self._rows = 0, n
        self._answer: list[tuple[Tensor, Tensor]] = []
        self._running = Running(self._member, self._intercept, n, device)
        self._seen = torch.zeros((n, 1), dtype=torch.long, device=device)
        self._forget()

    def _forget(self) -> None:
        """What was pending is read, or not wanted: one block, or some passes of a token each."""
        self._block, self._pending, self._count = False, 0, 1
        self._mask: Tensor | None = None
        self._words: list[Tensor] = []
        for layer in self._layers.values():
            layer.held = []

    def _begin(self, body: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a pass: what is pending is read if this one cannot wait with it."""
        ids = kwargs.get("input_ids", args[0] if args else None)
        given = ids if ids is not None else kwargs["inputs_embeds"]
        n, count = given.shape[:2]
        if not n or not count:
            raise ValueError(f"the model was given {n} texts of {count} tokens. {NOTHING}")
        if len(self._last.held) < self._pending:  # the pass before broke off
            self._catch_up()
        past, mask = kwargs.get("past_key_values"), _of_tokens(kwargs.get("attention_mask"))
        length = 0 if past is None else int(past.get_seq_length())
        if length == 0:
            if mask is not None and not bool(mask.any(1).all()):
                empty = int(mask.any(1).int().argmin())
                raise ValueError(f"the mask leaves no token of text {empty}. {NOTHING}")
            self._start(n, given.device)
        elif length != self._length or n != self._rows:
            raise RuntimeError(
                f"the model goes on after {length} tokens of {n} sequences, the watch has seen "
                f"{self._length} of {self._rows}. Begin before the first pass; keep the rows."
            )
        block = length == 0 or count > 1 or self._turn
        if self._pending and (block or self._block or not self._fits(mask)):
            self._catch_up()
        if block:
            ends = [] if self._ends is None else self._ends
            self._ending = torch.as_tensor(ends, dtype=torch.long, device=given.device).flatten()
            self.begun, self._turn, self._may_end = self.begun + 1, False, len(self._ending) > 0
        self._length, self._count, self._block, self._mask = length + count, count, block, mask
        self._pending += 1
        if self._may_end and not block:
            self._words.append(given.new_full((n, 1), -1).long() if ids is None else ids.clone())

    def _fits(self, mask: Tensor | None) -> bool:
        """Whether one more token can wait; the last mask has to tell of all that do."""
        if mask is None or self._mask is None:
            return mask is self._mask and self._pending < self._room
        return self._pending < min(self._room, mask.shape[1])

    def _catch_up(self) -> None:
        """Let the probes read what is pending; a pass that broke off does not count."""
        done, layers = len(self._last.held), self._layers.values()
        if done:
            with torch.no_grad(), torch.autocast(self._seen.device.type, enabled=False):
                parts = [layer.read(done, self._block).to(self._seen.device) for layer in layers]
                if self._block:
                    self._read_block(joined(parts, -1))
                else:
                    self._read_tokens(joined(parts, -1), done)
            self._room = room(len(self._seen), max(layer.width for layer in layers))
        if done < self._pending:
            self._length -= self._count
        self._forget()

    def _read_tokens(self, products: Tensor, done: int) -> None:
        """Some generated tokens: those of a text that has ended wait for another turn."""
        real = None if self._mask is None else self._mask[:, -self._pending :][:, :done]
        said = joined(self._words[:done], 1) if self._words else None
        counts, seen = counting(self._seen, done, real, said, self._ending, self._skip)
        self._running.read(products, counts, True)
        self._seen = seen
        self._answer.append((products, counts))

    def _read_block(self, products: Tensor) -> None:
        """A prompt, or what is added to it: a text that had ended goes on, with what of it the mask has."""
        before = [part for part, _ in self._answer]
        products = joined([*before, products], 1)
        count, mask = products.shape[1], self._mask
        real = None if mask is None else mask[:, -count:]
        seen = torch.full_like(self._seen, self._length - count)
        seen = seen if mask is None else mask[:, :-count].sum(1, True)
        counts, seen = counting(seen, count, real, None, self._ending, self._skip)
        if before:
            read = joined([counted for _, counted in self._answer], 1)
            counts[:, : read.shape[1]] &= ~read
        self._running.read(products, counts, False)
        self._seen, self._answer = seen, []

    def _recent(self, last: int | None) -> Tensor:
        """Scores after the last so many passes, or all, of all probes side by side: (n, passes, K)."""
        self._catch_up()
        return self._running.told(last)

    def _end(self, passed: Tensor) -> None:
        """No more token of these sequences counts."""
        self._seen = self._seen.masked_fill(passed[:, None], -ENDED)

    def _of(self, layer: int) -> Layer:
        return self._layers[self._names[layer]]

    def _told(self, scores: Tensor) -> dict[int, Any]:
        """Scores (…, K) by layer and name; those of several classes stay together, (…, k)."""
        found: dict[int, Any] = {}
        classes = [k for layer in self._layers.values() for k in layer.classes.values()]
        parts = iter(scores.split(classes, -1))
        for given in self._names:
            layer = self._of(given)
            told = {name: next(parts).squeeze(-1) for name in layer.classes}
            found[given] = told[""] if layer.single else {name: told[name] for name in layer.names}
        return found


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
    if not whole(skip) or skip < 0:
        raise ValueError(f"skip is {skip!r}. Pass a number of tokens, at least 0.")
    return Watch(model, probes, skip)


# ---------------------------------------------------------------------- details


def _hook(layer: Layer, watching: Watch, number: int, blocks: nn.ModuleList, norm: nn.Module) -> Any:
    """The states of a layer, as transformers numbers its hidden_states."""
    if number < len(blocks):

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            layer.take(args[0] if args else kwargs["hidden_states"], watching._block)

        return blocks[number].register_forward_pre_hook(before, with_kwargs=True)
    return norm.register_forward_hook(lambda module, args, out: layer.take(out, watching._block))


def _of_tokens(mask: Any) -> Tensor | None:
    """A mask (n, T) of tokens, or none."""
    if mask is not None and (not isinstance(mask, Tensor) or mask.ndim != 2):
        raise NotImplementedError(
            "the model was given a mask of pairs, from which padding cannot be read (a static cache). "
            "Generate with the default cache."
        )
    return mask
