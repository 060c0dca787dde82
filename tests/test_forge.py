"""What a public forge reads: versions agree, workflows call targets that exist, sites lie side by side."""

import importlib.util
import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import attsvm

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_citation_is_of_this_version():
    cited = re.search(
        r"^version: (.*)\ndate-released: (.*)$", (ROOT / "CITATION.cff").read_text("utf8"), re.M
    )
    assert cited[1] == attsvm.__version__
    assert f"\n## {cited[1]}, {cited[2]}\n" in (ROOT / "CHANGELOG.md").read_text("utf8")


def test_the_entry_for_latex_says_what_the_citation_says():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf8"))
    page = (ROOT / "docs" / "project.md").read_text("utf8")
    entry = dict(re.findall(r"^  (\w+) += \{+(.*?)\}+,?$", page.split("```bibtex")[1].split("```")[0], re.M))
    year = str(cited["date-released"]).partition("-")[0]
    names = cited["title"], cited["authors"][0]["name"], year, cited["license"]
    assert tuple(entry[key] for key in ("title", "author", "year", "license")) == names


def test_the_changelog_ends_with_this_version_or_with_what_comes_after_it():
    first, second = re.findall(r"^## (\S+?)(?:,.*)?$", (ROOT / "CHANGELOG.md").read_text("utf8"), re.M)[:2]
    assert attsvm.__version__ in ((second,) if first == "Unreleased" else (first,))


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
    merged = log.replace("\n### ", "\n- An old line.\n\n### New\n\n- A thing.\n- A thing.\n\n### ", 1)
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


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sites():
    return script("add_site")


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


# ---------------------------------------------------------------------- conda


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))
RECIPE = (ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf8")
CONDA = {"matplotlib": "matplotlib-base", "torch": "pytorch", "dask[array]": "dask-core"}
"""What conda-forge calls otherwise."""


def bounds(wanted):
    """name → lower bound, of requirements as pip or conda write them."""
    found = (re.fullmatch(r"([\w.\[\]-]+?) ?(>=.*)?", each) for each in wanted)
    return {CONDA.get(one[1], one[1]): (one[2] or "").removeprefix(">=") for one in found}


def differences(recipe, project):
    """Fields of the recipe that do not say what the project says."""
    told, about = yaml.safe_load(recipe), project["project"]
    run = bounds(each for each in told["requirements"]["run"] if not each.startswith("python "))
    extras = [each for name in ("lab", "sklearn", "dask", "torch", "hf") for each in about[EXTRAS][name]]
    (command,) = about["scripts"].items()
    same = {
        "name": (told["package"]["name"], about["name"]),
        "version": (told["context"]["version"], attsvm.__version__),
        "python": (f">={told['context']['python_min']}", about["requires-python"]),
        "host": (told["requirements"]["host"][2].replace(" ", ""), project["build-system"]["requires"][0]),
        "run": (run, bounds(about["dependencies"])),
        "extras": (bounds(told["requirements"]["run_constraints"]), bounds(extras)),
        "command": (told["build"]["python"]["entry_points"], [" = ".join(command)]),
        "summary": (told["about"]["summary"], about["description"]),
        "license": (told["about"]["license"], about["license"]),
        "license file": ([told["about"]["license_file"]], about["license-files"]),
    }
    return [field for field, (here, there) in same.items() if here != there]


EXTRAS = "optional-dependencies"


def test_the_recipe_for_conda_says_what_the_project_says():
    assert differences(RECIPE, PROJECT) == []


@pytest.mark.parametrize(
    ("right", "false", "field"),
    [
        ("scipy >=1.13", "scipy >=1.12", "run"),
        ("    - optax >=0.2.4\n", "", "run"),
        ("pyarrow >=18", "pyarrow >=17", "extras"),
        ('python_min: "3.11"', 'python_min: "3.10"', "python"),
        ("attsvm.cli:app", "attsvm.cli:main", "command"),
    ],
)
def test_a_recipe_that_fell_behind_is_seen(right, false, field):
    assert right in RECIPE and differences(RECIPE.replace(right, false), PROJECT) == [field]


# ---------------------------------------------------------------------- links of the site


def test_broken_links_of_a_site_are_seen_and_others_listed(tmp_path, capsys):
    links = script("check_links")
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.html").write_text('<a href="sub/b.html#here"></a><img src="p.svg"><a href="#top"></a>')
    (tmp_path / "sub" / "b.html").write_text('<p id="here"></p><a href="../a.html"></a>')
    (tmp_path / "p.svg").touch()
    assert links.main(str(tmp_path)) == 0
    (tmp_path / "c.html").write_text(
        '<a href="sub/b.html#gone"></a><a href="d.html"></a><a href="#x"></a>'
        '<a href="https://example.org/#y"></a><a href="data:,x"></a>'
    )
    assert links.main(str(tmp_path)) == 1
    broken, outside = links.check(tmp_path)
    assert broken == ["c.html → #x", "c.html → d.html", "c.html → sub/b.html#gone"]
    assert dict(outside) == {"https://example.org/": 1}
    assert "outside: https://example.org/ (1)" in capsys.readouterr().out


def test_a_folder_without_pages_is_no_sound_site(tmp_path):
    assert script("check_links").main(str(tmp_path)) == 1


@pytest.mark.quick
def test_the_address_of_the_repository_is_written_once_and_everywhere(tmp_path):
    address = script("set_address")
    for name in address.PLACES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf8"), encoding="utf8")
    for url in ("https://forge.example/first/attsvm", "https://forge.example/second/attsvm"):
        address.write(tmp_path, url)
    texts = {name: (tmp_path / name).read_text(encoding="utf8") for name in address.PLACES}
    assert all(text.count(url) == 1 and "first/attsvm" not in text for text in texts.values())
    assert tomllib.loads(texts["pyproject.toml"])["project"]["urls"]["Repository"] == url
    assert yaml.safe_load(texts["CITATION.cff"])["repository-code"] == url
    assert yaml.safe_load(texts["recipe/recipe.yaml"])["about"]["repository"] == url
    assert f"git clone {url} && cd attsvm\npip install . " in texts["README.md"]
    (tmp_path / "README.md").write_text("no block of commands")
    with pytest.raises(SystemExit, match="has no place"):
        address.write(tmp_path, url)
    with pytest.raises(SystemExit, match="expected one address"):
        address.main(["forge.example/attsvm"])
