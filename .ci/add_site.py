"""Put the site of a version beside those of others, for a page that shows a folder as it is.

    python .ci/add_site.py build/site PAGES 0.2.0

PAGES/0.2.0 becomes the site, PAGES/versions.json lists all of them, the newest first, for the switch in the
sidebar (docs/_static/versions.js), and PAGES/index.html leads to the newest.
"""

import json
import re
import shutil
import sys
from pathlib import Path

FORWARD = """<!DOCTYPE html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={0}/index.html">
<title>attsvm</title>
<a href="{0}/index.html">attsvm {0}</a>
"""


def numbers(version: str) -> tuple[int, ...]:
    """By which versions are ordered: 0.10.0 is newer than 0.9.1, and 1.0.0 than 1.0.0rc1."""
    found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?", version)
    if found is None:
        raise ValueError(f"{version!r} is no version. Pass one like 1.2.3 or 1.2.3rc1.")
    *parts, candidate = found.groups()
    return (*map(int, parts), *((0, int(candidate)) if candidate else (1, 0)))


def add(site: Path, pages: Path, version: str) -> None:
    numbers(version)
    shutil.rmtree(pages / version, ignore_errors=True)
    shutil.copytree(site, pages / version)
    names = [folder.name for folder in pages.iterdir() if re.match(r"\d", folder.name)]
    known = sorted(names, key=numbers, reverse=True)
    (pages / "versions.json").write_text(json.dumps(known), encoding="utf8")
    (pages / "index.html").write_text(FORWARD.format(known[0]), encoding="utf8")
    (pages / ".nojekyll").touch()  # folders that begin with an underscore are shown, too


if __name__ == "__main__":
    add(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
