"""What a figure computes, small: a short run, or what the theory says of one that would take long.

Figures that are not named here compute at scale quick.
"""

from functools import cache
from unittest.mock import patch

import numpy as np

import attsvm as att
from attsvm_lab import figures
from attsvm_lab.figures.max_margin_selection import random_data
from attsvm_lab.figures.mirror_descent import own_program, rates
from attsvm_lab.figures.next_token import two_stages
from attsvm_lab.figures.ours import fractions
from attsvm_lab.figures.ours.optimizer_norms import NORMS, OPTIMIZERS
from attsvm_lab.figures.ours.real_tokens import TRAININGS
from attsvm_lab.figures.transformers_as_svms import local_convergence as here, relu_head, where_it_ends

SHORT = {
    "losses": {"steps": 1_000, "losses": ("logistic",)},
    "rank": {"runs": 60, "nuclear_runs": 2},
    "quadratic-head": {"instances": 10, "steps": 3_000},
    "hierarchy": {"draws": 8, "steps": 500},
    "mirror-joint": {"exponents": (2.0,)},
    "extended-order": {"corpora": 1, "steps": 20},
    "three-methods": {"runs": 2},
    "even-pairs": {"steps": 600},
    "hand-built-prompt": {"runs": 1},
    "match-and-copy": {"runs": 3, "steps": 3_000},
    "one-location": {"runs": 3, "steps": 300},
    "sparse-signals": {"runs": 2, "d": 20},
}
"""Arguments of experiments."""


@cache
def arrays(name):
    """By the name of the figure; several tests look at the same."""
    return IDEAL[name]() if name in IDEAL else computed(name)[0]


@cache
def computed(name):
    """What a figure computes, and of each program that it solved: certified, or without a solution."""
    figure, found = figures.ALL[name], []

    def solve(*given, max_margin=att.max_margin, **named):
        found.append(solution := max_margin(*given, **named))
        return solution

    with patch.object(att, "max_margin", solve):
        made = figure(**SHORT[name]) if name in SHORT else figure.compute("quick")
    return made, [bool(np.all(one.certified | ~np.asarray(one.separable))) for one in found]


def agreements(name, **changed):
    """What came of each check of a figure, some of its arrays changed."""
    return [check.agreement for check in figures.ALL[name].rows(arrays(name) | changed)]


# ---------------------------------------------------------------------- what should come out


def random_selections():
    """The published table."""
    kinds = random_data.PUBLISHED.items()
    counts = {f"{kind}_{n}": np.round(np.array(x) * 200) for kind, rows in kinds for n, x in rows.items()}
    return counts | {"runs": np.array(200), "inputs": np.array([1, 2])}


def local():
    """Curves through the numbers of the independent run, and of the plot where it has none."""
    given = {
        "full_mass": here.MASS_READ | here.MASS_W,
        "full_frobenius": here.TURN_READ | here.TURN_W | {1999: 0.999},
        "full_nuclear": {1000: 0.86},
        "factored_mass": {0: 0.16} | here.MASS_KQ,
        "factored_frobenius": {1999: 0.85},
        "factored_nuclear": {0: 0.0, 1999: 0.98},
        "textbook_frobenius": here.END_W,
        "ridged_nuclear": here.TURN_KQ,
    }
    curves = {name: [*zip(*sorted(points.items()), strict=True)] for name, points in given.items()}
    found = {name: np.tile(np.interp(here.RECORD, *curve), (100, 1)) for name, curve in curves.items()}
    shares = {"best_full": 63, "local_full": 99, "best_factored": 80}
    return found | {name: np.arange(100) < count for name, count in shares.items()} | {"steps": here.RECORD}


def ends():
    """Exactly the independent shares."""
    return {
        f"{name}_{n}_{d}": np.arange(100) < round(100 * share)
        for name, by_n in where_it_ends.TWIN.items()
        for n, widths in where_it_ends.WIDTHS.items()
        for d, share in zip(widths, by_n[n], strict=True)
    }


def relu():
    """Exactly the published means."""
    steps, runs = relu_head.RECORD, 10
    found = {"steps": steps, "widths": np.array(relu_head.WIDTHS), "draws": np.full(4, 50)}
    for column, d in enumerate(relu_head.WIDTHS):
        for kind in ("exact", "textbook"):
            found[f"{kind}_leak_{d}"] = np.full(runs, 1e-12)
            for target, means in relu_head.PUBLISHED.items():
                found[f"mean_{kind}_{target}_{d}"] = np.full(len(steps), means[column])
                found[f"end_{kind}_{target}_{d}"] = np.full(runs, means[column])
    return found


def divergences():
    """The own program near, mixed tokens as high as in the published plot."""
    found = {f"steps_{p:g}": np.array([1, 10, 100, 1_000]) for p in own_program.STEPS}
    own = {(3.0, 3.0): 0.005, (3.0, 1.75): 0.1, (3.0, 2.0): 0.05, **own_program.MEASURED}
    for (p, q), end in own.items():
        mixed = own_program.PUBLISHED[q] if p == 3 else end
        for kind, last in (("own", end), ("mixed", mixed), ("usual", end)):
            found[f"{kind}_{p:g}_{q:g}"] = np.geomspace(1, last, 4) * np.linspace(0.98, 1.02, 5)[:, None]
    return found | {"exponents": np.array([*own_program.STEPS]), "starts": np.array(1)}


def descents():
    """1/log² steps, to the measured ends."""
    steps = np.unique(np.geomspace(10, 1e5, 41).round().astype(int))
    found = {"steps": steps}
    for p, measured in rates.MEASURED.items():
        shape = np.log(steps[-1]) ** 2 / np.log(steps) ** 2
        found[f"away_{p:g}"] = shape * np.array(measured)[:, None]
        found[f"size_{p:g}"] = np.tile(np.log(steps), (2, 1))
        found[f"exponent_{p:g}"] = np.full(2, -2.0)
    return found


def stages():
    """What the theorems say of both stages."""
    found = {}
    for layer, length in two_stages.LENGTHS.items():
        steps = found[f"steps_{layer}"] = np.arange(0, 1_001, 10)
        for kind in two_stages.KINDS:
            away = 1 / (1 + steps) ** 2 * (0 if (layer, kind) == two_stages.EXACT else 1)
            found[f"away_{layer}_{kind}"] = away[None]
            found[f"gap_{layer}_{kind}"] = -0.01 * steps[None]
            found[f"norm_{layer}_{kind}"] = length * steps[None]
    return found


def saturated():
    """1/steps² beside a curve that stalls."""
    steps = np.unique(np.geomspace(10, 100_000, 40).astype(int))
    falling, flat = np.tile(5.3e3 / steps**2.0, (3, 1)), np.full((3, len(steps)), 0.13)
    norms = {"norm_ours": 0.1 / falling, "norm_usual": 900 * flat}
    return {"steps": steps, "ours": falling, "usual": flat} | norms


def own_norms():
    """A diagonal of best margins."""
    own = np.array([[OPTIMIZERS[name][0] == norm for norm in NORMS] for name in OPTIMIZERS])
    return {
        "optimizers": np.array(tuple(OPTIMIZERS)),
        "ratio": np.where(own, 0.99, 0.6)[..., None].repeat(3, -1),
        "chosen": np.ones((len(OPTIMIZERS), 3), bool),
        "certified": np.ones((len(NORMS), 3), bool),
    }


def shares():
    """Counts with the shares of the independent table, for one and two inputs."""
    share = np.ones((2, 3, 4))
    for (n, T, d), value in fractions.TABLE.items():
        share[n - 1, fractions.LENGTHS.index(T), fractions.WIDTHS.index(d)] = value
    counts = np.round(200 * share)
    longer = np.array([[160, 190], [161, 192]])
    return {"inputs": np.array([1, 2]), "runs": 200, "global": counts, "local": counts, "longer": longer}


def arrived():
    """Runs that come to their own program."""
    shape = (len(TRAININGS), 10, 3)
    return {
        "ways": np.array(tuple(TRAININGS)),
        "steps": np.array([10, 100, 1000]),
        "error": np.broadcast_to([1e-1, 1e-3, 1e-6], shape),
        "other": np.full(shape, 0.1),
        "selection": np.tile(np.arange(10) // 4, (len(TRAININGS), 1)),
        "local": np.ones(shape[:2], bool),
        "certified": np.ones(shape[:2], bool),
    }


IDEAL = {
    "random-data": random_selections,
    "local-convergence": local,
    "where-it-ends": ends,
    "relu-head": relu,
    "mirror-own-program": divergences,
    "mirror-rates": descents,
    "two-stage-training": stages,
    "past-saturation": saturated,
    "optimizer-norms": own_norms,
    "fractions": shares,
    "real-tokens": arrived,
}
