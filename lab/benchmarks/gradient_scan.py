"""Single steps of random trainings, checked: `python lab/benchmarks/gradient_scan.py [--minutes M]`.

Weight × head × kind of attention × loss × optimizer × route × sizes by which routes are chosen
(tests/training/one_step.py), with XLA's own settings. Prints the cases that differ, and a table of how many
of each route do. Needs what the package needs, and PYTHONPATH=src. On a GPU the kernel is the compiled one.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def main() -> int:
    import jax
    from tests.training.one_step import ROUTES, TOLERANCE, draw, error

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--cases", type=int, default=10**9, help="at most so many")
    parser.add_argument("--narrow", action="store_true", help="keys of width 1 only")
    parser.add_argument("--routes", nargs="+", choices=ROUTES, default=ROUTES)
    options = parser.parse_args()
    end, seed = time.monotonic() + 60 * options.minutes, options.first
    right: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    worst = 0.0
    while time.monotonic() < end and right.total() + wrong.total() < options.cases:
        case, seed = draw(seed, tuple(options.routes)), seed + 1
        if options.narrow and case.d > 1:
            continue
        try:
            off = error(case)
        except Exception as failure:
            print(f"CRASH {type(failure).__name__}: {failure} in {case}", flush=True)
            wrong[case.route] += 1
            continue
        if off <= TOLERANCE:
            worst = max(worst, off)
        else:
            print(f"{off:.1e} off: {case}", flush=True)
        (right if off <= TOLERANCE else wrong)[case.route] += 1
        if (right.total() + wrong.total()) % 200 == 0:
            jax.clear_caches()
    device = jax.devices()[0]
    print(f"{platform.machine()}, {device.device_kind}, JAX {jax.__version__}")
    print(f"seeds {options.first} to {seed - 1}\n")
    print("| route | steps | wrong |\n|---|---|---|")
    for route in options.routes:
        print(f"| {route} | {right[route] + wrong[route]} | {wrong[route]} |")
    print(f"{right.total() + wrong.total()} steps, {wrong.total()} wrong; the largest error is {worst:.1e}")
    return int(wrong.total() > 0)


if __name__ == "__main__":
    raise SystemExit(main())
