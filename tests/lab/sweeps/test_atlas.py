"""The atlas: its study, its record and its page."""

import json
import re
import tomllib
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import attsvm_lab as lab
from attsvm_lab.sweeps import atlas
from attsvm_lab.sweeps.study import read_study
from tests.browsers import elements

SIGNUM = "W: Signum, momentum 0.9"
LAB = Path(__file__).parents[3] / "lab"
STUDY, RECORD = LAB / "studies" / "atlas.toml", LAB / "records" / "atlas.json"


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The cell that readers compute again, smaller."""
    from attsvm_lab.workers import SerialExecutor

    given = tomllib.loads(STUDY.read_text(encoding="utf8"))
    given |= {"train": [{**given.pop("scale")["one"]["train"][0], "steps": 400}], "seeds": 4}
    given["measure"] = ["kind", "margin_ratio:frobenius", "margin_ratio:linf", "arrival:frobenius"]
    return lab.sweep(given, SerialExecutor(), out=tmp_path_factory.mktemp("atlas"))


def test_the_study_has_a_million_runs_and_a_cell_for_every_reader():
    paper, one = read_study(STUDY, "paper"), read_study(STUDY, "one")
    assert len(one.cells) == 1
    assert one.cells[0].training in {cell.training for cell in paper.cells}
    assert len(paper.seeds.begin) >= 1_000
    assert len(paper.cells) * len(paper.seeds.begin) >= 1_000_000


def test_a_record_says_what_theory_names_and_what_was_found(done):
    told = json.loads((done.folder / "atlas.json").read_text(encoding="utf8"))
    (training,) = told["trainings"].items()
    assert training[0] == "K Qᵀ: Schatten 4"
    theory = training[1]["theory"]
    assert (theory["norm"], theory["standing"]) == ("Frobenius", "theorem for flows")
    shares = training[1]["sizes"]["n = 4, T = 4, d = 4"]["shares"]
    assert shares["frobenius"]["median"] > shares["linf"]["median"]
    assert shares["frobenius"]["least"] <= shares["frobenius"]["median"] <= 1
    # From early to late the share grows: the way is told, not only its end.
    middle = [at[1] for at in shares["frobenius"]["curve"]]
    assert middle[0] < middle[-1] == shares["frobenius"]["median"]


def test_every_column_is_over_the_same_runs():
    rng = np.random.default_rng(0)
    ratios = {"frobenius": rng.uniform(size=40), "linf": np.append(rng.uniform(size=10), np.full(30, np.nan))}
    columns = {f"margin_ratio:{name}": column for name, column in ratios.items()}
    table = SimpleNamespace(
        cells=[SimpleNamespace(words={"weight": "kq", "optimizer": "steepest", "norm": "linf"}, runs=40)],
        rows_of_cells=[np.arange(40)],
        runs=columns | {"cell": np.zeros(40)},
        facts={"measures": list(columns), "title": "", "about": "", "scale": None, "name": "atlas"},
    )
    (training,) = atlas.record(table)["trainings"].values()
    (size,) = training["sizes"].values()
    shares, first = size["shares"], ratios["frobenius"][:10]
    assert [shares[name]["runs"] for name in ratios] == [10, 10]
    assert shares["frobenius"]["median"] == pytest.approx(np.median(first), abs=1e-4)
    assert list(size["of all runs"]) == ["frobenius"] and size["of all runs"]["frobenius"]["runs"] == 40
    assert abs(size["of all runs"]["frobenius"]["median"] - np.median(first)) > 1e-3


def test_the_page_holds_its_record_and_loads_nothing(done):
    page = (done.folder / "sweep.html").read_text(encoding="utf8")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    assert json.loads(data) == json.loads((done.folder / "atlas.json").read_text(encoding="utf8"))
    assert not re.search(r'(src|href)="http', page)
    assert "attsvm sweep studies/" in data


def test_the_page_has_one_heading_for_what_is_trained(chrome, tmp_path):
    given = json.loads(RECORD.read_text(encoding="utf8"))
    groups = [told["group"] for told in given["trainings"].values()]
    changes = 1 + sum(one != other for one, other in pairwise(groups))
    (tmp_path / "atlas.html").write_text(atlas.page(given), encoding="utf8")
    shown = re.findall(r'<tr class="group"><th[^>]*>([^<]*)', elements(chrome, tmp_path / "atlas.html"))
    assert shown == list(dict.fromkeys(groups)) and len(shown) < changes


@pytest.mark.parametrize(
    ("way", "name", "norm"),
    [
        ({"weight": "full", "optimizer": "steepest", "norm": "linf", "momentum": 0.9}, SIGNUM, "l∞"),
        ({"weight": "diagonal_kq", "optimizer": "steepest", "norm": "lp:3"}, "k ⊙ q: l3", "l1.5"),
        (
            {"weight": "kq", "optimizer": "steepest", "norm": "spectral", "rank": 2},
            "K Qᵀ, rank 2: Muon",
            "spectral",
        ),
        ({"weight": "kq", "optimizer": "steepest", "norm": "linf"}, "K Qᵀ: sign", None),
        ({"weight": "full", "optimizer": "mirror", "norm": "lp:3"}, "W: mirror descent, p = 3", "l3"),
        (
            {"weight": "kq", "optimizer": "compositional", "norm": "spectral"},
            "K Qᵀ: compositional Muon",
            "spectral",
        ),
        (
            {"weight": "kq", "optimizer": "steepest", "norm": "longest-row"},
            "K Qᵀ: every row normalised",
            "max-norm",
        ),
        (
            {"weight": "diagonal", "depth": 3, "optimizer": "steepest", "norm": "lp:6"},
            "w1 ⊙ w2 ⊙ w3: l6",
            "Frobenius",
        ),
        (
            {"weight": "full", "heads": 2, "across": "apart", "optimizer": "steepest", "norm": "spectral"},
            "W, 2 heads apart: Muon",
            "spectral",
        ),
        (
            {
                "weight": "full",
                "heads": 2,
                "across": "concatenated",
                "optimizer": "steepest",
                "norm": "spectral",
            },
            "W, 2 heads concatenated: Muon",
            atlas.JOINT,
        ),
    ],
)
def test_trainings_have_the_names_that_people_use_and_the_limit_of_theory(way, name, norm):
    assert atlas.name_of(way) == name
    assert atlas.theory(way).get("norm") == norm
