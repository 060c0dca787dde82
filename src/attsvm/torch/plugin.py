"""Scores of the hidden states of requests by one fitted probe. This file needs torch, and nothing else.

    python THIS_FILE.py states.safetensors …       prints a line of JSON for each file that vLLM wrote

A line has the score, or the error of a file that has none; the exit status is then 1.
In Python: `score(hidden_states)` of a whole request; `Running().read(newest)` while it is generated.
"""

import base64
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PROBE: dict[str, Any] = {}
"""layer, skip, classes; kinds of the feature maps; arrays by name: shape, and float64 in base64."""

TYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}


@cache
def array(name: str) -> Tensor:
    """An array of the probe."""
    shape, text = PROBE["arrays"][name]
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float64).reshape(shape)


class Running:
    """The score of a request that is still generated: a few numbers, for any length."""

    def __init__(self) -> None:
        self.read_tokens = 0
        self.prompts, self.head, self.intercept = array("prompts"), array("head"), array("intercept")
        self.slopes = array("slopes")  # large where a head reads the last token, else 0
        _, h, k = self.head.shape
        self.top = torch.full((h,), -torch.inf, dtype=torch.float64)
        self.total, self.sums = torch.zeros(h).double(), torch.zeros(h, k).double()

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
        x = features(counted)
        if len(x):
            places = torch.arange(-len(x), 0, dtype=torch.float64)[:, None]
            logits = x @ self.prompts + places * self.slopes
            values = torch.einsum("td,dhk->thk", x, self.head)
            before = self.top - len(x) * self.slopes
            top = torch.maximum(before, logits.amax(0))
            weights, decay = torch.exp(logits - top), torch.exp(before - top)
            self.total = decay * self.total + weights.sum(0)
            self.sums = decay[:, None] * self.sums + torch.einsum("th,thk->hk", weights, values)
            self.top = top
        if not self.total.any():
            return None
        scores = (self.sums / self.total[:, None]).sum(0) + self.intercept
        return scores.item() if len(scores) == 1 else scores.tolist()


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


def features(x: Tensor) -> Tensor:
    """What the prompts attend to: the states, or maps of them side by side."""
    maps = [MAPS[kind](x, f"map {i} ") for i, kind in enumerate(PROBE["maps"])]
    return torch.cat(maps, 1) if maps else x


def rational_kernel(x: Tensor, prefix: str) -> Tensor:
    """(1 + γ ‖x − landmark‖²)^(−power), times a root."""
    parts = ("landmarks", "mean", "scale", "root", "gamma", "power")
    landmarks, mean, scale, root, gamma, power = (array(prefix + part) for part in parts)
    standard, exact = (x - mean) / scale, "donot_use_mm_for_euclid_dist"  # squares of large tokens cancel
    return (1 + gamma * torch.cdist(standard, landmarks, compute_mode=exact) ** 2) ** -power @ root


def rectified(x: Tensor, prefix: str) -> Tensor:
    """[x − mean, max(0, (x − mean) A + b)]."""
    mean, into, bias = (array(prefix + part) for part in ("mean", "into", "bias"))
    return torch.cat([x - mean, torch.relu((x - mean) @ into + bias)], 1)


MAPS = {"tokens": lambda x, prefix: x, "rbf": rational_kernel, "relu": rectified}


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
