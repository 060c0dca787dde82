"""What an extra needs, in the one sentence that every part says where it is missing."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires


def missing(needs: str, extra: str) -> ImportError:
    """The error of a part whose extra is not installed.

        raise missing("AttentionProbe needs scikit-learn", "sklearn")

    It names the packages themselves, as attsvm's metadata does: that works in a clone, beside a wheel and
    without a release.
    """
    return ImportError(f"{needs}, of the extra {extra}. Run: {_command(extra)}")


def _command(extra: str) -> str:
    try:
        stated = [entry.partition(";") for entry in requires("attsvm") or ()]
    except PackageNotFoundError:  # the sources alone, on PYTHONPATH
        stated = []
    asked = re.compile(rf"\bextra\s*==\s*['\"]{extra}['\"]")
    packages = [f'"{package.strip()}"' for package, _, marker in stated if asked.search(marker)]
    return " ".join(["pip install", *packages]) if packages else f'pip install ".[{extra}]" in the clone'
