"""Hostile programs by the hundred thousand: `python lab/benchmarks/hostile.py [--scales small]`.

Every answer is judged in exact arithmetic (tests/program/exact.py). Writes the table of its scales in
docs/lab/certificates.md, unless it was asked for some families only. Needs PYTHONPATH=src.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # before NumPy is imported: a process each is enough

LIMIT, MEMORY, SLOW = 60, 8 << 30, 20
"""CPU seconds after which a program hangs, bytes that are too much memory, CPU seconds that are too many."""

SCALES = "small", "medium", "large"
"""A seed is a small, a medium or a large program in turn."""

PAGE = ROOT / "docs" / "lab" / "certificates.md"


def solve_one(job: tuple[str, int]) -> tuple[str, int, str, float]:
    """Family, seed, outcome and CPU seconds of one program, its judgement included."""
    from tests.program import exact
    from tests.program.hostile import draw

    family, seed = job
    case, start = draw(family, seed, seed % len(SCALES)), time.process_time()
    signal.setitimer(signal.ITIMER_PROF, LIMIT)  # CPU time: others use the machine, too
    signal.alarm(60 * LIMIT)
    try:
        outcome = exact.outcome(case)
    except TimeoutError:
        outcome = "HANG"
    except MemoryError:
        outcome = "MEMORY"
    except Exception as error:
        outcome = f"CRASH {type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
    return family, seed, outcome, time.process_time() - start


def prepare() -> None:
    from attsvm._support import progress

    progress.PATIENCE = float("inf")  # no lines, of threads neither

    def too_long(*_: object) -> None:
        raise TimeoutError

    for late in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(late, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("error")  # a raw warning is a defect


def main() -> None:
    from tests.program.hostile import FAMILIES

    from measure import into_page

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=100_000, help="programs in all")
    parser.add_argument("--scales", default="small", help=f"some of {','.join(SCALES)}")
    parser.add_argument("--first", type=int, default=1_000, help="first seed; the tests use 0 to 18")
    parser.add_argument("--only", default="", help="families whose name contains this text")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after these, with what there is")
    options = parser.parse_args()
    families = [name for name in FAMILIES if options.only in name]
    scales = options.scales.split(",")
    of_scales = (seed for seed in itertools.count(options.first) if SCALES[seed % len(SCALES)] in scales)
    seeds = list(itertools.islice(of_scales, -(-options.count // len(families))))
    counts: dict[str, Counter[str]] = {name: Counter() for name in families}
    slowest: dict[str, float] = dict.fromkeys(families, 0.0)
    with ProcessPoolExecutor(1, initializer=prepare) as pool:  # one process compiles, the others read that
        list(pool.map(solve_one, [(name, seed) for name in families for seed in range(2)]))
    end, stopped = time.monotonic() + 60 * options.minutes, False
    with ProcessPoolExecutor(options.processes, initializer=prepare) as pool:
        # A seed of every family in turn, so that one that is stopped has seen all of them.
        jobs = ((name, seed) for seed in seeds for name in families)
        for family, seed, outcome, seconds in pool.map(solve_one, jobs, chunksize=len(families)):
            counts[family][outcome] += 1
            slowest[family] = max(slowest[family], seconds)
            if outcome[0].isupper() or seconds > SLOW:
                print(f"{family} {seed}: {outcome}, {seconds:.1f} CPU s", flush=True)
            if time.monotonic() > end:
                stopped = True
                pool.shutdown(wait=False, cancel_futures=True)
                break
    text = "\n".join(table(counts, slowest))
    print(text)
    total = sum(count.total() for count in counts.values())
    print(f"\n{total:,} programs from seed {options.first}" + ", stopped by the clock" * stopped)
    if not options.only:
        into_page(PAGE, f"hostile {' '.join(scales)}", text)


def table(counts: dict[str, Counter[str]], slowest: dict[str, float]) -> list[str]:
    """Markdown: a row per family, and the sum."""
    from tests.program.exact import CERTIFIED, NOT_CERTIFIED, NOT_SEPARABLE, OUT_OF_RANGE

    outcomes = [CERTIFIED, NOT_CERTIFIED, NOT_SEPARABLE, OUT_OF_RANGE]
    lines = [
        f"| family | tried | {' | '.join(outcomes)} "
        "| false, wrong, not finite, hang, crash | slowest, CPU s |",
        "|---" * 8 + "|",
    ]
    total: Counter[str] = Counter()
    for family, count in [*counts.items(), ("**all**", total)]:
        failures = sum(number for word, number in count.items() if word[0].isupper())
        cells = [
            family.replace("_", " "),
            f"{count.total():,}",
            *(f"{count[w]:,}" for w in outcomes),
            str(failures),
        ]
        lines.append(f"| {' | '.join(cells)} | {slowest.get(family, max(slowest.values())):.1f} |")
        total += count if count is not total else Counter()
    feasible = total[CERTIFIED] + total[NOT_CERTIFIED]
    share = 100 * total[NOT_CERTIFIED] / max(feasible, 1)
    return [*lines, "", f"Not certified: {share:.2f} % of the programs that have a solution in float64."]


if __name__ == "__main__":
    main()
