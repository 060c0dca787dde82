"""What a public forge reads: versions agree, workflows call targets that exist, sites lie side by side."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

import attsvm

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_citation_is_of_this_version():
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf8"), re.MULTILINE)
    assert cited[1] == attsvm.__version__


def test_the_archive_names_the_papers_of_the_project():
    told = json.loads((ROOT / ".zenodo.json").read_text(encoding="utf8"))
    named = {each["identifier"].removeprefix("arXiv:") for each in told["related_identifiers"]}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf8")
    assert named == set(re.findall(r"arxiv\.org/abs/([\d.]+)", project)) and named


def loose(log):
    """Lines of the newest version's list that stand under no heading, and those that stand twice."""
    newest = log.split("\n## ")[1]
    above, _, below = newest.partition("\n### ")
    found = [line for line in below.splitlines() if line.startswith("- ")]
    return [line for line in above.splitlines() if line.startswith("- ")] + [
        line for line in sorted(set(found)) if found.count(line) > 1
    ]


def test_the_changelog_of_the_newest_version_says_a_thing_once_and_in_its_place():
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf8")
    assert loose(log) == []
    merged = log.replace("\n### New\n", "\n- An old line.\n\n### New\n\n- A thing.\n- A thing.\n", 1)
    assert loose(merged) == ["- An old line.", "- A thing."]


def unknown(text):
    """Targets and scripts that a workflow calls and nobody has."""
    targets = set(re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE))
    asked = set(re.findall(r"\bmake ([a-z]+) PYTHON", text))
    scripts = set(re.findall(r"python (\.ci/\S+\.py)", text))
    return (asked - targets) | {script for script in scripts if not (ROOT / script).exists()}


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_call_what_exists(file):
    text = file.read_text(encoding="utf8")
    assert "make " in text and unknown(text) == set()


def test_a_target_that_nobody_has_is_seen():
    assert unknown(
        "- run: make tests PYTHON=python\n- run: python .ci/nothing.py\n- run: make test PYTHON=x"
    ) == {
        "tests",
        ".ci/nothing.py",
    }


@pytest.fixture(scope="module")
def sites():
    spec = importlib.util.spec_from_file_location("add_site", ROOT / ".ci" / "add_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sites_lie_side_by_side_and_the_first_page_leads_to_the_newest(sites, tmp_path):
    site, pages = tmp_path / "site", tmp_path / "pages"
    site.mkdir()
    pages.mkdir()
    for version in ("0.9.1", "0.10.0", "0.10.0rc1", "0.2.0"):
        (site / "index.html").write_text(version)
        sites.add(site, pages, version)
    assert json.loads((pages / "versions.json").read_text()) == ["0.10.0", "0.10.0rc1", "0.9.1", "0.2.0"]
    assert "url=0.10.0/index.html" in (pages / "index.html").read_text()
    assert (pages / "0.9.1" / "index.html").read_text() == "0.9.1"


def test_what_is_no_version_is_refused(sites, tmp_path):
    with pytest.raises(ValueError, match="'main' is no version"):
        sites.add(tmp_path, tmp_path, "main")
