"""The tables of docs/practice/transformers.md, from the records: python lab/experiments/tables.py"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from attsvm_lab.figures.figure import Arrays
from attsvm_lab.figures.max_margin_selection import vision_sparsity
from attsvm_lab.figures.mirror_descent import sentiment, trials, vision
from attsvm_lab.figures.recorded import recorded

LATE = 80
"""Epochs after which p = 3 is tested a fifth as often."""
ROWS = {"1.1": "mirror, p = 1.1", "2": "GD (p = 2)", "3": "mirror, p = 3"}


def main() -> None:
    runs, arrays = recorded("transformers")["runs"], sentiment.experiment()
    page_of_reviews(arrays)
    cells_of_reviews(arrays)
    for rule in sentiment.OTHERS:
        curve = arrays[f"test 3 {rule} 0"]
        epochs = arrays[f"epoch 3 {rule} 0"]
        print(f"  size 3  {rule:16} {curve.max():.2f} at epoch {epochs[curve.argmax()]} of {epochs[-1]}")
    gains_of_reviews(arrays)
    pairs_of_reviews(arrays)
    untrained_scores()
    initialisations(arrays)
    for measure, (mean, spread) in trials.COLLAPSED.items():
        outlier = trials.outlier(mean, -spread if measure == "epochs" else spread)
        text = "all but one at {:.2f}, one at {:.2f}".format(*outlier)
        nine = "{:.2f} ± {:.2f}".format(*getattr(trials.UNMASKED["1.1"], measure))
        print(f"published, size 6, p = 1.1: {measure} {mean:.2f} ± {spread:.2f}: {text}; the nine {nine}")
    print("key weights: below 0.005, above 0.06, largest; pivotal words at start and end")
    for name in runs:
        if name.startswith("sentiment") and "mirror" in name:
            end, text = runs[name]["last"], runs[name]["pivotal"]
            counts = (end["histogram_key"][0], end["large_key"])
            print(f"  {name}: {counts}, {end['largest_key']:.3f}; {text[0]:.2f}, {text[-1]:.2f}")
    print("norm, entropy and top mass by layer, at the start and at the end (12 epochs for Adam)")
    for name, run in runs.items():
        if name.startswith("sentiment"):
            layers = np.array(run["layers"])
            at = 1 if "adam" in name else -1
            print(f"  {name}: {layers[0].round(3).tolist()} → {layers[at].round(3).tolist()}")
            if "temperature" in run:
                best = 100 * max(run["test_accuracy"])
                print(f"    temperature {run['temperature'][0]} → {run['temperature'][at]}; best {best:.2f}")
    images(runs)


def images(runs: dict[str, Any]) -> None:
    """Nets of pictures and digits: accuracy, soft sparsity and norm; weights of the ViTs at their end."""
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
            least += f"; train accuracy {run['train_accuracy'][-1]:.3f}"
        print(f"  {name}: {best}; {least}; {norm[0]:.3f} → {norm[-1]:.3f}, most {norm.max():.3f}")
        print(f"    rank correlation {vision_sparsity.rank_correlation(soft, norm):.3f}")
        if name.startswith("vision"):
            curve, end = dict(zip(run["epoch"], run["test_accuracy"], strict=True)), run["last"]
            points = ", ".join(
                f"{x:.3f} ({at})" for at, x in curve.items() if at in (1, 20, 50, 100, 150, 200)
            )
            counts = ((kind, end[f"histogram_{kind}"][0], end[f"large_{kind}"]) for kind in vision.KINDS)
            print(f"    test accuracy {points}; best {max(curve.values()):.3f}, {run['seconds']:.0f} s")
            print(
                "    weights below 0.005, above 0.06: "
                + "; ".join("{} {:,}, {:,}".format(*x) for x in counts)
            )


def page_of_reviews(arrays: Arrays) -> None:
    """The two tables of the page, line by line: the best epoch, then the last one and how many there were."""
    cells = {cell: trials.own_starts(arrays, *cell) for cell in trials.PUBLISHED}
    finished = [cell for cell, keys in cells.items() if len(trials.measured(arrays, keys, "best"))]
    spread = trials.start_spread(arrays)
    for cell, keys in cells.items():
        found = trials.measured(arrays, keys, "best")
        ours, cells_of_gain = f"{_spread(found)} ({len(found)})", ["", ""]
        if cell in finished:
            gain = float(found.mean()) - trials.PUBLISHED[cell].best[0]
            single, every = (
                trials.difference_interval(gain, spread, len(found), comparisons=count)
                for count in (1, len(finished))
            )
            cells_of_gain = [
                _bold(f"{round(gain, 2) + 0.0:.2f} {_ends(*single)}", *single),
                _bold(_ends(*every), *every),
            ]
        else:
            ours = ", ".join(f"{trials.best(arrays, key):.2f}" for key in keys) + ", stopped"
        shared = trials.shared_start_accuracies(arrays, *cell)
        row = [
            _cell(*cell),
            ours,
            f"{_spread(shared)} ({len(shared)})",
            _beside(*cell, "best", 2),
            *cells_of_gain,
        ]
        print(f"| {' | '.join(row)} |")
    for cell in finished:
        row = [_cell(*cell)]
        for measure, digits in (("last", 2), ("epochs", 1)):
            values = trials.measured(arrays, cells[cell], measure)
            row += [_spread(values, digits), _beside(*cell, measure, digits)]
        print(f"| {' | '.join(row)} |")


def _cell(size: int, p: str) -> str:
    return f"{size}, {p}{' (GD)' if p == '2' else ''}"


def _beside(size: int, p: str, measure: str, digits: int) -> str:
    """A published mean and spread; of size 6 that of this net, and what is printed."""
    texts = [
        "{:.{d}f} ± {:.{d}f}".format(*getattr(of, measure), d=digits)
        for of in (trials.PUBLISHED[size, p], trials.UNMASKED[p])
    ]
    return f"{texts[0]} (*printed: {texts[1]}*)" if size == 6 else texts[0]


def _ends(_: float, low: float, high: float) -> str:
    return f"[{low:.2f}, {high:.2f}]"


def _bold(text: str, _: float, low: float, high: float) -> str:
    """Bold where the interval leaves zero out."""
    text = text.replace("-", "−")
    return f"**{text}**" if low > 0 or high < 0 else text


def cells_of_reviews(arrays: Arrays) -> None:
    """Each training's best and last test accuracy and epochs; means and spreads beside the published ones."""
    print("movie reviews: best test accuracy, % (epochs, * not to its end); mean ± sd of those to their end")
    for (size, p), published in trials.PUBLISHED.items():
        print(f"  size {size}  {ROWS[p]}; published {_told(published)}, {published.trials} trials")
        for label, keys in (
            ("own", trials.own_starts(arrays, size, p)),
            ("one", trials.shared_start(arrays, size, p)),
        ):
            each = ", ".join(
                f"{trials.best(arrays, key):.2f} ({arrays[f'trained {key}']}"
                + f"{'' if arrays[f'ended {key}'] else '*'})"
                for key in keys
            )
            values = [trials.measured(arrays, keys, measure) for measure in trials.MEASURES]
            means = (f"{measure} {_spread(x)}" for measure, x in zip(trials.MEASURES, values, strict=True))
            print(f"    {label} initialisation: {each}; n = {len(values[0])}: {', '.join(means)}")
    for p, published in trials.UNMASKED.items():
        print(f"  size 6  {ROWS[p]}; as printed, of another net: {_told(published)}")


def _told(published: trials.Published) -> str:
    pairs = zip(trials.MEASURES, published, strict=False)
    return ", ".join(f"{measure} {mean:.2f} ± {spread:.2f}" for measure, (mean, spread) in pairs)


def _spread(values: Any, digits: int = 2) -> str:
    if len(values) < 2:
        return " ".join(f"{x:.{digits}f}" for x in values) or "none"
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def gains_of_reviews(arrays: Arrays) -> None:
    """One p minus another seed by seed, with Student's intervals; early on; and where p = 3 is best."""
    for ps, size, measure in product(sentiment.PAIRS, trials.SIZES, ("best", "last")):
        gains, epochs = trials.gain(arrays, size, measure, ps)
        interval = "one seed" if len(gains) < 2 else "95 %: {:.2f} to {:.2f}".format(*trials.interval(gains))
        theirs = [getattr(trials.PUBLISHED[size, p], measure)[0] for p in ps]
        print(
            f"p = {ps[0]} minus {ps[1]}, size {size}, {measure}, {epochs} epochs: {gains.round(2)}, mean "
            f"{gains.mean():.2f}, n = {len(gains)}; {interval}; published {theirs[0] - theirs[1]:.2f}"
        )
    for size, measure in product(trials.SIZES, ("best", "last")):
        gains, epochs = trials.gain(arrays, size, measure, trainings=trials.shared_start)
        if measure == "last" and epochs < np.inf:
            continue
        interval = "{:.2f} to {:.2f}".format(*trials.interval(gains))
        print(
            f"p = 1.1 minus 2, size {size}, {measure}, {epochs} epochs, from one initialisation: "
            f"{gains.round(2)}, mean {gains.mean():.2f}; 95 %: {interval}"
        )
    for size, until in product(trials.SIZES, (10, 14, 20)):
        seeds = range(len(trials.gain(arrays, size)[0]))
        sides = [[trials.best(arrays, f"{size} {p} {s}", until) for s in seeds] for p in trials.PS[:2]]
        gains = np.subtract(*sides)
        print(f"  size {size}, after {until} epochs: {gains.round(2)}, mean {gains.mean():.2f}")
    for key in (key for size in trials.SIZES for key in trials.own_starts(arrays, size, "3")):
        epochs, curve = arrays[f"epoch {key}"], arrays[f"test {key}"]
        drop = curve.max() - curve[epochs > LATE].max(initial=0)
        place = f"at epoch {epochs[curve.argmax()]} of {arrays[f'trained {key}']}"
        print(f"  size, p, seed {key}: best {curve.max():.2f} {place}; after {LATE} at least {drop:.2f} less")


def pairs_of_reviews(arrays: Arrays) -> None:
    """What p = 1.1 does to weights and selections, over or minus p = 2, seed by seed; where the best is."""
    for size in trials.SIZES:
        seeds = range(len(trials.gain(arrays, size)[0]))
        sides = [[f"{size} {p} {s}" for s in seeds] for p in trials.PS[:2]]
        small, large, pivotal = (
            [np.array([get(arrays, key) for key in keys], float) for keys in sides]
            for get in (
                lambda arrays, key: arrays[f"histogram {key}"][0],
                lambda arrays, key: arrays[f"large {key}"],
                lambda arrays, key: arrays[f"pivotal {key}"][-1],
            )
        )
        gains = pivotal[0] - pivotal[1]
        interval = "one seed" if len(gains) < 2 else "95 %: {:.2f} to {:.2f}".format(*trials.interval(gains))
        print(f"size {size}, p = 1.1 over p = 2: key weights below 0.005 {(small[0] / small[1]).round(3)}")
        print(f"  above 0.06 {(large[0] / large[1]).round(2)}, mean {(large[0] / large[1]).mean():.2f}")
        means = ", ".join(f"{x.mean():.2f}" for x in pivotal)
        print(f"  pivotal words {means}: {gains.round(2)}, mean {gains.mean():.2f}; {interval}")
        at = [int(arrays[f"epoch {key}"][arrays[f"test {key}"].argmax()]) for keys in sides for key in keys]
        print(f"  best after {at} epochs")


def untrained_scores() -> None:
    """The score of pivotal words on the published sentences, of nets before training."""
    record = recorded("sentences")
    print(f"pivotal words of {record['sentences']} published sentences, before training:")
    for size, scores in record["scores"].items():
        above = ", ".join(f"{sum(x > bar for x in scores)} above {bar}" for bar in (0.4387, 0.3122))
        print(f"  size {size}: {min(scores):.2f} to {max(scores):.2f}, mean {np.mean(scores):.2f}; {above}")


def initialisations(arrays: Arrays) -> None:
    """How far initial weights spread what is measured, how far order and dropout do; and the published."""
    for measure in trials.MEASURES:
        between = trials.start_spread(arrays, measure)
        if not between[1]:
            continue
        print(f"{measure}: sd with own initial weights {between[0]:.3f} ({between[1]} degrees of freedom)")
        gains = {}
        for cell, published in trials.PUBLISHED.items():
            values = trials.measured(arrays, trials.own_starts(arrays, *cell), measure)
            if len(values):
                gain = float(values.mean()) - getattr(published, measure)[0]
                text = "{:.2f} [{:.2f}, {:.2f}]".format(
                    *trials.difference_interval(gain, between, len(values))
                )
                _, *every = trials.difference_interval(gain, between, len(values), comparisons=9)
                text += "; as one of nine [{:.2f}, {:.2f}]".format(*every)
                print(f"  size {cell[0]}, p = {cell[1]}, n = {len(values)}: ours less published {text}")
                gains[cell] = gain, len(values)
        for size in trials.SIZES:
            (a, n), (b, _) = gains[size, "1.1"], gains[size, "2"]  # ours share their initial weights
            text = "{:.2f} [{:.2f}, {:.2f}]".format(*trials.difference_interval((a + b) / 2, between, n, 2))
            print(f"  size {size}, p = 1.1 and 2 together: {text}")
    alike = {cell: trials.shared_start_accuracies(arrays, *cell) for cell in trials.PUBLISHED}
    alike = {cell: each for cell, each in alike.items() if len(each) > 1}
    ours, of_own = trials.pooled(alike), trials.start_spread(arrays, cells=alike)
    theirs = float(np.sqrt(np.mean([trials.PUBLISHED[cell].best[1] ** 2 for cell in alike])))
    for (size, p), each in alike.items():
        print(f"best of size {size}, p = {p} from one initialisation: {each.round(2)} {_spread(each)}")
    for size in trials.SIZES:
        of_size = {cell: each for cell, each in alike.items() if cell[0] == size}
        own_start, shared = trials.start_spread(arrays, cells=of_size), trials.pooled(of_size)
        print(
            f"  of those of size {size}: sd of own initialisations {own_start[0]:.2f}, of one {shared[0]:.2f}"
        )
    for text, within in (("ours", ours), ("published", (theirs, 9 * len(alike)))):
        ratio = trials.variance_ratio(of_own, within)
        quotient = "{:.1f} [{:.1f}, {:.1f}]".format(*ratio)
        quotient += ", of the deviations {:.1f} [{:.1f}, {:.1f}]".format(*np.sqrt(ratio))
        print(
            f"  of these cells, sd of own initialisations {of_own[0]:.2f} ({of_own[1]}), of one, {text}, "
            f"{within[0]:.2f} ({within[1]}); quotient of the variances {quotient}"
        )


if __name__ == "__main__":
    main()
