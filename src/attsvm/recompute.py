"""Recorded figures computed again: `experiments/again.py` trains, and the figures draw its records."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path as File

from attsvm import figures
from attsvm.figures.recorded import FOLDER


def recompute(names: Sequence[str], data: File, out: File, tiny: bool = False) -> None:
    """Train what the recorded ones of the named figures draw, and have them read the new records from now on.

    names: of figures, none for all. data: the folder of experiments/data.py. out: where the trainings are
    kept; the same call goes on. tiny: a few examples for two epochs, on any machine; otherwise on a GPU.
    """
    recorded = [name for name, figure in figures.ALL.items() if "experiments/" in figure.recorded]
    chosen = [name for name in names or recorded if name in recorded]
    if not chosen:
        raise ValueError(f"none of these figures is recorded. --data computes again: {', '.join(recorded)}.")
    if not data.is_dir():
        raise FileNotFoundError(f"no folder {data}. Make it: python experiments/data.py reviews {data}")
    words = [*chosen, "--data", str(data), "--out", str(out), *(["--tiny"] if tiny else [])]
    if subprocess.run([sys.executable, str(script()), *words], check=False).returncode:
        raise ChildProcessError("the trainings did not come to their end. The same command goes on.")
    os.environ[FOLDER] = str((out / "records").absolute())


def script() -> File:
    """experiments/again.py of the checkout that the package is installed from, or of the working folder."""
    for root in (File(__file__).parents[2], File.cwd()):
        if (found := root / "experiments" / "again.py").is_file():
            return found
    raise FileNotFoundError(
        "the folder experiments/ is not here: it is in the repository, not in the wheel. Run in a checkout."
    )
