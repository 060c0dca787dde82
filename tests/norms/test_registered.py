"""Norms that another package registers by an entry point, for words and for files that ask for them."""

import subprocess
import sys

import pytest

import attsvm as att
from attsvm.norms.names import from_saved, norm_of

DIST = """[attsvm.norms]
doubled = their_norms
Doubled = their_norms
"""

MODULE = """
from dataclasses import dataclass
from attsvm import Entrywise
from attsvm.norms.norms import NORMS, SAVED

class Doubled(Entrywise):
    pass

NORMS["doubled"] = Doubled(3)
SAVED["Doubled"] = lambda p: Doubled(float(p))
"""

ASKS = """
import sys
from attsvm.norms.names import from_saved, norm_of
before = "their_norms" in sys.modules
norm = norm_of("doubled") if sys.argv[1] == "word" else from_saved(("Doubled", "3"))
print(before, type(norm).__module__, norm)
"""


@pytest.fixture
def installed(tmp_path):
    """A folder in which a package of another author is installed."""
    info = tmp_path / "their_norms-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-norms\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(DIST)
    (tmp_path / "their_norms.py").write_text(MODULE)
    return tmp_path


@pytest.mark.parametrize("asked", ["word", "file"])
def test_a_norm_of_another_package_is_imported_when_it_is_asked_for(installed, asked):
    script = f"import sys; sys.path.insert(0, {str(installed)!r})\n{ASKS}"
    done = subprocess.run([sys.executable, "-c", script, asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "their_norms", "l3"]


def test_a_norm_that_nobody_registers_is_refused_in_words():
    with pytest.raises(ValueError, match=r"no norm 'doubled'\. "):
        norm_of("doubled")
    with pytest.raises(ValueError, match="unknown norm"):
        from_saved(("Doubled", "3"))
    with pytest.raises(ValueError, match="unknown norm"):
        from_saved(("Entrywise",))
    assert from_saved(("Entrywise", "3")) == att.Entrywise(3)
