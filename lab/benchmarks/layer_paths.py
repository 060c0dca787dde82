"""What a layer meets, and how long a batch of it takes: soft margins, order alone, copies, one hard run.

    python lab/benchmarks/layer_paths.py      # the tables of docs/performance.md

CPU time of one process, one thread, the least over rounds that take all cases in turn, so that a busy machine
weighs on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import numpy as np

import attsvm as att
from attsvm.program.derivative.pull_back import Derivative
from measure import least_milliseconds

RUNS, SHAPE = 100, (6, 8, 10)
ROUNDS = 5


@dataclass
class Case:
    """Something to time; number: of runs; limit: milliseconds of all of them that the issue allows."""

    name: str
    call: Callable[[], object]
    number: int
    before: str
    limit: float | None = None


def tokens(
    runs: int, n: int, T: int, d: int, e: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random runs whose planted best token is ahead by 0.1."""
    rng = np.random.default_rng(seed)
    keys, queries = rng.standard_normal((runs, n, T, d)), rng.standard_normal((runs, n, e))
    W = rng.standard_normal((runs, d, e))
    along = np.einsum("rde,rne->rnd", W, queries)
    best = np.einsum("rntd,rnd->rnt", keys, along).argmax(-1)
    along /= np.linalg.norm(along, axis=-1, keepdims=True)
    np.put_along_axis(
        keys,
        best[..., None, None],
        np.take_along_axis(keys, best[..., None, None], 2) + 0.1 * along[:, :, None],
        2,
    )
    return keys, queries, best


def cases() -> list[Case]:
    n, T, d = SHAPE
    keys, queries, best = tokens(RUNS, n, T, d, d)
    order = np.ones((RUNS, n))
    order[:, 0] = 0.0
    copies = keys.copy()
    for run, support in enumerate(att.max_margin(att.Tokens(keys, queries), as_bool(best, T)).support):
        i, t = np.argwhere(support)[0]
        copies[run, i, next(k for k in range(T) if k not in (t, best[run, i]))] = keys[run, i, t]
    prompts, signs, chosen = tokens(RUNS, n, T, d, 1)
    near = {angle: opposed(prompts, signs, chosen, angle) for angle in (1e-3, 1e-6)}
    large = tokens(32, 20, 16, 16, 16)
    random = np.random.default_rng(1).integers(0, T, (RUNS, n))

    def solve(keys, queries, selected, **options):
        return lambda: att.max_margin(att.Tokens(keys, queries), as_bool(selected, keys.shape[2]), **options)

    one_by_one = "863 to 1,069"
    return [
        Case("matrices, hard margin", solve(keys, queries, best), RUNS, "4"),
        Case("one example asks for order alone", solve(keys, queries, best, required=order), RUNS, "81", 8),
        Case("a copy of a support token in each run", solve(copies, queries, best), RUNS, "20", 8),
        Case("prompts, hard margin", solve(prompts, signs, chosen), RUNS, "2.8"),
        Case("prompts, two rows of one 1e-3 from opposed", solve(near[1e-3], signs, chosen), RUNS, "112", 8),
        Case("prompts, two rows of one 1e-6 from opposed", solve(near[1e-6], signs, chosen), RUNS, "118"),
        Case("soft margin, C = 1", solve(keys, queries, best, slack=1.0), RUNS, one_by_one, 31),
        Case("the same, random selection", solve(keys, queries, random, slack=1.0), RUNS, "", 31),
        Case("the same of prompts", solve(prompts, signs, random, slack=1.0), RUNS, "", 31),
        Case("300 rows: (20, 16, 16, 16)", solve(*large[:2], large[2]), 32, "110 to 128", 110),
    ]  # fmt: skip


def opposed(keys: np.ndarray, signs: np.ndarray, best: np.ndarray, angle: float) -> np.ndarray:
    """The keys with two rows of the first run nearly opposed: its weight is 1/angle times as long."""
    keys = keys.copy()
    along, across = np.random.default_rng(2).standard_normal((2, keys.shape[-1]))
    for i, sign in enumerate((1, -1)):
        t = best[0, i]
        row = (sign * along + angle * across) * np.sign(signs[0, i, 0])
        keys[0, i, (t + 1) % keys.shape[2]] = keys[0, i, t] - row
    return keys


def as_bool(best: np.ndarray, T: int) -> np.ndarray:
    return best[..., None] == np.arange(T)


def certified(result: object) -> str:
    values = np.atleast_1d(np.asarray(getattr(result, "certified")))  # noqa: B009
    separable = np.broadcast_to(np.asarray(getattr(result, "separable", True)), values.shape)
    return f"{int((values & separable).sum())} of {int(separable.sum())}"


def polish_rows() -> list[str]:
    """Of single programs: the time with and without the last digits, and how far W is from the exact one."""
    lines = []
    keys, queries, best = tokens(1, *SHAPE, SHAPE[2])
    data, selected = att.Tokens(keys[0], queries[0]), best[0]
    for norm in (att.Entrywise(1.5), att.Entrywise(3), att.Schatten(1.5), att.Schatten(3)):

        def with_digits(norm=norm):
            return att.max_margin(data, selected, norm)

        def without(norm=norm):
            with mock.patch("attsvm.program.polish.polished", lambda program, norm, answer: answer):
                return att.max_margin(data, selected, norm)

        slow, fast = least_milliseconds(with_digits, without, rounds=ROUNDS)
        exact = exact_W(with_digits(), norm)
        errors = [np.linalg.norm(s.W - exact) / np.linalg.norm(exact) for s in (with_digits(), without())]
        lines.append(f"| {norm} | {slow:.2f} | {fast:.2f} | {errors[0]:.0e} | {errors[1]:.0e} |")
    return lines


def exact_W(solution: att.Solution, norm: att.Norm) -> np.ndarray:
    """Newton steps on the dual of the active rows, another way than the solver's."""
    return Derivative.of(solution).local[0].exact().W


def main() -> None:
    listed = cases()
    times = least_milliseconds(*(case.call for case in listed), rounds=ROUNDS)
    print("| batch | runs | CPU ms | before | allowed | certified |\n|---|---|---|---|---|---|")
    for case, spent in zip(listed, times, strict=True):
        allowed = "" if case.limit is None else f"{case.limit:g}"
        proven = certified(case.call())
        print(f"| {case.name} | {case.number} | {spent:.2f} | {case.before} | {allowed} | {proven} |")
    print(
        "\n| norm, one program (6, 8, 10, 10) | CPU ms | without the last digits | error of W | without |"
        "\n|---|---|---|---|---|"
    )
    print("\n".join(polish_rows()))


if __name__ == "__main__":
    main()
