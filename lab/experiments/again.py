"""Train again what the recorded figures draw, and write their records:

    python lab/experiments/again.py sentiment vision --data FOLDER --out OUT [--tiny]

`attsvm reproduce --only sentiment --scale paper --data FOLDER` calls it. The trainings of a plan that a
figure draws run to their end, some side by side on one GPU; called again, it goes on. OUT/records then has
the files of src/attsvm_lab/figures/records. --tiny: a few examples for two epochs, on any machine.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
import sys
from pathlib import Path

import torch

import drive
import factors
import head_study
import language_heads
import language_record
import summary
from data import MissingData, there

FIGURES = {
    "sentiment": ("sentiment(?!.*--no-half)", "reviews"),
    "vision": ("vision", "images"),
    "vision-sparsity": ("patches|digits", "images"),
    "head-geometry": ("sentiment --size 3 --optimizer mirror:(1.1|2|3) --seed [012] --keep", "reviews"),
    "head-ranks": ("sentiment", "reviews"),
    "language": ("language", "reviews"),
}
"""Which lines of its plan a figure draws, as a pattern, and the data they need."""
OWN_PLAN = {"head-ranks": "plan-factors.txt", "language": "plan-language.txt"}
"""The others draw plan.txt."""
BASE, SEEDS, COMMON = "2", 3, ("Frobenius", "nuclear", "l3")
NORMS = {"1.1": (*COMMON, "l1.1"), "3": COMMON}
"""Mirror descents whose heads are compared with gradient descent's, seed by seed, and in which norms."""
TINY = ("--rows", "40", "--epochs", "2")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", nargs="+", choices=list(FIGURES))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plan", type=Path, default=drive.HERE / "plan.txt")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(arguments)
    try:
        for data_name in {FIGURES[figure][1] for figure in options.figures}:
            there(options.data, data_name)
    except MissingData as error:
        sys.exit(str(error))
    if not options.tiny and not torch.cuda.is_available():
        sys.exit("no GPU: these trainings need one for an hour. --scale quick tries a few examples without.")
    records = options.out / "records"
    if planned := [figure for figure in options.figures if figure not in OWN_PLAN]:
        small = trained(planned, options.plan, options.out / "runs", options)
        summary.main([str(small), "--out", str(records), *studied(small, options)])
    for figure in (figure for figure in options.figures if figure in OWN_PLAN):
        small = trained([figure], drive.HERE / OWN_PLAN[figure], options.out / figure, options)
        if figure == "language":
            language_heads.main([str(small), str(options.out / "language-heads.json")])
            record_of_heads = ["--heads", str(options.out / "language-heads.json")]
            language_record.main([str(small), "--out", str(records), *record_of_heads])
        else:
            factors.main([str(small), "--out", str(records)])


def trained(figures: list[str], plan: Path, runs: Path, options: argparse.Namespace) -> Path:
    """Train what some figures draw of a plan, to the end; the folder of what is small."""
    drawn = "|".join(f"({FIGURES[figure][0]})" for figure in figures)
    lines = [line for line in drive.read(plan) if re.match(drawn, line)]
    at_once, extra_options = (1, TINY) if options.tiny else (6, ())
    drive.drive(lines, runs, options.data, math.inf, at_once, *extra_options)
    for folder in (runs / drive.name_of(line) for line in lines):
        if not drive.ended(folder):
            sys.exit(f"a training failed: {folder / 'log.txt'} says why.")
    if short := drive.gather(runs):
        sys.exit(f"records of {short[0]} could not be copied to {runs / 'small'}. Make room and call again.")
    return runs / "small"


def studied(small: Path, options: argparse.Namespace) -> list[str]:
    """The certified programs of the heads, where a figure draws them; what summary.py is told of them."""
    if "head-geometry" not in options.figures:
        return []
    heads, files = str(options.out / "heads.json"), []
    head_study.main([str(small), heads, "--norms", "Frobenius", "--only", "sentiment-3-mirror"])
    for p, seed in itertools.product(NORMS, range(SEEDS)):
        nets = [f"sentiment-3-mirror{x}-{seed}" for x in (p, BASE)]
        if all((small / net).is_dir() for net in nets):
            files.append(str(options.out / f"pair-{p}-{seed}.json"))
            head_study.main([str(small), files[-1], "--norms", *NORMS[p], "--together", *nets])
    return ["--heads", heads, "--pairs", *files]


if __name__ == "__main__":
    main()
