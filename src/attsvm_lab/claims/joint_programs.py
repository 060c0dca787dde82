"""Max-Margin Token Selection: head and prompt together, for any size, ratio of the radii, and lp norm."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

import attsvm as att
from attsvm.comparison.evidence import Evidence, Verdict, at_most, judge, reported
from attsvm.numbers import Bool, Float
from attsvm_lab.claims.claim import claim
from attsvm_lab.claims.joint_mirror import REFERENCE as MIRROR
from attsvm_lab.claims.prompt_instances import PAPER
from attsvm_lab.claims.transformers_setup import draws
from attsvm_lab.experiment import solved
from attsvm_lab.programs import joint_path

Size = tuple[int, int, int]
SMALL, LARGE = (4, 3, 6), (6, 4, 10)
"""(n, T, d) of paths in lp and of runs, and of Euclidean paths."""
RADII = (30.0, 300.0)
"""Radii of the prompt, in lengths of p^mm; from one to the next 1 − cosine falls like 1/R²."""
NEAR, FALL = 3e-4, 1 / 20
"""Largest 1 − cosine at the last radius, and beside that of the first, which is 1/100 in the limit."""
TELLING = 0.97
"""Largest cosine between p^mm and p^relax of a loose problem, so that a run can tell them apart."""
SPARE = 0.2
"""Least label margin to spare of inputs that do not support the head, as a share of the smallest margin."""
AHEAD = 0.97
"""Largest label margin of another selection, as a share of the best."""
RUNS = 10
"""Draws of a seed in claims on descent."""
TOGETHER = 64
"""Draws that are looked at together."""
LONGEST = 10.0
"""Of p^mm: longer ones need radii in proportion."""


# ---------------------------------------------------------------------- programs


class Pair(NamedTuple):
    """The programs of a selection (n,) in one norm: of the head on labels, of the prompt on tokens."""

    tokens: att.Tokens
    selected: NDArray[np.intp]
    norm: att.Norm
    head: att.Solution
    prompt: att.Solution

    @property
    def spare(self) -> Float:
        """Label margins beyond the smallest, Γ_i − Γ, of the head of length one (n,)."""
        features = self.tokens.values[np.arange(self.tokens.n), self.selected]
        return np.asarray((self.tokens.labels * (features @ self.head.W[:, 0]) - 1) * self.head.margin)

    def asking(self, required: Float) -> att.Solution:
        """The prompt's program with these margins (n,)."""
        return solved(self.tokens, self.selected, self.norm, required=required)

    @property
    def relaxed(self) -> att.Solution:
        """Margin 1 of the inputs that support the head, the right order of the others."""
        return self.asking(np.where(att.label_support(self.head), 1.0, 0.0))

    def of_ratio(self, rho: float) -> att.Solution:
        """argmax over p of length one of min_i (m_i + ρ (Γ_i − Γ)), with m_i ≥ 0.

        Input i is asked for max(m − ρ (Γ_i − Γ), 0), with the m for which the solution has length one.
        """
        spare = np.where(att.label_support(self.head), 0.0, self.spare)

        def too_long(m: float) -> float:
            solution = self.asking(np.maximum(m - rho * spare, 0.0))
            return float(np.asarray(self.norm.value(solution.W))) - 1

        low, high = float(self.prompt.margin), float(self.relaxed.margin)
        if high <= low * (1 + 1e-9):
            return self.prompt
        m = brentq(too_long, low * (1 - 1e-9), high * (1 + 1e-9), xtol=1e-9)
        return self.asking(np.maximum(m - rho * spare, 0.0))

    def half_way(self) -> float:
        """A ratio between both ends: the input of most spare is asked for about half of p^mm's margin."""
        return float(self.prompt.margin / (2 * self.spare.max()))

    def far_enough(self) -> float:
        """Twice the ratio from which on the program is the relaxed one, although r/R is finite."""
        spare = self.spare[~att.label_support(self.head)]
        return float(2 * self.relaxed.margin / spare.min())


def pair_of(tokens: att.Tokens, selected: NDArray[np.intp], norm: att.Norm) -> Pair:
    """The programs of a selection; NotSeparable where there is none."""
    return Pair(tokens, selected, norm, att.label_svm(tokens, selected, norm), solved(tokens, selected, norm))


# ---------------------------------------------------------------------- problems


@lru_cache(maxsize=16)
def joint_problem(seed: int, size: Size, tight: bool, p: float = 2.0) -> Pair:
    """The programs of the selection of largest label margin of all Tⁿ; all label margins tight, or not.

    Keys and values of a token are two parts of it, drawn apart. First values, until the next best selection
    is behind and every input supports the head; loose: some do not, by SPARE. Then unit keys, until p^mm
    exists and is not long; loose: and differs from p^relax.
    """
    rng = np.random.default_rng([seed, *size, tight])
    norm = norm_of(p)
    values, labels, selected = next(_label_problems(rng, size, norm, tight))
    while True:
        tokens = att.Tokens(_unit(rng, *size), labels=labels, values=values)
        if not att.separable(tokens, selected):
            continue
        pair = pair_of(tokens, selected, norm)
        distinct = tight or att.cosine(pair.relaxed.W[None], pair.prompt.W)[0] <= TELLING
        if pair.prompt.margin >= 1 / LONGEST and distinct:
            return pair


def norm_of(p: float) -> att.Norm:
    return att.frobenius if p == 2 else att.Entrywise(p)


def _unit(rng: np.random.Generator, *size: int) -> Float:
    drawn = rng.standard_normal(size)
    return np.asarray(drawn / np.linalg.norm(drawn, axis=-1, keepdims=True))


def _label_problems(
    rng: np.random.Generator, size: Size, norm: att.Norm, tight: bool
) -> Iterator[tuple[Float, Float, NDArray[np.intp]]]:
    """Values (n, T, d), labels (n,) and their best selection (n,), as `joint_problem` wants them."""
    n = size[0]
    while True:
        values, labels = _unit(rng, TOGETHER, *size), np.where(rng.random((TOGETHER, n)) < 0.5, -1.0, 1.0)
        if not tight:
            values = values * rng.uniform(1, 3, (TOGETHER, n, 1, 1))
        rows = labels[..., None, None] * values
        for k in np.flatnonzero(_promising(rows, tight)):
            selected = _best_selection(rows[k], norm, tight)
            if selected is not None:
                yield values[k], labels[k], selected


def _promising(rows: Float, tight: bool) -> Bool:
    """Which draws are worth the programs of all selections.

    By a Euclidean head and its tokens, found in turn, and the selections that differ from these in one token.
    """
    v = rows.mean((1, 2))
    for _ in range(3):
        scores = np.einsum("kntd,kd->knt", rows, v)
        guess = np.take_along_axis(rows, scores.argmax(-1)[..., None, None], axis=2)
        pairs = att.Tokens(np.concatenate([guess, np.zeros_like(guess)], axis=2))
        heads = att.max_margin(pairs, np.zeros(rows.shape[:2], int))
        v = heads.W[..., 0]
    scores = np.sort(np.einsum("kntd,kd->knt", rows, v), axis=-1)
    tights = scores[..., -1] < 1 + SPARE / 2
    # A token that the head puts above AHEAD makes a selection of nearly the same margin.
    alone = (scores[..., -2] < AHEAD).all(-1)
    promising = np.asarray(heads.separable & alone & (tights.all(-1) == tight))
    for k in np.flatnonzero(promising):
        choice = (rows[k] @ v[k]).argmax(-1)
        others = np.unique(
            [np.r_[choice[:i], t, choice[i + 1 :]] for i, t in np.ndindex(rows.shape[1:3])], axis=0
        )
        margins = np.sort(_margins(rows[k], others, att.frobenius))
        promising[k] = margins[-2] < AHEAD * margins[-1]
    return promising


def _margins(rows: Float, choices: NDArray[np.intp], norm: att.Norm) -> Float:
    """The label margin of each selection (m, n) of rows Y_i x_it, zero where no head separates it."""
    features = rows[np.arange(len(rows)), choices]
    pairs = att.Tokens(np.stack([features, np.zeros_like(features)], axis=2))
    solutions = att.max_margin(pairs, np.zeros(choices.shape, int), norm)
    return np.where(solutions.separable, solutions.margin, 0.0)


def _best_selection(rows: Float, norm: att.Norm, tight: bool) -> NDArray[np.intp] | None:
    """The selection of rows Y_i x_it of largest label margin; None where it is not to be used."""
    n, T, _ = rows.shape
    choices = np.array(list(product(range(T), repeat=n)))
    margins = _margins(rows, choices, norm)
    best, behind = margins.argmax(), np.partition(margins, -2)[-2]
    suits = behind < AHEAD * margins[best] and _suits(rows[np.arange(n), choices[best]], norm, tight)
    return np.asarray(choices[best]) if suits else None


def _suits(features: Float, norm: att.Norm, tight: bool) -> bool:
    """Whether every input supports the head of these rows; loose: not all, and the others have SPARE."""
    head = att.separate(features, norm)
    support = att.label_support(head)
    spare = features[~support] @ head.W[:, 0] - 1
    return tight == bool(support.all()) and bool((spare >= SPARE).all())


@lru_cache(maxsize=16)
def _path(seed: int, size: Size, tight: bool, p: float, ratio: float) -> att.Path:
    """The path with r = ratio · R, searched from random starts and from the pair of programs."""
    pair = joint_problem(seed, size, tight, p)
    radii = np.array(RADII) / float(pair.prompt.margin)
    return joint_path(
        pair.tokens,
        att.Linear(np.zeros(pair.tokens.d)),
        norm=pair.norm,
        radii=radii,
        head_radii=ratio * radii,
        starts=2,
        pair=(pair.head.W[:, 0], pair.prompt.W),
    )


def _near(what: str, path: Float, program: att.Solution) -> list[Evidence]:
    off = 1 - att.cosine(path, program.W)
    return [
        at_most(f"1 − cosine of {what}", off[-1], NEAR),
        at_most(f"the same of {what}, beside a tenth of the radius", off[-1] / off[-2], FALL),
    ]


# ---------------------------------------------------------------------- paths


@claim(
    f"{PAPER}, joint regularisation path",
    "recalled-H",
    removed="Assumption C: leaking attention costs label margin of every input",
    twin={"tight": False},
)
def head_and_prompt_find_their_max_margins_at_any_ratio(seed: int, tight: bool = True) -> Verdict:
    """The smallest loss over ‖v‖ ≤ r, ‖p‖ ≤ R has v/r → v^mm and p/R → p^mm(α) for every ratio of the radii.

    Hypotheses: logistic loss, p^mm(α) exists, every input supports the head, α has the largest label margin
    of all 4,096 selections. (6, 4, 10), r = R/2 and r = 2R; searches begin at random and at the programs.
    Measured at R = 300 ‖p^mm‖: 1 − cosine of both, and how it falls from a tenth of that.
    """
    pair = joint_problem(seed, LARGE, tight)
    evidence = []
    for ratio in (0.5, 2.0):
        path = _path(seed, LARGE, tight, 2.0, ratio)
        assert path.v is not None
        evidence += _near(f"the head, r = {ratio:g} R", path.v[..., None], pair.head)
        evidence += _near(f"the prompt, r = {ratio:g} R", path.W, pair.prompt)
    return judge("v/r → v^mm and p/R → p^mm", *evidence)


@claim(
    f"{PAPER}, joint regularisation path, relaxed",
    "recalled-M",
    removed="the head's radius is far larger",
    twin={"far": False},
)
def inputs_with_label_margin_to_spare_drop_out_at_a_finite_ratio(seed: int, far: bool = True) -> Verdict:
    """If some inputs do not support the head, p/R → p^relax for every r/R above a finite ratio: margin 1
    where the input supports the head, only the right order elsewhere.

    Setting as above, with values of other lengths for each input. The paper takes r → ∞ first; the ratio
    m/min (Γ_i − Γ) is enough [derived], with m the margin of p^relax. r is twice that times R; the twin takes
    a ratio at which the input of most spare keeps about half of its margin.
    """
    pair = joint_problem(seed, LARGE, False)
    relaxed = pair.relaxed
    path = _path(seed, LARGE, False, 2.0, pair.far_enough() if far else pair.half_way())
    assert path.v is not None
    return judge(
        "p/R → p^relax",
        *_near("the head", path.v[..., None], pair.head),
        *_near("the prompt", path.W, relaxed),
        reported("cosine of p^mm and p^relax", att.cosine(pair.prompt.W[None], relaxed.W)[0]),
        reported("r/R", pair.far_enough()),
    )


@claim(
    f"{PAPER}, between the tight and the relaxed joint path",
    "derived",
    removed="the program knows the ratio of the radii",
    twin={"knows_ratio": False},
)
def at_any_size_the_ratio_of_the_radii_decides_how_far_the_program_relaxes(
    seed: int, knows_ratio: bool = True
) -> Verdict:
    """With r = ρR the prompt tends to the direction that maximises min_i (m_i + ρ (Γ_i − Γ)), for any number
    of inputs with any label margins.

    Setting as above; ρ is such that the input of most spare keeps about half of its margin.
    """
    pair = joint_problem(seed, LARGE, False)
    rho = pair.half_way()
    target = pair.of_ratio(rho) if knows_ratio else pair.relaxed
    path = _path(seed, LARGE, False, 2.0, rho)
    return judge(
        "the limit of r = ρR",
        *_near("the prompt", path.W, target),
        reported("cosine to p^mm", att.cosine(path.W, pair.prompt.W)[-1]),
        reported("cosine to p^relax", att.cosine(path.W, pair.relaxed.W)[-1]),
    )


@claim(
    f"{MIRROR}, joint path, and its relaxed program",
    "recalled-H",
    removed="the norm of the balls: the programs are Euclidean",
    twin={"euclidean": True},
)
def the_joint_path_in_lp_finds_the_lp_programs(seed: int, euclidean: bool = False) -> Verdict:
    """Over ‖v‖_p ≤ r, ‖p‖_p ≤ R head and prompt tend to their lp programs: to v_mm and p_mm where every input
    supports the head, else to the lp program of the ratio r/R.

    p = 1.75 and 3, (4, 3, 6), selections of the largest label margin in lp. Tight: r = R; loose: as above.
    """
    evidence = []
    for p in (1.75, 3.0):
        for name, tight in (("tight", True), ("loose", False)):
            pair = joint_problem(seed, SMALL, tight, p)
            rho = 1.0 if tight else pair.half_way()
            path = _path(seed, SMALL, tight, p, rho)
            assert path.v is not None
            programs = pair_of(pair.tokens, pair.selected, att.frobenius) if euclidean else pair
            evidence += _near(f"the head, {name}, p = {p:g}", path.v[..., None], programs.head)
            evidence += _near(f"the prompt, {name}, p = {p:g}", path.W, programs.of_ratio(rho))
    return judge("the joint lp path tends to the lp programs", *evidence)


# ---------------------------------------------------------------------- descent


@claim(
    f"{PAPER} and {MIRROR}, joint training",
    "derived",
    removed="label margin to spare relaxes the program",
    twin={"relaxes": False},
)
def joint_descent_from_zero_follows_the_program_of_its_own_ratio(seed: int, relaxes: bool = True) -> Verdict:
    """Head and prompt trained together from zero by normalised mirror descent tend to the lp programs of the
    tokens that they select: the head to the label SVM, the prompt to the program of ρ = ‖v‖/‖p‖.

    Nothing is proven for descent. p = 1.75, 2 (gradient descent) and 3; 10 draws (4, 3, 6) each, keys and
    values drawn apart, 4,000 steps of 0.1. Draws count whose inputs do not all support the head, so that the
    program of ρ differs from p_mm, by 1 − cosine > 0.005. Measured: medians over these draws of 1 − cosine,
    and how it falls when steps double: to 1/4 for p ≤ 2, and to about a half for p = 3, where it is larger.
    """
    evidence = []
    for p in (1.75, 2.0, 3.0):
        judged = _runs_off(seed, p)
        head, *both = np.median(judged, axis=0) if len(judged) else np.ones(5)
        before, after = both[:2] if relaxes else both[2:]
        evidence += [
            at_most(f"1 − cosine of the head, p = {p:g}", head, 0.01 if p > 2 else 5e-4),
            at_most(f"1 − cosine of the prompt, p = {p:g}", after, 0.02 if p > 2 else 5e-4),
            at_most(f"the same, beside half of the steps, p = {p:g}", after / before, 0.8 if p > 2 else 0.45),
            reported(f"draws, p = {p:g}", len(judged)),
        ]
    return judge("joint descent tends to the program of its ratio", *evidence)


@lru_cache(maxsize=3)
def _runs_off(seed: int, p: float) -> Float:
    """1 − cosine in each draw that counts (draws, 5): of the head, and at half of the steps and at the end of
    the prompt, beside the program of the ratio and beside p_mm."""
    rngs = [np.random.default_rng([draw, *SMALL]) for draw in draws(seed, RUNS)]
    keys, values = (np.stack([_unit(rng, *SMALL) for rng in rngs]) for _ in range(2))
    signs = np.stack([np.where(rng.random(SMALL[0]) < 0.5, -1.0, 1.0) for rng in rngs])
    lengths = np.stack([rng.uniform(1, 3, (SMALL[0], 1, 1)) for rng in rngs])
    rule = att.steepest(att.frobenius, 0.1) if p == 2 else att.mirror(p, 0.1)
    path = att.train(
        att.Tokens(keys, labels=signs, values=lengths * values),
        att.Linear(np.zeros((RUNS, SMALL[2]))),
        optimizer=rule,
        train_head=rule,
        steps=4_000,
        record=[2_000],
    )
    off = [_off(path.run(r), norm_of(p)) for r in range(RUNS)]
    return np.array([numbers for numbers in off if numbers is not None])


def _off(run: att.Path, norm: att.Norm) -> list[float] | None:
    """The five numbers of a draw; None where there is no program or no label margin to spare."""
    assert run.v is not None
    try:
        pair = pair_of(run.tokens, run.selected.argmax(-1), norm)
    except (att.NotSeparable, ValueError):
        return None
    heads = run.v[-2:, :, None]
    ratios = np.asarray(norm.value(heads)) / np.asarray(norm.value(run.W[-2:]))
    programs = [pair.of_ratio(float(rho)).W for rho in ratios]
    if 1 - att.cosine(programs[-1][None], pair.prompt.W)[0] <= 0.005:
        return None
    return [
        float(1 - att.cosine(W[None], program)[0])
        for W, program in (
            (heads[-1], pair.head.W),
            *zip(run.W[-2:], programs, strict=True),
            *((W, pair.prompt.W) for W in run.W[-2:]),
        )
    ]
