"""Values and outputs trained along with attention: which program the weight of attention tends to.

    python lab/experiments/values_and_outputs.py weights --steps 40000     # W and v, minutes on one core

Prints a table: medians over seeds, with intervals by resampling.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np

import attsvm as att
from attsvm_lab import programs
from attsvm_lab.claims.instances import falling, limit_by_length, settled

RATIOS = (0.03, 0.1, 0.3, 1.0, 1.5, 3.0, 10.0)
RATE = 0.4
NORMS = {"GD": att.frobenius, "Muon": att.spectral, "sign": att.linf}


def trained(norm: att.Norm, ratio: float, seeds: list[int], size: tuple[int, ...], steps: int) -> att.Path:
    """W by normalised steps in a norm, and the head v by normalised GD with `ratio` times the rate."""
    tokens, v = att.datasets.sphere(*size, seed=seeds)
    rules = att.steepest(norm, falling(RATE)), att.steepest(att.frobenius, falling(RATE * ratio))
    return att.train(
        tokens,
        att.Linear(v),
        optimizer=rules[0],
        train_head=rules[1],
        steps=steps,
        record=[steps // 2, steps],
    )


def judged(path: att.Path, norm: att.Norm) -> dict[str, float] | None:
    """Shares at the end of one run, in percent; None where its selection still changed in the last half."""
    if not settled(path):
        return None
    tokens, selected, W, v = path.tokens, path.attention[-1].argmax(-1), path.final, path.v[-1]
    size = float(norm.value(W))
    label = tokens.labels * (tokens.values[np.arange(tokens.n), selected] @ v)
    best = at_record(path, norm, -1)
    try:
        plain = 100 * float(att.margin_ratio(path, att.max_margin(tokens, selected, norm))[-1])
    except att.NotSeparable:
        plain = np.nan
    try:
        head = 100 * float(label.min()) / np.linalg.norm(v) / float(att.label_svm(tokens, selected).margin)
    except att.NotSeparable:
        head = np.nan
    negative = bool(best.above.any())
    share, ratio = 100 * best.share(W), float(np.linalg.norm(v)) / size
    before = 100 * at_record(path, norm, -2).share(path.W[-2])
    return {
        "share": share,
        "limit": limit_by_length([before, share], path.norm(norm)),
        "plain": plain,
        "head": head,
        "negative": negative,
        "certified": best.certified,
        "ratio": ratio,
    }


def at_record(path: att.Path, norm: att.Norm, record: int) -> programs.OffsetMargin:
    """The offset program of the label margins that one record has."""
    tokens, selected = path.tokens, path.attention[-1].argmax(-1)
    label = tokens.labels * (tokens.values[np.arange(tokens.n), selected] @ path.v[record])
    return programs.offset_margin(tokens, selected, norm, offsets=label / float(norm.value(path.W[record])))


def interval(values: list[float], seed: int = 0) -> tuple[float, float, float]:
    """The median, and its 95 % interval by resampling."""
    draws = np.random.default_rng(seed).choice(np.array(values), (2000, len(values)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return float(np.median(values)), float(low), float(high)


def weights(options: argparse.Namespace) -> list[dict[str, object]]:
    """One row per norm and ratio of the rates."""
    seeds, rows = list(range(options.first, options.first + options.seeds)), []
    for name in options.norms:
        norm = NORMS[name]
        for ratio in RATIOS:
            runs = trained(norm, ratio, seeds, (options.n, 4, 6), options.steps)
            each = [judged(runs.run(k), norm) for k in range(len(seeds))]
            settled = [one for one in each if one is not None]
            rows.append({"norm": name, "ratio": ratio, "runs": each})
            print(line(name, ratio, settled, len(seeds)), flush=True)
    return rows


def line(name: str, ratio: float, runs: list[dict[str, float]], drawn: int) -> str:
    """A row of the table: runs without a negative row, and how many have one."""
    clean = [one for one in runs if not one["negative"]]
    words = [name, f"{ratio:g}", f"{len(clean)} of {drawn}"]
    for key in ("share", "limit", "plain", "head"):
        values = [one[key] for one in clean if np.isfinite(one[key])]
        words.append("{:.1f} ({:.1f} – {:.1f})".format(*interval(values)) if values else "–")
    words.append(f"{min((one['limit'] for one in clean), default=np.nan):.1f}")
    negative = [one["limit"] for one in runs if one["negative"]]
    words.append(f"{len(negative)}: {np.median(negative):.1f}" if negative else "0")
    return f"| {' | '.join(words)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["weights"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=5200)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--n", type=int, default=10)
    parser.add_argument("--norms", nargs="+", default=list(NORMS))
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", att.NotCertified)
    rows = {"weights": weights}[options.what](options)
    if options.record:
        options.record.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
