"""Write the address of the repository where readers and tools look for it: once, when it is published.

    python .ci/set_address.py https://forge.example/owner/attsvm

It enters `[project.urls]` of pyproject.toml, `repository-code` of CITATION.cff, `repository` of the conda
recipe, and the installation of README.md, which clones it from then on. A second call replaces the first.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = {
    "pyproject.toml": (r'(\[project\.urls\]\n)(?:Repository = ".*"\n)?', '\\1Repository = "{address}"\n'),
    "CITATION.cff": (r"(?m)^(?:repository-code: .*\n)?(license: )", "repository-code: {address}\n\\1"),
    "recipe/recipe.yaml": (r"(?m)^(about:\n)(?:  repository: .*\n)?", "\\1  repository: {address}\n"),
    "README.md": (
        r"(?m)^(```sh\n)(?:git clone .*\n)?(pip install \. )",
        "\\1git clone {address} && cd attsvm\n\\2",
    ),
}
"""By file: the place, and what stands there afterwards."""


def main(arguments: list[str] | None = None) -> None:
    """Check the address, and write it everywhere."""
    addresses = sys.argv[1:] if arguments is None else arguments
    if len(addresses) != 1 or not re.fullmatch(r"https://[\w.-]+(/[\w.~-]+)+", addresses[0]):
        raise SystemExit(f"expected one address https://HOST/OWNER/NAME, got {addresses}. {__doc__}")
    for file in write(ROOT, addresses[0]):
        print(f"wrote {file}")


def write(root: Path, address: str) -> list[Path]:
    """Put the address into every file below root. Refuse if a file has no place for it."""
    texts = {}
    for name, (place, replacement) in PLACES.items():
        file = root / name
        text, count = re.subn(
            place, replacement.format(address=address), file.read_text(encoding="utf8"), count=1
        )
        if not count:
            raise SystemExit(f"{name} has no place for the address: expected text like {place!r}.")
        texts[file] = text
    for file, text in texts.items():
        file.write_text(text, encoding="utf8")
    return list(texts)


if __name__ == "__main__":
    main()
