"""Install the wheel into an empty environment away from the clone, and use it as a stranger would.

    python .ci/check_wheel.py dist [--constraints FILE]

What is code must be small, and so must what was recorded. The README's example must print what the README
shows, every command must explain itself, the templates must be there, and `attsvm reproduce
--only single-input --scale quick` must agree.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE, RECORDED = 1_600_000, 500_000  # bytes in the wheel; a claim or a figure takes some 2,500
RECORDS = ("attsvm_lab/figures/records/", "attsvm_lab/figures/ours/review_tokens.npz")  # of larger machines
TEMPLATES = (
    "attsvm/_support/pages.css",
    "attsvm/explorer/web/main.js",
    "attsvm/heads/page.html",
    "attsvm/probe/explanation.html",
    "attsvm/py.typed",
    "attsvm_lab/py.typed",
    "attsvm_lab/report/page.css",
    "attsvm_lab/report/page.html",
    "attsvm_lab/report/page.js",
    "attsvm_lab/sweeps/example.toml",
    "attsvm_lab/sweeps/page.html",
)


def main():
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("dist", type=Path)
    asked.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt")
    given = asked.parse_args()
    wheel = max(given.dist.glob("*.whl"), key=os.path.getmtime).resolve()
    the_size(wheel)
    with tempfile.TemporaryDirectory() as place:
        away = Path(place)
        venv.create(away / "env", with_pip=True)
        programs = away / "env" / ("Scripts" if os.name == "nt" else "bin")
        pip = [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        said(*pip, "-c", given.constraints.resolve(), wheel, at=away)
        print(said(programs / "python", "-c", VERSIONS, at=away).strip())
        the_readme(programs, away)
        the_commands(programs, away)
        said(programs / "python", "-c", TEMPLATES_THERE.format(TEMPLATES), at=away)
        said(*pip, "-c", given.constraints.resolve(), f"{wheel}[lab]", at=away)
        last = said(programs / "attsvm", "reproduce", "--only", "single-input", "--scale", "quick", at=away)
        assert (away / "out" / "report.html").exists()
        print(last.strip().splitlines()[0])
    print("The wheel works on its own.")


def the_size(wheel):
    with zipfile.ZipFile(wheel) as archive:
        recorded = sum(x.compress_size for x in archive.infolist() if x.filename.startswith(RECORDS))
    code = wheel.stat().st_size - recorded
    for what, size, largest in (("code", code, CODE), ("records", recorded, RECORDED)):
        assert size < largest, f"{wheel.name} has {size:,} bytes of {what}; less than {largest:,} are wanted"
    print(f"{wheel.name}: {code / 1e3:.0f} kB and {recorded / 1e3:.0f} kB of records")


def the_readme(programs, away):
    text = (ROOT / "README.md").read_text(encoding="utf8")
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]  # the one whose output is shown
    shown = re.findall(r"```text\n(.*?)```", text, re.DOTALL)[0]
    printed = said(programs / "python", "-c", code, at=away)
    assert words(printed) == words(shown), f"the README shows\n{shown}\nbut the wheel prints\n{printed}"
    print("README: as shown")


def the_commands(programs, away):
    listed = said(programs / "attsvm", "--help", at=away)
    names = [name for name in COMMANDS if name in listed]
    assert names == list(COMMANDS), f"missing commands: {set(COMMANDS) - set(names)}"
    for name in names:
        assert "Examples" in said(programs / "attsvm", name, "--help", at=away), f"attsvm {name} --help"
    print(f"commands: {', '.join(names)}")


COMMANDS = ("claims", "explore", "heads", "reproduce", "show", "solve", "sweep", "train")
VERSIONS = """
import sys
from importlib.metadata import version
names = ("attsvm", "numpy", "scipy", "numba", "jax", "optax", "typer")
print("Python", sys.version.split()[0], *(f"{name} {version(name)}" for name in names))
"""
TEMPLATES_THERE = """
from importlib.resources import files
missing = [name for name in {} if not files("attsvm").parent.joinpath(name).is_file()]
assert not missing, missing
"""


def said(*command, at):
    """What a command prints; nothing of the clone is on its path."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([str(part) for part in command], cwd=at, env=clean, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command[0]} {command[1]} … ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def words(text):
    """The text without its rounding-sized numbers, which differ between machines."""
    return re.sub(r"\d\.\de-\d\d|0\.0e\+00", "tiny", text).split()


if __name__ == "__main__":
    main()
