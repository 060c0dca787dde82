"""Is the low rank that gradient descent writes into a head a stop? Small encoders of digits, on a CPU:

    python lab/experiments/head_stops.py train out/stops       # 42 trainings, some eight minutes of one core
    python lab/experiments/head_stops.py record out/stops      # lab/records/head_stops.json
    python lab/experiments/head_stops.py table                 # the numbers of the pages

Only W_Q and W_K of each head have different optimizers, as in plan-factors.txt. At some epochs of a training
it records where every head stands (`head_kkt.py`), what was added to it, and what the sum of the gradients
along the same path would have added. The net is that of `run.py digits` (two blocks of two heads, width 32).
A training that has ended is not repeated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attsvm._support.progress import ProgressLine
from factors import rounded
from head_kkt import ascent, cosine, first_tokens, length, pairs, stable_rank, standing
from head_stop_table import SEEDS, STUDENT, WIDTH, heads_at, stops, table
from optimizers import QUERY_KEY
from run import DIGITS, digits
from summary import here, write
from tasks import Vision
from training import Settings, train

RATE, BATCH = 1e-3, 50
RULES = {
    "adam+gd-heads": "gd",
    "adam+schatten4-heads": "schatten4",
    "adam+muon-heads": "muon",
    "adam": "adam",
}
NORM_OF_STEPS = QUERY_KEY | {"adam": QUERY_KEY["sign"]}
"""Adam's steps have no norm. Without memory they are those of sign descent."""
STARTS = (1.0, 0.1, 0.01)
"""Of W_Q and W_K at the start, by the usual size."""
EPOCHS, REST = 16, 32
LOOKS = frozenset((0, 1, 2, 4, 8, 16, 32))
"""Epochs after which every head is looked at."""
READ = 400
"""So many train examples give the gradient M."""
CONTROLS = ("rest", "centred")
"""Of gradient descent from the usual start. rest: goes on from a training of the grid, W_Q and
W_K of the last block alone. centred: no head sees the mean first token."""


def main(arguments: list[str] | None = None) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("what", choices=("train", "record", "table"))
    parser.add_argument("out", type=Path, nargs="?", default=Path("out/stops"))
    parser.add_argument("--record", type=Path, default=FOUND)
    options = parser.parse_args(arguments)
    if options.what == "table":
        runs = json.loads(options.record.read_text(encoding="utf8"))["runs"]
        print("\n".join([*table(runs), "", *details(runs)]))
    elif options.what == "record":
        gathered(options.out, options.record)
    else:
        torch.set_num_threads(1)
        cells = [(rule, start, "") for start in STARTS for rule in RULES]
        cells += [("adam+gd-heads", 1.0, control) for control in CONTROLS]
        with ProgressLine(total=SEEDS * len(cells)) as line:
            for count, (cell, seed) in enumerate((cell, k) for cell in cells for k in range(SEEDS)):
                line.show(named(*cell, seed), count)
                trained(*cell, seed, options.out)


def named(rule: str, start: float, control: str, seed: int) -> str:
    return "-".join([RULES[rule], f"{start:g}", *control.split(), str(seed)])


def trained(rule: str, start: float, control: str, seed: int, out: Path) -> None:
    """One training of the grid or of a control, in a folder of its name."""
    folder = out / named(rule, start, control, seed)
    if (folder / "last.json").is_file():
        return
    task = Vision(digits(), "cpu", batch=BATCH, **DIGITS)
    task.make = starting(task.make, start, control == "centred")
    look = HeadLook(task, NORM_OF_STEPS[RULES[rule]], [(task.train.pixels[:READ], task.train.labels[:READ])])
    kind, weights = (rule, RATE, seed), None
    settings = Settings(f"digits {start:g} {control}", 2, *kind, EPOCHS, np.inf)
    if control == "rest":
        weights = out / named(rule, start, "", seed) / "checkpoint.safetensors"
        whole = {"start": weights.parent.name, "only": "last-query-key"}
        settings = Settings(f"digits {start:g} {control}", 2, *kind, REST, np.inf, **whole)
    train(task, settings, folder, look=look, save_every=np.inf, every=EPOCHS // 2, start=weights)


def starting(make: Callable[[], nn.Module], size: float, centred: bool) -> Callable[[], nn.Module]:
    """Models whose W_Q and W_K begin `size` times as large; centred: without the mean first token."""

    def begun() -> nn.Module:
        model = make()
        for block in model.blocks:
            for layer in (block.attention.query, block.attention.key):
                layer.weight.data *= size
            if centred:
                block.attention.register_forward_pre_hook(_centred, with_kwargs=True)
        return model

    return begun


def _centred(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Softmax forgets the constant that keys move by; values move by one that biases learn."""
    mean = first_tokens(args[0], kwargs.get("line")).mean(0)
    return (args[0] - mean, *args[1:]), kwargs


# ---------------------------------------------------------------------- what is read off a training


class GradientSums:
    """Sums over batches of every head's gradients of W_K and W_Q, each of length one, and their mean rank."""

    def __init__(self, layers: list[Any]) -> None:
        self.heads, self.ranks = layers[0].heads, []
        kinds = [[layer.key.weight for layer in layers], [layer.query.weight for layer in layers]]
        self.sums: list[list[Any]] = [[0.0] * len(layers), [0.0] * len(layers)]
        for kind, weights in enumerate(kinds):
            for place, weight in enumerate(weights):
                weight.register_hook(lambda g, at=(kind, place): self._add(g, *at))

    def _add(self, gradient: Tensor, kind: int, place: int) -> None:
        heads = gradient.detach().unflatten(0, (self.heads, -1)).double()
        unit = heads / length(heads)[:, None, None].clamp_min(1e-300)
        self.sums[kind][place] = self.sums[kind][place] - unit
        self.ranks.append(float((1 / torch.linalg.eigvalsh(unit @ unit.mT)[:, -1]).mean()))

    def totals(self) -> list[Tensor]:
        """Of K and of Q, (heads, d, m)."""
        return [torch.cat(kind).mT for kind in self.sums]

    def mean_rank(self) -> float:
        """Mean stable rank of a batch's gradient since the last call."""
        mean = float(np.mean(self.ranks))
        self.ranks.clear()
        return mean


class HeadLook:
    """Where every trained head stands, what was added to it, and what gradients alone would have added.

    added, gradients: stable ranks of what was added to W, and of what it would be if K and Q had gone as far
    along the sum of their gradients (of length one each); alike: the cosine of both. batch: mean stable rank
    of the gradients of single batches. step: of M Q Qᵀ + K Kᵀ M, the first step of gradient descent from
    here. query of M, query of added: the share of their squares along the mean first token. factors: share
    of K' − K times Q' − Q in what was added. grown: length of what was added, by that of W at the start.
    turned: cosine of M and its predecessor.
    """

    def __init__(self, task: Any, norm: Any, batches: list[Any]) -> None:
        self.task, self.norm, self.batches = task, norm, batches

    def __call__(self, model: nn.Module, epoch: int, folder: Path) -> dict[str, Any]:
        if epoch not in LOOKS:
            return {}
        (M, z), (K, Q) = ascent(self.task, model, self.batches), pairs(model)
        layers = [block.attention for block in model.blocks]
        trained = [layer.query.weight.requires_grad for layer in layers for _ in range(layer.heads)]
        M, z, K, Q = (x[torch.tensor(trained)] for x in (M, z, K, Q))
        columns = {"step": stable_rank(M @ Q @ Q.mT + K @ K.mT @ M), "query of M": along(M, z)}
        if epoch == 0:
            self.start, self.sums = (K, Q), GradientSums([x for x in layers if x.query.weight.requires_grad])
        else:
            columns |= self.changes(K, Q, z) | {"turned": cosine(M, self.M)}
        self.M = M
        rows = [standing(*each, self.norm) for each in zip(K, Q, M, strict=True)]
        for name, values in columns.items():
            for row, value in zip(rows, values.tolist(), strict=True):
                row[name] = value
        return {"standing": rows}

    def changes(self, K: Tensor, Q: Tensor, z: Tensor) -> dict[str, Tensor]:
        K0, Q0 = self.start
        added, parts = K @ Q.mT - K0 @ Q0.mT, []
        for now, before, total in zip((K, Q), (K0, Q0), self.sums.totals(), strict=True):
            parts.append(before + total * (length(now - before) / length(total))[:, None, None])
        summed = parts[0] @ parts[1].mT - K0 @ Q0.mT
        return {
            "added": stable_rank(added),
            "gradients": stable_rank(summed),
            "alike": cosine(added, summed),
            "batch": torch.full((len(K),), self.sums.mean_rank()),
            "query of added": along(added, z),
            "factors": length((K - K0) @ (Q - Q0).mT) / length(added),
            "grown": length(added) / length(K0 @ Q0.mT),
        }

    def last(self, model: nn.Module, epoch: int, folder: Path) -> dict[str, Any]:
        return {}


def along(M: Tensor, z: Tensor) -> Tensor:
    """Of ‖M‖², the part along unit queries z (heads, d)."""
    return (M @ z[:, :, None]).square().sum((1, 2)) / length(M).square()


# ---------------------------------------------------------------------- the record and its numbers

OF_HEADS = ("alignment", "rank", "inside", "beyond", "added")
"""What is recorded of every head at every look; of everything else the mean over heads."""
CURVES = ("epoch", "train_loss", "train_accuracy", "test_accuracy")
FOUND = Path(__file__).parents[1] / "records" / "head_stops.json"


def gathered(runs: Path, file: Path) -> None:
    """Write the record: by training its looks, means over heads, and OF_HEADS of every head."""
    command = "python lab/experiments/head_stops.py train out/stops"
    record: dict[str, Any] = {"made": here() | {"command": command}}
    record["made"]["versions"] |= {"torch": torch.__version__}
    record["runs"] = {last.parent.name: looked(last.parent) for last in sorted(runs.glob("*/last.json"))}
    write(file, rounded(record))


def looked(folder: Path) -> dict[str, Any]:
    lines = (folder / "records.jsonl").read_text(encoding="utf8").splitlines()
    looks = [record for record in map(json.loads, lines) if "standing" in record]
    run: dict[str, Any] = {name: [x.get(name) for x in looks] for name in CURVES}
    for name in looks[-1]["standing"][0]:
        rows = [[head[name] for head in x["standing"] if name in head] for x in looks]
        run[name] = [float(np.mean(row)) if row else None for row in rows]
    run["heads"] = {name: [[head.get(name) for head in x["standing"]] for x in looks] for name in OF_HEADS}
    return run


def details(runs: dict[str, Any]) -> list[str]:
    """A line for each cell with three seeds: at the end, mean over heads, mean over seeds [95 %]."""
    lines = []
    for cell in dict.fromkeys(name.rpartition("-")[0] for name in runs):
        seeds = [run for name, run in runs.items() if name.rpartition("-")[0] == cell]
        if len(seeds) < SEEDS:
            continue
        words = [f"{cell}: test {np.mean([run['test_accuracy'][-1] for run in seeds]):.3f}"]
        words += [f"{name} {spread([run[name][-1] for run in seeds])}" for name in PRINTED]
        words += [f"{name} by look {by_look(seeds, name)}" for name in WATCHED if name in seeds[-1]]
        lines += [*words, f"heads with s > 0, stops, largest alignment by look {counted(seeds)}", ""]
    return lines


PRINTED = ("train_loss", "added", "gradients", "alike", "batch", "step", "of M", "of W", "alignment")
PRINTED += ("balance", "query of M", "query of added", "factors", "grown")
WATCHED = ("added", "of M", "alignment", "query of M", "turned", "second")


def spread(values: list[float]) -> str:
    """Mean and Student's 95 % interval."""
    mean, half = np.mean(values), STUDENT * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]"


def by_look(seeds: list[dict[str, Any]], name: str) -> str:
    """The mean over seeds after every epoch that has a look."""
    columns = zip(seeds[0]["epoch"], *(run[name] for run in seeds if name in run), strict=True)
    return " ".join(f"{epoch}:{np.mean(row):.4g}" for epoch, *row in columns if None not in row)


def counted(seeds: list[dict[str, Any]]) -> str:
    """Of the heads at every look: how many grow, how many are at a stop, the largest alignment."""
    out = []
    for look, epoch in enumerate(seeds[0]["epoch"]):
        heads = heads_at(seeds, look)
        outwards = sum(head["inside"] > 0 for head in heads)
        largest = max(head["alignment"] for head in heads)
        out.append(f"{epoch}:{outwards} of {len(heads)}, {stops(heads, WIDTH)}, {largest:.2f};")
    return " ".join(out)


if __name__ == "__main__":
    main()
