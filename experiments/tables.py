"""The tables of docs/practice/transformers.md, from the package's records:  python experiments/tables.py"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.figures.figure import Arrays
from attsvm.figures.max_margin_selection import vision_sparsity
from attsvm.figures.mirror_descent import sentiment, trials
from attsvm.figures.ours import head_ranks
from attsvm.figures.recorded import recorded

ROWS = {"1.1": "mirror, p = 1.1", "2": "GD (p = 2)", "3": "mirror, p = 3"}


def main() -> None:
    runs, arrays = recorded("transformers")["runs"], sentiment.experiment()
    cells_of_reviews(arrays)
    for rule in sentiment.OTHERS:
        curve = arrays[f"test 3 {rule} 0"]
        epochs = arrays[f"epoch 3 {rule} 0"]
        print(f"  size 3  {rule:16} {curve.max():.2f} at epoch {epochs[curve.argmax()]} of {epochs[-1]}")
    gains_of_reviews(arrays)
    pairs_of_reviews(arrays)
    initialisations(arrays)
    for what, (mean, spread) in trials.COLLAPSED.items():
        found = trials.one_apart(mean, -spread if what == "epochs" else spread)
        words = "all but one at {:.2f}, one at {:.2f}".format(*found)
        nine = "{:.2f} ± {:.2f}".format(*getattr(trials.UNMASKED["1.1"], what))
        print(f"published, size 6, p = 1.1: {what} {mean:.2f} ± {spread:.2f}: {words}; the nine {nine}")
    print("key weights: below 0.005, above 0.06, largest; pivotal words at start and end")
    for name in runs:
        if name.startswith("sentiment") and "mirror" in name:
            end, words = runs[name]["last"], runs[name]["pivotal"]
            counts = (end["histogram_key"][0], end["large_key"])
            print(f"  {name}: {counts}, {end['largest_key']:.3f}; {words[0]:.2f}, {words[-1]:.2f}")
    print("norm, entropy and top mass by layer, at the start and at the end (12 epochs for Adam)")
    for name, run in runs.items():
        if name.startswith("sentiment") and name.endswith(("-0", "selective")):
            layers = np.array(run["layers"])
            at = 1 if "adam" in name else -1
            print(f"  {name}: {layers[0].round(3).tolist()} → {layers[at].round(3).tolist()}")
            if "temperature" in run:
                best = 100 * max(run["test_accuracy"])
                print(f"    temperature {run['temperature'][0]} → {run['temperature'][at]}; best {best:.2f}")
    print(
        "images: test accuracy, soft sparsity and key-query norm at the start, at its least, and at the end"
    )
    nets = [name for name in runs if name.startswith(("vision", "patches", "digits"))]
    for name in nets:
        run = runs[name]
        soft, norm = np.array(run["soft_sparsity"]), np.array(run["norm_last"])
        best = f"{run['test_accuracy'][0]:.3f} → {run['test_accuracy'][-1]:.3f} in {run['epoch'][-1]} epochs"
        at = [0, *run["epoch"]][soft.argmin()]
        least = f"{soft[0]:.0f}, {soft.min():.0f} (epoch {at}), {soft[-1]:.0f}"
        if name.startswith("digits"):
            most = f"most later {soft[1:].max():.2f}"
            least = f"{soft[0]:.2f}, {soft.min():.2f} (epoch {at}), {most}, {soft[-1]:.2f}"
        print(f"  {name}: {best}; {least}; {norm[0]:.3f} → {norm[-1]:.3f}, most {norm.max():.3f}")
        print(f"    rank correlation {vision_sparsity.ranks(soft, norm):.3f}")
    added_to_heads()
    margins_by_the_law()
    temperatures()


def cells_of_reviews(arrays: Arrays) -> None:
    """Each training's best and last test accuracy and epochs; means and spreads beside the published ones."""
    print("movie reviews: best test accuracy, % (epochs, * not to its end); mean ± sd of those to their end")
    for (size, p), published in trials.PUBLISHED.items():
        print(f"  size {size}  {ROWS[p]}; published {_told(published)}, {published.trials} trials")
        for words, keys in (("own", trials.own(arrays, size, p)), ("one", trials.shared(arrays, size, p))):
            each = ", ".join(
                f"{trials.best(arrays, key):.2f} ({arrays[f'trained {key}']}"
                + f"{'' if arrays[f'ended {key}'] else '*'})"
                for key in keys
            )
            found = [trials.measured(arrays, keys, what) for what in trials.MEASURES]
            means = (f"{what} {_spread(x)}" for what, x in zip(trials.MEASURES, found, strict=True))
            print(f"    {words} initialisation: {each}; n = {len(found[0])}: {', '.join(means)}")
    for p, published in trials.UNMASKED.items():
        print(f"  size 6  {ROWS[p]}; as printed, of another net: {_told(published)}")


def _told(published: trials.Published) -> str:
    pairs = zip(trials.MEASURES, published, strict=False)
    return ", ".join(f"{what} {mean:.2f} ± {spread:.2f}" for what, (mean, spread) in pairs)


def _spread(values: Any) -> str:
    if len(values) < 2:
        return " ".join(f"{x:.2f}" for x in values) or "none"
    return f"{values.mean():.2f} ± {values.std(ddof=1):.2f}"


def gains_of_reviews(arrays: Arrays) -> None:
    """p = 1.1 minus p = 2 seed by seed, with Student's intervals."""
    for size in trials.SIZES:
        for what in ("best", "last"):
            gains, epochs = trials.gain(arrays, size, what)
            words = "one seed" if len(gains) < 2 else "95 %: {:.2f} to {:.2f}".format(*trials.interval(gains))
            theirs = [getattr(trials.PUBLISHED[size, p], what)[0] for p in trials.PS[:2]]
            print(
                f"gain of p = 1.1, size {size}, {what}, {epochs} epochs: {gains.round(2)}, mean "
                f"{gains.mean():.2f}, n = {len(gains)}; {words}; published {theirs[0] - theirs[1]:.2f}"
            )
    for size in trials.SIZES:
        for until in (10, 14, 20):
            seeds = range(len(trials.gain(arrays, size)[0]))
            sides = [[trials.best(arrays, f"{size} {p} {s}", until) for s in seeds] for p in trials.PS[:2]]
            gains = np.subtract(*sides)
            print(f"  size {size}, after {until} epochs: {gains.round(2)}, mean {gains.mean():.2f}")
    for size in trials.SIZES:
        for key in trials.own(arrays, size, "3"):
            epochs, curve = arrays[f"epoch {key}"], arrays[f"test {key}"]
            low, high = (trials.best(arrays, f"{size} {p} {key.split()[2]}") for p in ("2", "1.1"))
            best, at, last = curve.max(), epochs[curve.argmax()], arrays[f"trained {key}"]
            print(
                f"  size {size}, p = 3, seed {key.split()[2]}: best {best:.2f} at epoch {at} of {last}, "
                f"{best - low:.2f} above p = 2, {high - best:.2f} below p = 1.1"
            )


def pairs_of_reviews(arrays: Arrays) -> None:
    """What p = 1.1 does to weights and selections, over or minus p = 2, seed by seed; where the best is."""
    for size in trials.SIZES:
        seeds = range(len(trials.gain(arrays, size)[0]))
        sides = [[f"{size} {p} {s}" for s in seeds] for p in trials.PS[:2]]
        small, large, words = (
            [np.array([get(arrays, key) for key in keys], float) for keys in sides]
            for get in (
                lambda arrays, key: arrays[f"histogram {key}"][0],
                lambda arrays, key: arrays[f"large {key}"],
                lambda arrays, key: arrays[f"pivotal {key}"][-1],
            )
        )
        gains = words[0] - words[1]
        told = "one seed" if len(gains) < 2 else "95 %: {:.2f} to {:.2f}".format(*trials.interval(gains))
        print(f"size {size}, p = 1.1 over p = 2: key weights below 0.005 {(small[0] / small[1]).round(3)}")
        print(f"  above 0.06 {(large[0] / large[1]).round(2)}, mean {(large[0] / large[1]).mean():.2f}")
        means = ", ".join(f"{x.mean():.2f}" for x in words)
        print(f"  pivotal words {means}: {gains.round(2)}, mean {gains.mean():.2f}; {told}")
        at = [int(arrays[f"epoch {key}"][arrays[f"test {key}"].argmax()]) for keys in sides for key in keys]
        print(f"  best after {at} epochs")


def initialisations(arrays: Arrays) -> None:
    """How far initial weights spread what is measured, how far order and dropout do; and the published."""
    for what in trials.MEASURES:
        between = trials.between(arrays, what)
        if not between[1]:
            continue
        print(f"{what}: sd with own initial weights {between[0]:.3f} ({between[1]} degrees of freedom)")
        less = {}
        for cell, published in trials.PUBLISHED.items():
            values = trials.measured(arrays, trials.own(arrays, *cell), what)
            if len(values):
                found = float(values.mean()) - getattr(published, what)[0]
                words = "{:.2f} [{:.2f}, {:.2f}]".format(*trials.one_more(found, between, len(values)))
                _, *all_six = trials.one_more(found, between, len(values), of=6)
                words += "; as one of six [{:.2f}, {:.2f}]".format(*all_six)
                print(f"  size {cell[0]}, p = {cell[1]}, n = {len(values)}: ours less published {words}")
                less[cell] = found, len(values)
        for size in trials.SIZES:
            (a, n), (b, _) = less[size, "1.1"], less[size, "2"]  # ours share their initial weights
            words = "{:.2f} [{:.2f}, {:.2f}]".format(*trials.one_more((a + b) / 2, between, n, 2))
            print(f"  size {size}, p = 1.1 and 2 together: {words}")
    cells = [cell for cell in trials.PUBLISHED if len(trials.alike(arrays, *cell)) > 1]
    ours = trials.pooled([trials.alike(arrays, *cell) for cell in cells])
    apart = trials.pooled([trials.measured(arrays, trials.own(arrays, *cell), "best") for cell in cells])
    theirs = float(np.sqrt(np.mean([trials.PUBLISHED[cell].best[1] ** 2 for cell in cells])))
    for cell in cells:
        each = trials.alike(arrays, *cell)
        print(
            f"best of size {cell[0]}, p = {cell[1]} from one initialisation: {each.round(2)} {_spread(each)}"
        )
    for words, within in (("ours", ours), ("published", (theirs, 9 * len(cells)))):
        found = "{:.1f} [{:.1f}, {:.1f}]".format(*trials.ratio(apart, within))
        print(
            f"  of these cells, sd of own initialisations {apart[0]:.2f} ({apart[1]}), of one, {words}, "
            f"{within[0]:.2f} ({within[1]}); quotient of the variances {found}"
        )


def added_to_heads() -> None:
    """What optimizers of W_Q and W_K added, by seed, with intervals; by layer; and with longer steps."""
    arrays, runs = head_ranks.experiment(), recorded("factors")["runs"]
    print("what training added to a head: seeds, mean, 95 % interval")
    for rule in (*head_ranks.RULES, *head_ranks.WHOLE):
        print(f"  {rule}")
        found = {measure: head_ranks.seeds(arrays, rule, measure) for measure in head_ranks.MEASURES}
        found |= {name: 100 * arrays[f"{name} {rule}"] for name in ("best", "stop")}
        found |= {name: arrays[f"{name} {rule}"] for name in ("epochs", "loss")}
        for name, values in found.items():
            low, high = head_ranks.interval(values)
            each = ", ".join(f"{x:.4g}" for x in values)
            print(f"    {name}: {each}; {_digits(values.mean())} [{_digits(low)}, {_digits(high)}]")
        layers = arrays[f"heads {rule}"].mean(0).reshape(3, -1, 3).mean(1)
        for measure, values in zip(head_ranks.MEASURES, layers.T, strict=True):
            print(f"    by layer, {measure}: {', '.join(_digits(x) for x in values)}")
        first = arrays[f"first {rule}"]
        print(f"    after one epoch: {', '.join(_digits(x) for x in first[:, 3:].mean(0))}")
        powers = np.log(found["length"] / first[:, 5]) / np.log(found["epochs"])
        print(f"    length grows like epochs to the power {powers.mean():.2f}")
    for name, run in runs.items():
        if name.endswith("4e-4"):
            ranks = ", ".join(_digits(x) for x in np.mean(run["heads"], 0))
            print(f"  {name}: {ranks}; loss {run['loss']:.3f}, test {100 * run['best']:.2f}")


def _digits(x: float) -> str:
    """Two decimals below ten, one below a hundred."""
    return f"{x:.2f}" if x < 10 else f"{x:.1f}"


def margins_by_the_law() -> None:
    """Shares of the certified margin and cosines, of W and of what was added, on shared selections."""
    for kind in ("own", "same"):
        if found := head_ranks.margins(kind):
            print(f"margins by the law, {kind} selections: W, its cosine; what was added, its cosine")
        for rule, norms in found.items():
            for norm, (heads, numbers) in norms.items():
                words = (f"{mean:.3f} [{low:.3f}, {high:.3f}]" for mean, low, high in numbers)
                print(f"  {rule} {norm} ({heads} heads): {', '.join(words)}")


def temperatures() -> None:
    """Growth of the heads' norms by layer with Adam, with a learned temperature and without."""
    runs, interval = recorded("factors")["runs"], trials.interval
    plain, selective = (
        [runs[f"sentiment-3-adam-{seed}{end}"] for seed in range(head_ranks.SEEDS)]
        for end in ("", "-selective")
    )
    print("growth of norms by layer with Adam, without and with a learned temperature; percent saved")
    for words, at in (("at equal loss", -1), ("after six epochs", 6)):
        grown = np.array(
            [[np.subtract(run["norms"][at], run["norms"][0]) for run in some] for some in (plain, selective)]
        )
        for layer, saved in enumerate(100 * (1 - grown[1] / grown[0]).T):
            means = ", ".join(f"{x:.3f}" for x in grown[:, :, layer].mean(1))
            ends = "{:.0f}, {:.0f}".format(*interval(saved))
            print(f"  {words}, layer {layer + 1}: {means}; saved {saved.mean():.0f} [{ends}]")
    lost = np.array([100 * (a["best"] - b["best"]) for a, b in zip(plain, selective, strict=True)])
    means = ", ".join(f"{100 * np.mean([run['best'] for run in some]):.2f}" for some in (plain, selective))
    ends = "{:.2f}, {:.2f}".format(*interval(lost))
    print(f"  best test: {means}; lost {lost.mean():.2f} [{ends}]")
    for run in selective:
        print(f"  temperature {run['temperature']}; {run['epochs']:.1f} epochs, loss {run['loss']:.3f}")
    last = np.mean([run["temperature"][1] for run in selective], 0)
    print(f"  mean temperature at the end: {', '.join(f'{x:.2f}' for x in last)}")


if __name__ == "__main__":
    main()
