"""Hostile programs by the hundred thousand: `python benchmarks/hostile.py [--count N] [--first SEED]`.

Every answer is judged in exact arithmetic (tests/program/exact.py). Writes the table of docs/certificates.md.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

LIMIT, MEMORY = 60, 8 << 30
"""Seconds after which a program hangs, and bytes after which it takes too much memory."""

PAGE = ROOT / "docs" / "certificates.md"
BEGIN, END = "<!-- hostile: begin -->", "<!-- hostile: end -->"


def one(job: tuple[str, int]) -> tuple[str, int, str, float]:
    """Family, seed, outcome and seconds of one program."""
    from tests.program import exact
    from tests.program.hostile import draw

    family, seed = job
    case, start = draw(family, seed), time.perf_counter()
    signal.alarm(LIMIT)
    try:
        word = exact.outcome(case)
    except TimeoutError:
        word = "HANG"
    except MemoryError:
        word = "MEMORY"
    except Exception as error:
        word = f"CRASH {type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return family, seed, word, time.perf_counter() - start


def prepare() -> None:
    def too_long(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("error")  # a raw warning is a defect


def main() -> None:
    from tests.program.hostile import FAMILIES

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=100_000, help="programs in all")
    parser.add_argument("--first", type=int, default=1_000, help="first seed; the tests use 0 to 18")
    parser.add_argument("--only", default="", help="families whose name contains this text")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    families = [name for name in FAMILIES if options.only in name]
    seeds = range(options.first, options.first + -(-options.count // len(families)))
    counts: dict[str, Counter[str]] = {name: Counter() for name in families}
    slowest: dict[str, float] = dict.fromkeys(families, 0.0)
    with ProcessPoolExecutor(options.processes, initializer=prepare) as pool:
        jobs = ((name, seed) for name in families for seed in seeds)
        for family, seed, word, seconds in pool.map(one, jobs, chunksize=50):
            counts[family][word] += 1
            slowest[family] = max(slowest[family], seconds)
            if word[0].isupper():
                print(f"{family} {seed}: {word}", flush=True)
    text = "\n".join(table(counts, slowest))
    print(text)
    if not options.only:
        page = PAGE.read_text()
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def table(counts: dict[str, Counter[str]], slowest: dict[str, float]) -> list[str]:
    """Markdown: a row per family, and the sum."""
    from tests.program.exact import CERTIFIED, NOT_CERTIFIED, NOT_SEPARABLE, OUT_OF_RANGE

    words = [CERTIFIED, NOT_CERTIFIED, NOT_SEPARABLE, OUT_OF_RANGE]
    lines = [
        f"| family | tried | {' | '.join(words)} | false, wrong, hang, crash | slowest, s |",
        "|---" * 8 + "|",
    ]
    total: Counter[str] = Counter()
    for family, count in [*counts.items(), ("**all**", total)]:
        bad = sum(number for word, number in count.items() if word[0].isupper())
        cells = [family.replace("_", " "), f"{count.total():,}", *(f"{count[w]:,}" for w in words), str(bad)]
        lines.append(f"| {' | '.join(cells)} | {slowest.get(family, max(slowest.values())):.1f} |")
        total += count if count is not total else Counter()
    feasible = total[CERTIFIED] + total[NOT_CERTIFIED]
    share = 100 * total[NOT_CERTIFIED] / max(feasible, 1)
    return [*lines, "", f"Not certified: {share:.2f} % of the programs that have a solution in float64."]


if __name__ == "__main__":
    main()
