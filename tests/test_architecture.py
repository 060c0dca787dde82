"""The layers of the house, read from the imports: they point down only."""

import ast
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest

import attsvm

ROOT = Path(attsvm.__file__).parent

LAYERS = {
    "tokens": 0,
    "norms": 0,
    "selection": 1,
    "path": 1,
    "datasets": 1,
    "program": 2,
    "training": 2,
    "next_token": 3,
    "theory": 3,
    "verdict": 3,
    "workers": 3,
    "claims": 4,
    "figures": 4,
    "heads": 4,
    "probe": 4,
    "torch": 4,
    "report": 5,
    "reproduce": 5,
    "cli": 5,
    "__main__": 5,
}
HOMES = {
    "numba": {"program"},
    "jax": {"training", "theory"},
    "optax": {"training", "theory"},
    "matplotlib": {"figures"},
    "torch": {"torch", "heads"},
    "transformers": {"heads", "torch"},
    "sklearn": {"probe"},
    "typer": {"cli"},
}
HEAVY = ("jax", "optax", "numba", "scipy", "matplotlib", "torch", "sklearn", "transformers", "rich", "typer")


def part_of(path):
    """The layer's name: the first component below the package."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(source):
    """Every module imported anywhere in the source, lazy imports included.

    One door upwards: a result's `plot` method may ask figures/ to draw it.
    """
    tree = ast.parse(source)
    plots = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "plot"]
    excused = {id(n) for p in plots for n in ast.walk(p)}
    for node in ast.walk(tree):
        if id(node) in excused:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def violations(part, source):
    """What an import of this source breaks, in words."""
    for name in imports(source):
        top, *rest = name.split(".")
        if top == "attsvm" and rest and rest[0] in LAYERS and rest[0] != part:
            if LAYERS[rest[0]] > LAYERS[part]:
                yield f"{part} imports upwards: {name}"
            if {part, rest[0]} == {"program", "training"}:
                yield f"the two roads meet: {part} imports {name}"
        if top in HOMES and part not in HOMES[top]:
            yield f"{top} does not live in {part}"


FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    assert part_of(path) in LAYERS, f"{path.name} has no layer: add it to LAYERS"
    assert not list(violations(part_of(path), path.read_text(encoding="utf8")))


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("tokens", "from attsvm.selection import scores"),
        ("selection", "import attsvm.program.max_margin"),
        ("program", "def f():\n    from attsvm.training import train"),
        ("training", "from attsvm import program"),
        ("selection", "import numba"),
        ("verdict", "from matplotlib import pyplot"),
    ],
)
def test_a_wrong_import_is_seen(part, source):
    assert list(violations(part, source))


def loaded_by(code):
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_import_attsvm_loads_nothing_heavy():
    assert not loaded_by("import attsvm") & {*HEAVY, "numpy"}


def test_the_data_model_loads_only_numpy():
    assert not loaded_by("import attsvm; attsvm.Tokens; attsvm.frobenius; attsvm.scores") & set(HEAVY)


def test_the_check_for_heavy_imports_can_fail():
    assert "numba" in loaded_by("import attsvm, numba")


def test_every_public_name_exists_and_unknown_ones_do_not():
    assert all(hasattr(attsvm, name) for name in attsvm.__all__)
    assert set(attsvm.__all__) <= set(dir(attsvm))
    with pytest.raises(AttributeError, match="no attribute 'maximum'"):
        attsvm.maximum  # noqa: B018


def test_no_two_public_names_differ_in_capitals_only():
    assert len({name.lower() for name in attsvm.__all__}) == len(attsvm.__all__)


@pytest.mark.parametrize("name", ["gaussian", "uniform", "log_loss", "LogOdds", "correlation", "Interrupted"])
def test_what_docstrings_offer_is_public(name):
    assert name in attsvm.__all__


def test_training_and_paths_have_the_same_default_weight():
    one, other = (signature(f).parameters["weight"] for f in (attsvm.train, attsvm.regularisation_path))
    assert one.default is other.default
    assert one.default == attsvm.FullWeight()
