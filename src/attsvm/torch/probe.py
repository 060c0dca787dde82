"""Scores of hidden states by one fitted probe. This file needs torch, and nothing else.

    python THIS_FILE.py states.safetensors …       prints a line of JSON for each file that vLLM wrote

A line has the score, or the error of a file that has none; the exit status is then 1.
In Python: `score(hidden_states)` of a whole request; `Running().read(newest)` while it is generated.
"""

# A part of attsvm.torch. `AttentionProbe.export` writes this file with the numbers of a probe in `PROBE`.

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PROBE: dict[str, Any] = {}
"""layer, skip, width; arrays and maps (arrays of each feature map) by name: shape, and float64 in base64."""


# ---------------------------------------------------------------------- softmax


def attention(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax weights of logits (…, T), zero where the mask (…, T) is False.

        s_t = e^(a_t − a_max) / (1 + Σ_{losing} e^(a_j − a_max)),    s_winner = 1 − Σ_{losing} s_t

    Half precision is computed and returned in float32.
    """
    relative, winner = relative_logits(logits, mask)
    losing, _ = losing_weights(relative, winner)
    return torch.where(winner, 1 - losing.sum(-1, keepdim=True), losing)


def relative_logits(logits: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits minus the winner's, −∞ where masked, and which token is the winner: the first largest."""
    if not logits.is_floating_point() or logits.ndim < 1 or logits.shape[-1] < 1:
        kind = f"{logits.dtype} with shape {tuple(logits.shape)}"
        raise ValueError(f"logits are {kind}, expected real numbers (…, T) with T ≥ 1.")
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if mask is not None:
        logits = logits.masked_fill(~_checked(mask, logits), -torch.inf)
    index = logits.argmax(-1, keepdim=True)
    winner = torch.arange(logits.shape[-1], device=logits.device) == index
    return logits - logits.gather(-1, index), winner


def losing_weights(relative: Tensor, winner: Tensor) -> tuple[Tensor, Tensor]:
    """The losing tokens' weights (…, T), zero for the winner, and log Σ_t e^relative_t (…, 1)."""
    terms = torch.where(winner, 0, relative.exp())
    total = terms.sum(-1, keepdim=True)
    return terms / (1 + total), total.log1p()


def _checked(mask: Tensor, logits: Tensor) -> Tensor:
    """The mask in the shape of the logits; a row without a token is refused."""
    if mask.dtype != torch.bool:
        raise ValueError(f"mask is {mask.dtype}. Pass booleans, True where a token counts: mask.bool().")
    try:
        mask = mask.expand(logits.shape)
    except RuntimeError:
        shapes = f"mask has shape {tuple(mask.shape)} but logits have {tuple(logits.shape)}"
        raise ValueError(f"{shapes}. Pass one boolean per token.") from None
    if not bool(mask.any(-1).all()):
        raise ValueError("the mask of some row is False everywhere. Give every row a token to attend to.")
    return mask


class SoftmaxState(NamedTuple):
    """The tokens of n growing sequences as one token: its logit and its value in every head.

        total = log Σ_t e^{l_t},    mean = Σ_t e^{l_t − total} v_t

    total (n, 1, …), mean (n, 1, …). Before the first token, total is the smallest number of the type.
    """

    total: Tensor
    mean: Tensor

    @classmethod
    def empty(cls, n: int, heads: Sequence[int], values: Sequence[int], device: Any) -> SoftmaxState:
        """Before the first token. In float64 where the device has it: totals are rounded at every read."""
        dtype = torch.float32 if torch.device(device).type == "mps" else torch.float64
        total = torch.full((n, 1, *heads), torch.finfo(dtype).min, dtype=dtype, device=device)
        return cls(total, torch.zeros((n, 1, *values), dtype=dtype, device=device))

    def extended(self, logits: Tensor, values: Tensor, every_token: bool = False) -> SoftmaxState:
        """The state after more tokens: logits (n, t, …), −∞ where a token does not count, values (n, t, …).

        every_token: the states after each of the tokens, (n, t, …) instead of (n, 1, …).
        Reference: Milakov, Gimelshein 2018, "Online normalizer calculation for softmax".
        """
        logits, values = logits.to(self.total.dtype), values.to(self.mean.dtype)
        if logits.shape[1] == 1:
            new_share = torch.sigmoid(logits - self.total)
            return SoftmaxState(torch.logaddexp(self.total, logits), torch.lerp(self.mean, values, new_share))
        logits, values = torch.cat([self.total, logits], 1), torch.cat([self.mean, values], 1)
        totals = logits.logcumsumexp(1)
        if not every_token:
            return SoftmaxState(totals[:, -1:], (logits.softmax(1) * values).sum(1, True))
        # Sums are kept as logarithms, those of positive and of negative values apart, so that no sum loses
        # digits to a later and larger logit.
        log_sums = (logits + torch.stack([values, -values]).clamp_min(0).log()).logcumsumexp(2)
        positive, negative = (log_sums - totals).exp()
        return SoftmaxState(totals[:, 1:], (positive - negative)[:, 1:])

    def moved(self, places: int, slopes: Tensor) -> SoftmaxState:
        """The state with logits relative to the place of a later token; slopes: of the logits per place."""
        return self._replace(total=self.total - places * slopes)


def by_place(logits: Tensor, slopes: Tensor) -> Tensor:
    """Logits (n, t, h) with slopes (h,) from one token to the next; the place of the next token is 0."""
    places = torch.arange(-logits.shape[1], 0, dtype=slopes.dtype, device=logits.device)
    return logits + places[:, None] * slopes


# ---------------------------------------------------------------------- feature maps


class Kernel(nn.Module):
    """φ(x) = ((1 + γ ‖(x − mean)/scale − l_j‖²)^(−power))_j root: features of tokens (n, T, d) → (n, T, m).

    Computed in float64 where the device has it, as in the fitted probe: the distances of large tokens cancel,
    and the root multiplies their errors.
    """

    landmarks: Tensor
    mean: Tensor
    scale: Tensor
    root: Tensor

    def __init__(self, gamma: Any, power: Any, **arrays: Any) -> None:
        super().__init__()
        self.gamma, self.power = float(gamma[0]), float(power[0])
        for name, array in arrays.items():
            self.register_buffer(name, torch.as_tensor(array, dtype=torch.float64))

    def forward(self, tokens: Tensor) -> Tensor:
        x = (tokens.to(self.mean.dtype) - self.mean) / self.scale
        squares = (x * x).sum(-1, keepdim=True) + (self.landmarks**2).sum(1) - 2 * x @ self.landmarks.T
        kernel = (1 + self.gamma * squares.clamp(min=0)) ** -self.power
        return kernel @ self.root

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Kernel:
        """Move or convert the buffers; to a device without float64 (Apple's) they go in float32."""
        try:
            fn(self.mean)
        except TypeError:
            return super()._apply(lambda buffer: fn(buffer.float()), recurse)
        return super()._apply(fn, recurse)


def feature_module(**arrays: Any) -> nn.Module:
    """The feature map that has these arrays; the identity where there are none."""
    return Kernel(**arrays) if "root" in arrays else nn.Identity()


# ---------------------------------------------------------------------- the probe


class Probe(nn.Module):
    """Scores of token sequences by h prompts, each with an attention and values of its own.

        a_h = softmax(X p_h),   score_k = Σ_h Σ_t a_th (v_hk · x_t) + b_k

    prompts (d, h), head (d, h, k), intercept (k,): parameters; `head` are the vectors v, the linear map from
    tokens to scores. centre (d,), a buffer, is subtracted from the tokens before the products, which keeps
    their digits in float32. Two classes have one score.
    maps: feature maps of the tokens, whose outputs stand side by side; none: the tokens themselves.
    slopes (h,): what each head adds to its logits from one token to the next; large where it reads the last.
    dtype: of parameters, products and scores; float32 unless given.
    """

    centre: Tensor
    slopes: Tensor

    def __init__(
        self,
        prompts: Any,
        head: Any,
        intercept: Any,
        centre: Any,
        maps: Sequence[nn.Module] = (),
        slopes: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dtype = dtype or torch.float32
        self.maps = nn.ModuleList(maps)
        p, v, b, c = (torch.as_tensor(x, dtype=torch.float64) for x in (prompts, head, intercept, centre))
        rise = torch.zeros(p.shape[1]) if slopes is None else torch.as_tensor(slopes)
        self.register_buffer("centre", c.to(dtype))
        self.register_buffer("slopes", rise.to(dtype), persistent=False)
        # With the rounded centre: the exact one would leave v · (centre − rounded) in every score.
        b = b + torch.einsum("d,dhk->k", self.centre.double(), v)
        self.prompts, self.head, self.intercept = (nn.Parameter(x.to(dtype)) for x in (p, v, b))

    @property
    def width(self) -> int:
        """Features of a token that this probe reads."""
        means = (feature_map.mean for feature_map in self.maps if hasattr(feature_map, "mean"))
        return int(next(means, self.centre).shape[0])

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores (n,), or (n, k) of several classes; tokens (n, T, d), mask (n, T): True where one counts."""
        logits, values = self._products(tokens, mask)
        weights = self._weights(logits, mask).to(values.dtype)
        return self._scores(torch.einsum("nht,nthk->nhk", weights, values))

    def attention(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention (n, h, T)."""
        logits, _ = self._products(tokens, mask)
        return self._weights(logits, mask)

    def start(self, n: int = 1) -> SoftmaxState:
        """Before the first token of n sequences."""
        _, h, k = self.head.shape
        return SoftmaxState.empty(n, (h, 1), (h, k), self.head.device)

    def step(
        self, state: SoftmaxState, tokens: Tensor, mask: Tensor | None = None
    ) -> tuple[SoftmaxState, Tensor]:
        """The states after one more token of each sequence (n, d), or a block (n, T, d), and the scores.

        mask (n, T): True where a token of the block counts. The score of a sequence without any token is the
        intercept.
        """
        logits, values = self._products(tokens if tokens.ndim == 3 else tokens[:, None], mask)
        if mask is not None:
            logits = logits.masked_fill(~mask[..., None], -torch.inf)
            values = values.masked_fill(~mask[..., None, None], 0)
        before = state.moved(logits.shape[1], self.slopes[:, None])
        state = before.extended(logits[..., None], values)
        return state, self._scores(state.mean[:, 0].to(values.dtype))

    def streaming(self) -> Streaming:
        """`step` as a module whose state is an input and an output: for torch.export and servers."""
        return Streaming(self)

    def _products(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits (n, T, h), by the place before the next token where a head reads the last one, and values
        (n, T, h, k); padding, which may be NaN, is set to zero."""
        if tokens.ndim != 3 or tokens.shape[2] != self.width:
            raise ValueError(f"tokens have shape {tuple(tokens.shape)}. Pass (n, T, {self.width}).")
        if mask is not None:
            tokens = tokens.masked_fill(~mask[..., None], 0)
        if len(self.maps):
            tokens = torch.cat([feature_map(tokens) for feature_map in self.maps], -1)
        # Differences before rounding.
        x = (tokens - self.centre).to(self.centre.dtype)
        return by_place(x @ self.prompts, self.slopes), torch.einsum("ntd,dhk->nthk", x, self.head)

    @staticmethod
    def _weights(logits: Tensor, mask: Tensor | None) -> Tensor:
        """Attention (n, h, T) of logits (n, T, h)."""
        return attention(logits.transpose(1, 2), None if mask is None else mask[:, None])

    def _scores(self, pooled: Tensor) -> Tensor:
        scores = pooled.sum(1) + self.intercept
        return scores[:, 0] if scores.shape[1] == 1 else scores


class Streaming(nn.Module):
    """(total, mean, tokens (n, d)) → (total, mean, scores): `Probe.step` with its state."""

    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.probe = probe

    def forward(self, total: Tensor, mean: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        state, scores = self.probe.step(SoftmaxState(total, mean), tokens)
        return *state, scores


# ---------------------------------------------------------------------- a probe in a file of its own


@cache
def exported() -> Probe:
    """The probe whose numbers stand in this file, in float64."""
    maps = [feature_module(**_arrays(entry)) for entry in PROBE["maps"]]
    return Probe(**_arrays(PROBE["arrays"]), maps=maps, dtype=torch.float64).requires_grad_(False)


def _arrays(entries: dict[str, Any]) -> dict[str, Tensor]:
    return {
        name: torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float64).reshape(shape)
        for name, (shape, text) in entries.items()
    }


class Running:
    """The score of a request that is still generated: a few numbers, for any length."""

    def __init__(self) -> None:
        self.read_tokens, self.counted_tokens = 0, 0
        self.state, self.scores = exported().start(), torch.empty(1)

    def read(self, newest: Tensor) -> Any:
        """The score of all tokens so far, after the next states (t, layers, d), or (t, d) of the layer.

        One number, of the second class; a list of several classes. None before a token counts. Raises
        ValueError for a NaN or infinite state, and is then as before.
        """
        states = of_layer(newest)
        skipped = max(0, PROBE["skip"] - self.read_tokens)
        counted = states[skipped:].detach().to("cpu", torch.float64)
        if not counted.isfinite().all():
            raise ValueError("a state is NaN or infinite. Leave its token out.")
        self.read_tokens += len(states)
        if len(counted):
            self.state, self.scores = exported().step(self.state, counted[None])
            self.counted_tokens += len(counted)
        return self.scores[0].tolist() if self.counted_tokens else None


def score(hidden_states: Tensor) -> Any:
    """The score of a whole request: states (T, layers, d), or (T, d) of the layer."""
    return Running().read(hidden_states)


def of_layer(states: Tensor) -> Tensor:
    """The states (T, d) of the probe's layer."""
    states = torch.as_tensor(states)
    if states.ndim == 3:
        if not PROBE["layer"] < states.shape[1]:
            problem = f"states have {states.shape[1]} layers, none at position {PROBE['layer']}"
            raise ValueError(f"{problem}. Export the probe with another layer=.")
        states = states[:, PROBE["layer"]]
    if states.ndim != 2 or states.shape[1] != PROBE["width"]:
        raise ValueError(f"states have shape {tuple(states.shape)}. Pass (T, {PROBE['width']}).")
    return states


TYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}


def read_states(path: str | Path) -> Tensor:
    """hidden_states (T, layers, d) of a .safetensors file, once whoever writes it is ready."""
    lock = Path(f"{path}.lock")
    if fcntl is not None and lock.exists():
        with lock.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_SH)
    content = bytearray(Path(path).read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    try:
        entry = json.loads(content[8:start])["hidden_states"]
        shape, dtype, (begin, end) = entry["shape"], TYPES[entry["dtype"]], entry["data_offsets"]
    except (ValueError, TypeError, KeyError):
        expected = f"hidden_states of {', '.join(TYPES)}"
        raise ValueError(f"the file is damaged, or has no {expected}. Pass one that vLLM wrote.") from None
    if start + end > len(content):
        raise ValueError("the file ends before its states do. Read it when it is written.")
    if begin == end:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(content[start + begin : start + end], dtype=dtype).reshape(shape)


def main(paths: list[str]) -> int:
    """Print the scores of files, and return 1 if one of them has none because of an error."""
    if not paths or paths[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    failed = 0
    for path in paths:
        line: dict[str, Any] = {"request": Path(path).name.removesuffix(".safetensors"), "tokens": 0}
        try:
            states = read_states(path)
            line["tokens"], line["score"] = len(states), score(states)
        except (ValueError, OSError) as error:
            line["error"], failed = str(error), 1
        print(json.dumps(line), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
