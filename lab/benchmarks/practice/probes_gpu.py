"""Attention probes on one GPU: tokens that are resident there, one probe and many, beside the usual loop.

python lab/benchmarks/practice/probes_gpu.py [--tokens 1000000] [--width 4096] [--length 256] [--concepts 100]

Planted data in float16: for every concept one token of each sequence carries a mark and, against it, the
class. The peer is a plain loop after the recipe of EleutherAI/attention-probes (AdamW on mini-batches, the
tokens on the GPU as well); it is stopped at the first check at which its validation loss is as low as ours.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from attsvm.probe import AttentionProbe, ProbeSuite, TokenStore

RIDGES = {"head_ridge": 0.01, "prompt_ridge": 0.01}


def planted(tokens: int, width: int, length: int, concepts: int, device: str):
    """Tokens (n·T, d) in float16 on the device, and labels (n, concepts)."""
    draw = torch.Generator(device=device).manual_seed(0)
    n = tokens // length
    x = torch.empty(n * length, width, dtype=torch.float16, device=device)
    for block in x.split(1 << 16):
        block.normal_(generator=draw)
    mark, side = (torch.randn(concepts, width, generator=draw, device=device) for _ in range(2))
    mark, side = (8.0 * z / z.norm(dim=1, keepdim=True) for z in (mark, side))
    labels = torch.randint(0, 2, (n, concepts), generator=draw, device=device)
    first = torch.arange(n, device=device) * length
    for c in range(concepts):
        place = first + torch.randint(0, length, (n,), generator=draw, device=device)
        x[place] += (mark[c] + (2 * labels[:, c : c + 1] - 1) * side[c]).half()
    return x, labels.cpu().numpy(), n


def timed(work):
    """The result, and seconds of wall time with the device idle before and after."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result, time.perf_counter() - start


def loss_of(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(np.logaddexp(0, -(2 * labels - 1) * scores).mean())


def by_adamw(x, labels, length: int, learned: int, target: float, rate: float, limit: float, seed: int):
    """Seconds until the validation loss reaches the target; the loss at the end where it does not."""
    n, d = len(labels), x.shape[1]
    torch.manual_seed(seed)
    tokens, y = x.view(n, length, d), torch.as_tensor(labels, dtype=torch.float32, device=x.device)
    prompt, head = (torch.nn.Parameter(torch.randn(d, device=x.device) / d**0.5) for _ in range(2))
    bias = torch.nn.Parameter(torch.zeros((), device=x.device))
    optimizer = torch.optim.AdamW([prompt, head, bias], lr=rate, weight_decay=0.01)
    order = torch.Generator().manual_seed(seed)

    def scores(rows):
        block = tokens[rows].float()
        attention = torch.softmax(block @ prompt, 1)
        return (attention * (block @ head)).sum(1) + bias

    @torch.no_grad()
    def held_out() -> float:
        results = torch.cat([scores(slice(a, min(a + 128, n))) for a in range(learned, n, 128)])
        return float(torch.nn.functional.binary_cross_entropy_with_logits(results, y[learned:]))

    start, loss, checks, epoch = time.perf_counter(), float("inf"), 0.0, 0
    while time.perf_counter() - start - checks < limit:
        for rows in torch.randperm(learned, generator=order).split(128):
            optimizer.zero_grad()
            rows = rows.to(x.device)
            torch.nn.functional.binary_cross_entropy_with_logits(scores(rows), y[rows]).backward()
            optimizer.step()
        epoch += 1
        checked = time.perf_counter()
        loss = held_out()
        checks += time.perf_counter() - checked  # judging it is free of charge
        if loss <= target:
            break
    spent = time.perf_counter() - start - checks
    return {"seconds": spent, "loss": loss, "epochs": epoch, "reached": loss <= target}


def against_the_host(x, labels, length: int) -> dict[str, float]:
    """The same small fit on the GPU and by NumPy: objective and probabilities."""
    n = min(96, len(labels))
    tokens, offsets = x[: n * length], np.arange(n + 1) * length
    on_gpu = AttentionProbe(**RIDGES).fit(TokenStore.from_flat(tokens, offsets), labels[:n])
    host = TokenStore.from_flat(tokens.cpu().numpy(), offsets)
    on_cpu = AttentionProbe(**RIDGES).fit(host, labels[:n])
    distance = np.abs(on_gpu.predict_proba(host) - on_cpu.predict_proba(host)).max()
    return {
        "objective apart": abs(on_gpu.objective_ - on_cpu.objective_),
        "probabilities apart": float(distance),
    }


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--concepts", type=int, default=100)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each run of the peer")
    parser.add_argument("--seeds", type=int, default=3, help="of the peer, at every rate")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, labels, n = planted(options.tokens, options.width, options.length, options.concepts, device)
    learned = n * 4 // 5
    offsets = np.arange(n + 1) * options.length
    store = TokenStore.from_flat(x, offsets)
    train, validation = store[:learned], store[learned:]
    print(json.dumps({"device": device, "store": repr(store), "learned": learned}), flush=True)
    print(json.dumps({"host": against_the_host(x, labels[:, 0], options.length)}), flush=True)
    warnings.simplefilter("ignore", ConvergenceWarning)
    AttentionProbe(**RIDGES, max_iter=1).fit(train, labels[:learned, 0])  # libraries load, memory is taken

    for tolerance in (1e-6, 1e-4):
        fit = AttentionProbe(**RIDGES, tol=tolerance).fit
        probe, seconds = timed(lambda: fit(train, labels[:learned, 0]))  # noqa: B023
        loss = loss_of(probe.decision_function(validation), labels[learned:, 0])
        record = {
            "one probe": seconds,
            "tol": tolerance,
            "steps": probe.n_iter_,
            "objective": probe.objective_,
        }
        print(json.dumps(record | {"validation loss": loss}), flush=True)
    searched, seconds = timed(lambda: AttentionProbe().fit(train, labels[:learned, 0]))
    own = loss_of(searched.decision_function(validation), labels[learned:, 0])
    record = {
        "head_ridge": searched.head_ridge_,
        "prompt_ridge": searched.prompt_ridge_,
        "validation loss": own,
    }
    print(json.dumps({"one probe, ridges chosen": seconds, **record}), flush=True)
    suite, seconds = timed(lambda: ProbeSuite(**RIDGES).fit(train, labels[:learned]))
    auc = suite.auc(validation, labels[learned:]).auc
    record = {"concepts": options.concepts, "seconds": seconds, "mean AUC": float(auc.mean())}
    print(json.dumps(record), flush=True)
    for rate in (1e-4, 1e-3, 1e-2):  # to the loss of the last probe
        for seed in range(options.seeds):
            result = by_adamw(x, labels[:, 0], options.length, learned, loss, rate, options.limit, seed)
            print(json.dumps({"AdamW after EleutherAI's recipe": rate, "seed": seed, **result}), flush=True)
    if device == "cuda":
        print(json.dumps({"peak GB": torch.cuda.max_memory_allocated() / 2**30}))


if __name__ == "__main__":
    main()
