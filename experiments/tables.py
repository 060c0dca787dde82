"""The tables of docs/practice/transformers.md, from the package's records:  python experiments/tables.py"""

from __future__ import annotations

import numpy as np

from attsvm.figures.mirror_descent import sentiment
from attsvm.figures.ours import head_geometry, head_ranks
from attsvm.figures.recorded import recorded

ROWS = {"1.1": "mirror, p = 1.1", "2": "GD (p = 2)", "3": "mirror, p = 3"}


def main() -> None:
    runs, arrays = recorded("transformers")["runs"], sentiment.experiment()
    print("best test accuracy, % (epochs); published")
    for size in sentiment.SIZES:
        for k, p in enumerate(sentiment.PS):
            names = sentiment.seeds(arrays, size, p)
            ends = {name: runs[_run(name)] for name in names}
            best = ", ".join(
                f"{sentiment.best(arrays, name):.2f} ({ends[name]['trained']})" for name in names
            )
            last = ", ".join(f"{arrays[f'test {name}'][-1]:.2f}" for name in names)
            train = ", ".join(f"{100 * end['train_accuracy'][-1]:.1f}" for end in ends.values())
            published = sentiment.PUBLISHED[size][k]
            print(f"  size {size}  {ROWS[p]:16} {best}  last {last}  train {train}  published {published}")
    for rule in sentiment.OTHERS:
        curve = arrays[f"test 3 {rule} 0"]
        epochs = arrays[f"epoch 3 {rule} 0"]
        print(f"  size 3  {rule:16} {curve.max():.2f} at epoch {epochs[curve.argmax()]} of {epochs[-1]}")
    for size in sentiment.SIZES:
        gains, epochs = sentiment.gain(arrays, size)
        words = "95 %: {:.2f} to {:.2f}".format(*sentiment.interval(gains)) if len(gains) > 1 else "one seed"
        print(f"gain of p = 1.1, size {size}, {epochs} epochs: {gains.round(2)}, {gains.mean():.2f}; {words}")
    for size in sentiment.SIZES[1:]:
        early = {
            until: sentiment.best(arrays, f"{size} 1.1 0", until)
            - sentiment.best(arrays, f"{size} 2 0", until)
            for until in (10, 14, 20)
        }
        words = ", ".join(f"{gain:.2f} ({until})" for until, gain in early.items())
        print(f"  size {size}, after so many epochs: {words}")
    print("key weights: below 0.005, above 0.06, largest; pivotal words at start and end")
    cells = ((size, p, s) for size in sentiment.SIZES for p in sentiment.PS for s in range(sentiment.SEEDS))
    for name in (f"sentiment-{size}-mirror{p}-{s}" for size, p, s in cells):
        if name in runs:
            end, words = runs[name]["last"], runs[name]["pivotal"]
            counts = (end["histogram_key"][0], end["large_key"])
            print(f"  {name}: {counts}, {end['largest_key']:.3f}; {words[0]:.2f}, {words[-1]:.2f}")
    print("norm, entropy and top mass by layer, at the start and at the end (12 epochs for Adam)")
    for name, run in runs.items():
        if name.startswith("sentiment") and name.endswith(("-0", "selective")):
            layers = np.array(run["layers"])
            at = min(12, len(layers) - 1) if "adam" in name else -1
            print(f"  {name}: {layers[0].round(3).tolist()} → {layers[at].round(3).tolist()}")
            if "temperature" in run:
                best = 100 * max(run["test_accuracy"])
                print(f"    temperature {run['temperature'][0]} → {run['temperature'][at]}; best {best:.2f}")
    print(
        "images: test accuracy, soft sparsity and key-query norm at the start, at its least, and at the end"
    )
    for name in ("vision-adam", "vision-mirror1.1", "patches-adam"):
        run = runs[name]
        soft, norm = np.array(run["soft_sparsity"]), np.array(run["norm_last"])
        best = f"{run['test_accuracy'][0]:.3f} → {run['test_accuracy'][-1]:.3f} in {run['epoch'][-1]} epochs"
        at = [0, *run["epoch"]][soft.argmin()]
        least = f"{soft[0]:.0f}, {soft.min():.0f} (epoch {at}), {soft[-1]:.0f}"
        print(f"  {name}: {best}; {least}; {norm[0]:.3f} → {norm[-1]:.3f}")
    margins_of_heads()
    layers_of_heads()
    added_to_heads()
    margins_by_the_law()
    temperatures()


def _run(name: str) -> str:
    """`3 1.1 0` → the name of its training."""
    size, p, seed = name.split()
    return f"sentiment-{size}-mirror{p}-{seed}"


def margins_of_heads() -> None:
    """Mean and interval over heads, by optimizer and norm."""
    arrays = head_geometry.experiment()
    print(f"heads: {len(arrays['certified'])} programs, certified {arrays['certified'].mean():.0%}")
    for group, (size, _, norms) in head_geometry.GROUPS.items():
        mass, heads = arrays[f"{group} mass"].round(2).tolist(), arrays[f"{group} heads"].tolist()
        print(f"size {size}, {group} selections: heads {heads}, attention on the selections {mass}")
        for name, scale in (("ratio", 100), ("cosine", 1)):
            found = scale * arrays[f"{group} {name}"]
            for rule, *numbers in zip(arrays[f"{group} rules"], *found, strict=True):
                cells = zip(norms, *numbers, strict=True)
                words = (f"{norm} {mean:.3f} [{low:.3f}, {high:.3f}]" for norm, mean, low, high in cells)
                print(f"  {name} {rule}:", ", ".join(words))
    for rule in arrays["own rules"]:
        curve, layers = arrays[f"layers {rule}"].mean(1).round(3), arrays[f"layers {rule}"][-1].round(3)
        epochs = arrays[f"epochs {rule}"].tolist()
        print(f"  Frobenius cosine {rule}: epochs {epochs}, {curve.tolist()}; layers {layers.tolist()}")


def layers_of_heads() -> None:
    """By layer of the larger encoders, on own selections: attention on them, Frobenius margin and cosine."""
    for name, found in recorded("heads")["heads"].items():
        if name.startswith(("sentiment-4", "sentiment-6")):
            print(f"  {name}: attention, margin in %, cosine")
            for layer in sorted({head["layer"] for head in found}):
                some = [head for head in found if head["layer"] == layer]
                margins = [head["margins"]["Frobenius"] for head in some]
                mass, ratio, cosine = (
                    np.mean([row[key] for row in rows])
                    for rows, key in ((some, "mass"), (margins, "ratio"), (margins, "cosine"))
                )
                print(f"    layer {layer + 1}: {mass:.2f}, {100 * ratio:.2f}, {cosine:.3f}")


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
    runs, interval = recorded("factors")["runs"], sentiment.interval
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
