"""The error message for a missing optional dependency."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires


def missing(needs: str, extra: str) -> ImportError:
    """The error to raise where a feature needs an extra that is not installed.

        raise missing("AttentionProbe needs scikit-learn", "sklearn")

    The message lists the packages of the extra, read from attsvm's metadata: installing them works in a
    clone and beside a wheel, without a release.
    """
    return ImportError(f"{needs}, of the extra {extra}. Run: {_command(extra)}")


def _command(extra: str) -> str:
    try:
        requirements = [entry.partition(";") for entry in requires("attsvm") or ()]
    except PackageNotFoundError:  # the sources alone, on PYTHONPATH
        requirements = []
    of_extra = re.compile(rf"\bextra\s*==\s*['\"]{extra}['\"]")
    packages = [f'"{package.strip()}"' for package, _, marker in requirements if of_extra.search(marker)]
    return " ".join(["pip install", *packages]) if packages else f'pip install ".[{extra}]" in the clone'
