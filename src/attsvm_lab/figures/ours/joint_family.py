"""Between p^mm and p^relax: the directions of joint training, one for each ratio of head to prompt."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.numbers import Float
from attsvm.plotting.layout import grid
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, label
from attsvm_lab import programs
from attsvm_lab.claims.joint_selection import (
    CHOSEN,
    LOOSE,
    asking_of_the_third,
    joint_descent,
    loose_problem,
    program_of_ratio,
)
from attsvm_lab.figures.accuracy import within
from attsvm_lab.figures.figure import CONJECTURED, DERIVED, Arrays, Check, scales
from attsvm_lab.figures.papers import OURS

RATIOS = np.array([0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.1, 1.3])
"""Ratios ρ = r/R on the published instance, whose family ends at ρ = 1."""
RADII = (10.0, 30.0, 100.0, 300.0)
SPARE = LOOSE - 1.0
"""Γ_3 − Γ: excess label margin of the third input; the other two support the head."""
SHOWN = (0.05, 0.5, 1.1)


def closed_form(ratio: Float) -> Float:
    """Angle of the family on the published instance, in degrees:  cos a − 5 sin a = ρ,  0 from ρ = 1 on."""
    angle = np.arccos(np.minimum(ratio, 1.0) / np.sqrt(26)) - np.arctan(5)
    return np.asarray(np.degrees(angle))


@OURS.figure(
    "joint-family",
    "Between p^mm and p^relax",
    shows=(
        "Head and prompt trained together, the third input with label margin to spare. The limit of the "
        "prompt is neither p^mm nor p^relax but moves from one to the other with ρ, the ratio of the "
        "lengths of head and prompt, or of their learning rates. The rule: maximise the least of m_i + "
        "ρ(Γ_i − Γ)."
    ),
    notes=(
        "Not in the papers, which prove the two ends only; the rule is a heuristic argument on the tail "
        "of the loss, confirmed here by regularisation paths and by gradient descent."
    ),
    sizes=scales(problems=(10, 60, 500), steps=(2_000, 20_000, 100_000), radii=((), RADII, RADII)),
    seconds=10,
)
def experiment(problems: int, steps: int, radii: tuple[float, ...]) -> Arrays:
    """Joint descent and joint paths: the published instance at every ratio, then random problems.

    Values scaled by ρ make a step of the head ρ times as long and its ball ρ times as wide, so that one
    compiled program trains all ratios. The model's head is ρ v.
    """
    tokens, ratio = _problems(problems)
    wide = att.Tokens(tokens.keys, labels=tokens.labels, values=ratio[:, None, None, None] * tokens.keys)
    heads = np.stack([att.label_svm(tokens.run(k), CHOSEN).W[:, 0] for k in range(len(ratio))])
    head = heads / ratio[:, None]
    run = joint_descent(wide, head, steps, [*range(0, 401, 10), steps])
    assert run.v is not None
    own_ratio = ratio * np.linalg.norm(run.v[:, -1], axis=-1) / run.norm()[:, -1]
    arrays: Arrays = {}
    if radii:
        path = programs.joint_path(wide, att.Linear(head), radii=radii, head_radii=radii, starts=2)
        arrays = {"radii": np.array(radii), "ratio": ratio, "path": path.W[..., 0]}
    return arrays | {
        "own_ratio": own_ratio,
        "length": run.norm()[:, -1],
        "descent": run.W[..., 0],
        "program": program_of_ratio(tokens, ratio).W[..., 0],
        "own_program": program_of_ratio(tokens, own_ratio).W[..., 0],
        "mm": asking_of_the_third(tokens, 1.0).W[..., 0],
        "relaxed": asking_of_the_third(tokens, 0.0).W[..., 0],
    }


def _problems(count: int) -> tuple[att.Tokens, Float]:
    """The published instance at every ratio, then random problems, each at a random ratio of its family."""
    published, _ = att.datasets.joint_training((0.5, LOOSE))
    flat = np.pad(published.keys, [(0, 0), (0, 0), (0, 1)])
    drawn = [loose_problem(seed) for seed in range(count)]
    keys = np.stack([flat] * len(RATIOS) + [problem.keys for problem in drawn])
    tokens = att.Tokens(keys, labels=published.labels)
    relaxed = asking_of_the_third(tokens, 0.0)
    third = np.einsum("rd,rd->r", keys[:, 2, 1], relaxed.W[..., 0])
    end = (1 - third) * relaxed.margin / SPARE  # the ratio at which the family reaches p^relax
    share = np.random.default_rng(0).uniform(0.05, 1.0, len(keys))
    return tokens, np.concatenate([RATIOS, (share * end)[len(RATIOS) :]])


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """The fan in the plane, its angle against ρ, and random problems."""
    figure, ((fan, angle, random),) = grid(1, 3, 3.2)
    _fan(fan, arrays)
    _angle(angle, arrays)
    _random(random, arrays)
    return figure


def _fan(ax: Axes, arrays: Arrays) -> None:
    for ray, color, name, y in (("mm", BLUE, "$p^{mm}$", 7.6), ("relaxed", GREEN, "$p^{relax}$", -1.1)):
        end = 40 * arrays[ray][0, :2] / np.linalg.norm(arrays[ray][0])
        ax.plot([0, end[0]], [0, end[1]], color=color, lw=5, alpha=0.25)
        label(ax, 38, y, name, color, ha="right")
    for ratio in SHOWN:
        k = int(np.argmin(np.abs(RATIOS - ratio)))
        ray = 40 * arrays["program"][k, :2] / np.linalg.norm(arrays["program"][k])
        ax.plot([0, ray[0]], [0, ray[1]], color=GREY, lw=0.8, ls="--")
        path = arrays["descent"][k, :-1, :2]
        ax.plot(*path.T, color=ORANGE, lw=1.4)
        label(ax, 40.5, path[-1, 1], f"ρ = {ratio:g}", ORANGE, va="center", annotation_clip=False)
    ax.set(title="joint descent, p(t)", xlabel="p₁", ylabel="p₂", xlim=(0, 40), ylim=(-1.5, 9))


def _angle(ax: Axes, arrays: Arrays) -> None:
    rho = np.linspace(0, 1.35, 200)
    ax.plot(rho, closed_form(rho), color=GREY, lw=1)
    label(ax, 0.03, 0.0, "derived rule\ncos a − 5 sin a = ρ", GREY)
    k = len(RATIOS)
    if "path" in arrays:
        for radius, shade in ((0, 0.35), (-1, 1.0)):
            angles = _angles(arrays["path"][:k, radius])
            ax.plot(RATIOS, angles, "s", ms=4.5, mfc="none", mec=BLUE, alpha=shade)
        label(ax, 0.28, 13.2, f"□ paths, r = ρR, R = {arrays['radii'][-1]:g}", BLUE)
        label(ax, 0.42, 8.8, f"R = {arrays['radii'][0]:g}", BLUE, alpha=0.5)
    ax.plot(arrays["own_ratio"][:k], _angles(arrays["descent"][:k, -1]), "o", ms=3, color=ORANGE)
    label(ax, 0.28, 12.1, "● joint descent", ORANGE)
    ax.set(title="angle of p, in degrees", xlabel="ρ = ‖v‖/‖p‖", xlim=(0, 1.38), ylim=(-0.5, 14.3))


def _random(ax: Axes, arrays: Arrays) -> None:
    styles = {"path": ("s", 4.0, "none", BLUE), "descent": ("o", 2.5, ORANGE, ORANGE)}
    for name, (marker, size, face, color) in styles.items():
        if name in arrays:
            ax.plot(*_positions(arrays, name), marker, ms=size, mfc=face, mec=color)
    ax.plot([0, 1], [0, 1], color=GREY, lw=0.8)
    label(ax, 0.02, 0.98, "0: $p^{mm}$   1: $p^{relax}$", GREY, va="top")
    ax.set(title="random problems", xlabel="position by the rule", ylabel="position found")


def _positions(arrays: Arrays, name: str) -> tuple[Float, Float]:
    """Angle to p^mm over that between p^mm and p^relax, on random problems: by the rule, and measured."""
    random_problems = slice(len(RATIOS), None)
    mm, relaxed = (arrays[name][random_problems] for name in ("mm", "relaxed"))
    full = _angle_between(mm, relaxed)
    program = arrays["program" if name == "path" else "own_program"][random_problems]
    return _angle_between(program, mm) / full, _angle_between(arrays[name][random_problems, -1], mm) / full


def _angles(prompts: Float) -> Float:
    return np.asarray(np.degrees(np.arctan2(prompts[..., 1], prompts[..., 0])))


def _angle_between(a: Float, b: Float) -> Float:
    cosine = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    return np.asarray(np.arccos(np.clip(cosine, -1, 1)))


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The program against its closed form; paths and runs against the program of their ratio."""
    k = len(RATIOS)
    error = np.abs(_angles(arrays["program"][:k]) - closed_form(RATIOS)).max()
    quantity = "program against the closed form: largest error of the angle, degrees"
    rows = [Check(quantity, DERIVED, "closed form", 0.0, error, within(1e-6, "bisection"))]
    rows += _errors(arrays, "descent", "joint descent", arrays["own_ratio"], arrays["length"][:k].min())
    if "path" in arrays:
        radius = arrays["radii"][-1]
        rows += _errors(arrays, "path", f"joint path at R = {radius:g}", arrays["ratio"], radius)
    return rows


def _errors(arrays: Arrays, name: str, kind: str, ratio: Float, length: float) -> list[Check]:
    k = len(RATIOS)
    worst = np.abs(_angles(arrays[name][:k, -1]) - closed_form(ratio[:k])).max()
    predicted, observed = _positions(arrays, name)
    middle = float(np.median(np.abs(predicted - observed)))
    why = "angles close like one over the length: one radian over it"
    units = f"{why}, in units of the 0.32 rad that p^mm and p^relax are apart at least"
    return [
        Check(quantity, CONJECTURED, "a rule of ours, by a heuristic argument", 0.0, error, near)
        for quantity, error, near in (
            (f"{kind}: largest error of the angle, degrees", worst, within(np.degrees(1 / length), why)),
            (f"{kind}, random problems: median error of position", middle, within(3 / length, units)),
        )
    ]
