"""Without the extras the package still explains itself, and says which extra a name needs."""

import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

import attsvm
from attsvm._support import optional_dependencies as extras

BLOCK = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("sklearn", "torch", "transformers", "pyarrow", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def python(code):
    """What Python prints, or the last line of its traceback."""
    done = subprocess.run([sys.executable, "-c", BLOCK + code], capture_output=True, text=True)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("name", ["probe", "torch"])
def test_a_name_that_needs_a_missing_extra_does_not_exist(name):
    assert python(f"import attsvm; print(hasattr(attsvm, {name!r}))") == "False"


def test_help_and_members_work_without_the_extras():
    look = "inspect.getmembers(attsvm); print(pydoc.render_doc(attsvm))"
    said = python(f"import attsvm, inspect, pydoc; {look}")
    assert "max-margin token selection" in said


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import attsvm; attsvm.probe", "AttributeError: AttentionProbe needs scikit-learn"),
        ("from attsvm.probe import AttentionProbe", "ImportError: AttentionProbe needs scikit-learn"),
        ("import attsvm; attsvm.torch", "AttributeError: attsvm.torch needs PyTorch"),
        ("from attsvm import torch", "attsvm.torch needs PyTorch"),
        (
            "import attsvm as att; att.max_margin(*att.datasets.single_input()[:1], [0]).plot()",
            "drawing needs matplotlib, of the extra plot",
        ),
        ("from attsvm_lab import figures", "figures need matplotlib, of the extra lab"),
    ],
)
def test_the_missing_extra_is_named(code, said):
    told = python(code)
    assert said in told and "pip install" in told


def test_with_the_extra_the_name_exists():
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    assert hasattr(attsvm, "probe")


CLONE = Path(__file__).parents[2]
TEXTS = [
    CLONE / "README.md",
    *(CLONE / "src").rglob("*.py"),
    *CLONE.glob("docs/**/*.md"),
    *CLONE.glob("*/*.md"),
]
UNRELEASED = re.compile(r"pip install[^\n]*\battsvm\[")
"""From the package index, where attsvm is not."""


def test_no_text_says_to_install_what_is_not_released():
    assert UNRELEASED.search("pip install 'attsvm[hf]'") and len(TEXTS) > 100
    assert not [str(file) for file in TEXTS if UNRELEASED.search(file.read_text(encoding="utf8"))]


@pytest.mark.parametrize("extra", ["plot", "lab", "sklearn", "dask", "torch", "hf"])
def test_a_missing_extra_names_its_packages_and_without_metadata_the_clone(extra, monkeypatch):
    if not list(distributions(name="attsvm")):
        pytest.skip("attsvm is on the path but not installed")
    stated = re.search(rf"^{extra} = \[(.*)\]$", (CLONE / "pyproject.toml").read_text(), re.MULTILINE)
    said, _, packages = str(extras.missing("this needs that", extra)).partition(" pip install ")
    assert said == f"this needs that, of the extra {extra}. Run:"
    assert sorted(packages.split()) == sorted(stated[1].split(", "))

    def unknown(_):
        raise extras.PackageNotFoundError

    monkeypatch.setattr(extras, "requires", unknown)
    assert str(extras.missing("x", extra)).endswith(f'pip install ".[{extra}]" in the clone')
