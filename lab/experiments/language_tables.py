"""The tables of docs/practice/language.md, from the record:  python lab/experiments/language_tables.py"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm_lab.figures.ours import language
from attsvm_lab.figures.ours.head_ranks import bootstrap, interval
from attsvm_lab.figures.recorded import recorded

NORMS = ("nuclear", "Frobenius", "spectral")
HEADS = 8
"""Of a layer."""
WORDS = ("margin, %", "cosine", "margin of what was added, %", "its cosine")


def main() -> None:
    arrays, record = language.experiment(), recorded("language")
    for name, run in record["runs"].items():
        tokens, loss = run["tokens"][-1] / language.MILLION, run["fit"][-1]
        print(f"{name}: {tokens:.1f} million tokens, train loss {loss:.3f}, {run['seconds']:.0f} s")
    print(f"equal train loss: all {language.level(arrays):.3f}, ended {language.level(arrays, True):.3f}")
    for rule, (name, *_) in language.recorded_rules(arrays).items():
        print(name)
        described(arrays, rule, record["columns"][2:])
        kinds(arrays, rule, record["columns"][2:], record["kinds"])
    if "programs" in record:
        programs(record["programs"]["own"])
        together(record["programs"]["same"])


def described(arrays: Any, rule: str, columns: list[str]) -> None:
    """Losses, when heads begin to select, kinds of heads, and what was added."""
    tokens, begins = arrays[f"tokens {rule}"], arrays[f"begins {rule}"][0]
    added = arrays[f"added {rule}"]
    values = {"train loss": arrays[f"fit {rule}"][arrays[f"ended {rule}"], -1]}
    values |= {"test loss": arrays[f"test {rule}"][:, -1], "copies better by": arrays[f"copy {rule}"][:, -1]}
    for k, measure in enumerate(language.MEASURES):
        values |= {f"{measure} at the end": added[arrays[f"ended {rule}"], -1, k]}
        values |= {f"{measure}, first look": added[:, 0, k], f"{measure}, least": np.nanmin(added[..., k], 1)}
        for label, finished_only in (("all reach", False), ("ended ones reach", True)):
            loss = language.level(arrays, finished_only)
            values[f"{measure} at the loss that {label}"] = language.at_loss(arrays, rule, measure, loss)
    for name in language.COUNTS:
        counted(name, arrays[f"{name} {rule}"], tokens)
    for counts, fit in zip(arrays[f"selecting {rule}"], arrays[f"fit {rule}"], strict=False):
        for label, least in (("one head selects", 1), ("half of all heads select", len(begins) / 2)):
            at = int(np.argmax(counts >= least))
            print(f"  {label}: after {tokens[at]:.2f} million tokens, at train loss {fit[at]:.2f}")
    for name, each in values.items():
        seeds = ", ".join(f"{x:.3f}" for x in each)
        print(f"  {name}: {seeds}; mean {each.mean():.3f}{_ends(each)}")
    by_layer(arrays, rule, columns)


def counted(name: str, counts: Any, tokens: Any) -> None:
    """Heads of a kind, by seed: when there is the first, when half of the most, the most, and the end."""
    first = [f"{tokens[np.flatnonzero(row)[0]]:.2f}" for row in counts if row.any()]
    halfway = [f"{tokens[np.flatnonzero(row >= row.max() / 2)[0]]:.2f}" for row in counts if row.any()]
    print(
        f"  {name}: first head after {', '.join(first)} million tokens, half of the most {', '.join(halfway)}"
    )
    print(f"    most {counts.max(1).tolist()}, end {counts[:, -1].tolist()}, mean {counts[:, -1].mean():.1f}")


def kinds(arrays: Any, rule: str, columns: list[str], least: dict[str, float]) -> None:
    """The heads of each kind at the end: layer, head, share."""
    for name in ("first", "previous"):
        for seed, heads in enumerate(arrays[f"heads {rule}"]):
            shares = heads[:, columns.index(name)]
            selecting = [k for k in np.argsort(-shares) if shares[k] >= least[name]]
            listed = ", ".join(f"{k // HEADS + 1}.{k % HEADS + 1} {shares[k]:.2f}" for k in selecting)
            print(f"  {name}, net {seed}, layer.head and share: {listed or 'none'}")
    largest = arrays[f"heads {rule}"][..., columns.index("induction")].max(1)
    print(f"  largest induction score: {', '.join(f'{x:.3f}' for x in largest)}")


def by_layer(arrays: Any, rule: str, columns: list[str]) -> None:
    """Means over seeds and the heads of a layer at the end; heads that select, and when in the middle."""
    heads, begins = arrays[f"heads {rule}"], arrays[f"begins {rule}"]
    tokens = arrays[f"tokens {rule}"]
    layers = heads.reshape(len(heads), -1, HEADS, heads.shape[-1]).mean((0, 2))
    for layer, row in enumerate(layers):
        each = begins.reshape(len(begins), -1, HEADS)[:, layer].ravel()
        first_at = each[each >= 0]
        values = ", ".join(f"{name} {x:.3f}" for name, x in zip(columns, row, strict=True))
        middle = f"{tokens[int(np.median(first_at))]:.2f}" if first_at.size else "never"
        print(f"    layer {layer + 1}: {first_at.size} of {each.size} select, median from {middle}; {values}")


def _ends(values: Any) -> str:
    if len(values) < 2 or not (values > 0).all():
        return ""
    low, high = interval(values)
    return f" [{low:.3f}, {high:.3f}]"


def programs(nets: dict[str, Any]) -> None:
    """Of the kept heads of every net, by optimizer: mean over heads and seeds, 95 % bootstrap interval."""
    _certified(nets)
    for name, net in nets.items():
        places = [f"layer {layer + 1} head {head + 1} {score:.3f}" for layer, head, score in _places(net)]
        right = ", ".join(f"{head['right']:.3f}" for head in net)
        print(f"  {name}: {', '.join(places)}; next tokens chosen {right}")
    for rule in ("start", *language.RULES):
        names = (f"{begin}{rule}-{k}" for begin in ("language-20-", "") for k in range(language.SEEDS))
        heads = [head for name in names if name in nets for head in nets[name]]
        if heads:
            orders = np.array([head["ordered"][1:] for head in heads if head["ordered"][1] is not None])
            mass = np.mean([head["own"]["mass"] for head in heads])
            explained = ", ".join(f"{x:.3f}" for x in orders.mean(0))
            print(
                f"  {rule}: {len(heads)} heads, mass {mass:.3f}; explained by an order, chance: {explained}"
            )
            for norm in NORMS:
                print(f"    own {norm}: {_numbers([head['own'][norm][:4] for head in heads])}")


def _certified(nets: dict[str, Any]) -> None:
    certified = [head["own"][norm][4] for net in nets.values() for head in net for norm in NORMS]
    print(f"programs: {len(certified)}, certified {sum(certified)}")


def together(pairs: dict[str, Any]) -> None:
    """Two heads on equal choices: margins in percent, and those of the first by those of the second."""
    _certified(pairs)
    for name, pair in pairs.items():
        print(f"  {name}: {pair[0]['own']['used']} choices, {_places(pair)}")
        for norm in NORMS:
            first, second = (100 * head["own"][norm][0] for head in pair)
            cosines = ", ".join(f"{head['own'][norm][3]:.3f}" for head in pair)
            print(f"    {norm}: {first:.3f} and {second:.3f}, ratio {first / second:.2f}; cosines {cosines}")


def _places(net: list[Any]) -> list[Any]:
    return [head["head"] for head in net]


def _numbers(rows: list[Any]) -> str:
    """Mean over heads of each number with its interval."""
    out = []
    for label, scale, values in zip(WORDS, (100, 1, 100, 1), zip(*rows, strict=True), strict=True):
        if None not in values:
            mean, low, high = bootstrap(scale * np.array(values, float))
            out.append(f"{label} {mean:.3f} [{low:.3f}, {high:.3f}]")
    return "; ".join(out)


if __name__ == "__main__":
    main()
