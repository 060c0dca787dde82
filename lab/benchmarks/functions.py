"""Time and memory against n, programs apart: `python lab/benchmarks/functions.py [NAME …]` prints a table.

Gaussian tokens (n, 8, 6) with queries of width 6, whose values are the logits of a random W₀, so that W₀
selects the best tokens. Each measurement has a process of its own: CPU seconds of one call after one that
compiles, and the peak of memory beyond what tokens, path and solution take, in units of the keys. The slope
is that of log time against log n from the second n on.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path as File
from typing import Any

import numpy as np

from measure import ENOUGH, Result, cpu_seconds, in_child

SIZES = (100, 1_000, 10_000, 100_000)
FEW, ENUMERATED = (10, 20, 40, 80), "selections, n = 10, 20, 40, 80"
"""Examples of `selections`, which enumerates, and its name."""
T, WIDTH, RECORDS, CAP = 8, 6, 50, 300

Work = Callable[[], Any]


# ---------------------------------------------------------------------- what is measured, in the child


class Instance:
    """Tokens whose best ones W0 selects, a path along W0 and a solution, not certified, in its direction."""

    def __init__(self, n: int, width: int = WIDTH, queries: bool = True) -> None:
        import attsvm as att

        rng = np.random.default_rng(0)
        keys = rng.standard_normal((n, T, width))
        z = rng.standard_normal((n, width)) if queries else np.ones((n, 1))
        self.W0 = rng.standard_normal((width, z.shape[1]))
        logits = np.einsum("ntd,de,ne->nt", keys, self.W0, z)
        self.tokens = att.Tokens(keys, z, values=logits[..., None])
        self.v, self.best = np.ones(1), logits.argmax(-1)
        self.labels = (keys[np.arange(n), self.best, 0] > 0).astype(int)

    @property
    def path(self) -> Any:
        import attsvm as att

        return att.Path.of(self.tokens, np.arange(RECORDS)[:, None, None] * self.W0)

    @property
    def solution(self) -> Any:
        import attsvm as att

        n, selected = self.tokens.n, self.best[:, None] == np.arange(T)
        least = np.sort(self.tokens.values[..., 0], -1)
        W = self.W0 / (least[:, -1] - least[:, -2]).min()
        zeros = np.zeros(n * (T - 1))
        return att.Solution(self.tokens, selected, att.frobenius, W, zeros, np.ones(n), np.bool_(True))


def trained(instance: Instance, **settings: Any) -> Any:
    import attsvm as att

    rule = att.steepest(att.frobenius, 0.1)
    return att.train(instance.tokens, att.Linear(instance.v), optimizer=rule, **settings)


def saved_and_loaded(instance: Instance) -> Work:
    import attsvm as att

    solution, folder = instance.solution, tempfile.TemporaryDirectory()
    return lambda folder=folder: att.Solution.load(solution.save(File(folder.name) / "solution.npz"))


def regularised(instance: Instance) -> Work:
    import attsvm as att

    head = att.Linear(instance.v)
    return lambda: att.regularisation_path(instance.tokens, head, radii=[0.5], starts=1)


def probed(instance: Instance) -> tuple[Any, Any]:
    import attsvm as att

    return att.AttentionProbe(head_ridge=0.01, prompt_ridge=0.01), instance.tokens.keys


def predicted(instance: Instance) -> Work:
    probe, keys = probed(instance)
    first = slice(0, 1000)
    probe.fit(keys[first], instance.labels[first])
    return lambda: probe.predict(keys)


def fitted(instance: Instance) -> Work:
    probe, keys = probed(instance)
    return lambda: probe.fit(keys, instance.labels)


def about_solutions(name: str, *names: str) -> Callable[[Instance], Work]:
    """A verb of a solution, after the tokens and the head or after a path."""

    def prepared(instance: Instance) -> Work:
        import attsvm as att

        arguments = [getattr(instance, one) for one in names]
        return lambda: getattr(att, name)(*arguments)

    return prepared


def of_solution(ask: Callable[[Any], Any]) -> Callable[[Instance], Work]:
    """A question to a solution."""

    def prepared(instance: Instance) -> Work:
        solution = instance.solution
        return lambda: ask(solution)

    return prepared


def selected(instance: Instance) -> Work:
    path = instance.path
    return lambda: path.selected


FUNCTIONS: dict[str, Callable[[Instance], Work]] = {
    "train, 100 steps, all examples": lambda x: lambda: trained(x, steps=100),
    "train, 1,000 steps, batches of 32": lambda x: lambda: trained(x, steps=1000, batch=32),
    "loss of 50 records": lambda x: lambda: trained(x, steps=50, record=range(51)).loss,
    "regularisation_path, one radius": regularised,
    "best_tokens": about_solutions("best_tokens", "tokens", "v"),
    "locally_optimal": about_solutions("locally_optimal", "tokens", "v", "solution"),
    "path.selected": selected,
    "compare, 50 records": about_solutions("compare", "path", "solution", "v"),
    "classify with a solution": about_solutions("classify", "path", "v", "solution"),
    "separable": about_solutions("separable", "tokens", "best"),
    "solution.support": of_solution(lambda solution: solution.support),
    "solution.margin": of_solution(lambda solution: solution.margin),
    "str(solution)": of_solution(str),
    "solution.certificate": of_solution(lambda solution: solution.certificate),
    "Solution.save and load": saved_and_loaded,
    "AttentionProbe.fit": fitted,
    "AttentionProbe.predict": predicted,
    ENUMERATED: about_solutions("selections", "tokens", "v"),
}


MEASUREMENTS = [(name, n) for name in FUNCTIONS for n in (FEW if name == ENUMERATED else SIZES)]


def measured(index: int) -> Result:
    """CPU seconds of a call after one that compiles, and its peak of memory in units of the keys."""
    warnings.simplefilter("ignore")  # that the solution is not certified
    name, n = MEASUREMENTS[index]
    instance = Instance(n, 2, queries=False) if name == ENUMERATED else Instance(n)
    work = FUNCTIONS[name](instance)
    work()
    # Return what the first call has freed: memory that the allocator retains would hide the second peak.
    ctypes.CDLL(None).malloc_trim(0)
    begin = _status("VmRSS")
    File("/proc/self/clear_refs").write_text("5")  # the peak begins again at what is held now
    start = time.process_time()
    work()
    seconds, peak = time.process_time() - start, _status("VmHWM")
    return {
        "seconds": seconds if seconds > ENOUGH else cpu_seconds(work),
        "memory": (peak - begin) * 1024 / instance.tokens.keys.nbytes,
    }


def _status(name: str) -> int:
    """A line of this process's status, in kB."""
    lines = File("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


# ---------------------------------------------------------------------- in the parent


def row(function: str) -> str:
    """A line of the table: CPU seconds at every n, memory at the largest, slope."""
    places = [k for k, (name, _) in enumerate(MEASUREMENTS) if name == function]
    results = [in_child("functions.measured", k, cap=CAP) for k in places]
    times = [x.get("error") or f"{x['seconds']:.3g}" for x in results]
    sizes = [MEASUREMENTS[k][1] for k in places]
    pairs = [(n, x["seconds"]) for n, x in zip(sizes, results, strict=True) if "seconds" in x]
    slope = f"{np.polyfit(*np.log(pairs[1:]).T, 1)[0]:.2f}" if len(pairs) > 2 else "–"
    memory = f"{results[-1]['memory']:.1f}" if "memory" in results[-1] else "–"
    return f"| {function} | {' | '.join(times)} | {memory} | {slope} |"


def main() -> None:
    prefixes = sys.argv[1:]
    names = [
        name for name in FUNCTIONS if not prefixes or any(name.startswith(prefix) for prefix in prefixes)
    ]
    print(f"| function, CPU s at n = | {' | '.join(f'{n:,}' for n in SIZES)} | memory / keys | slope |")
    print(f"|{'---|' * (len(SIZES) + 3)}")
    for name in names:
        print(row(name), flush=True)


if __name__ == "__main__":
    main()
