"""Names that moved to the laboratory work under their old paths, too, and say where they are now."""

import importlib
import sys

import pytest

import attsvm
import attsvm_lab
from attsvm_lab.claims import claim


@pytest.mark.parametrize("name", ["claims", "figures", "sweep"])
def test_an_attribute_that_moved_is_the_one_of_the_laboratory(name):
    with pytest.warns(DeprecationWarning, match=f"attsvm.{name} is attsvm_lab.{name} now"):
        assert getattr(attsvm, name) is getattr(attsvm_lab, name)


@pytest.mark.parametrize(("old", "new"), [("Heads", "MultiHead"), ("told", "reported")])
def test_a_name_that_changed_is_the_new_one(old, new):
    with pytest.warns(DeprecationWarning, match=f"attsvm.{old} is attsvm.{new} now"):
        assert getattr(attsvm, old) is getattr(attsvm, new)


@pytest.fixture(autouse=True)
def not_imported_before(monkeypatch):
    for module in [name for name in sys.modules if name.startswith(("attsvm.claims", "attsvm.figures"))]:
        monkeypatch.delitem(sys.modules, module)


@pytest.mark.parametrize("module", ["claims", "figures"])
def test_a_module_that_moved_is_imported_once_and_keeps_its_name(module):
    there = importlib.import_module(f"attsvm_lab.{module}")
    with pytest.warns(DeprecationWarning, match=f"attsvm_lab.{module}"):
        here = importlib.import_module(f"attsvm.{module}")
    assert here is there
    assert there.__name__ == there.__spec__.name == f"attsvm_lab.{module}"


def test_a_claim_of_the_old_path_is_the_same_function():
    with pytest.warns(DeprecationWarning):
        from attsvm.claims import claim as old
    assert old is claim


def test_inner_modules_of_the_old_paths_are_refused_with_the_new_ones():
    with (
        pytest.warns(DeprecationWarning),
        pytest.raises(ModuleNotFoundError, match=r"is attsvm_lab\.claims\.run"),
    ):
        importlib.import_module("attsvm.claims.run")
    with pytest.raises(ModuleNotFoundError, match=r"attsvm\.nothing"):
        importlib.import_module("attsvm.nothing")
