"""Sweeps: nothing is computed twice, what is added extends the table, and the folder shows it all."""

import csv
import json
import os
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor

import jax
import numpy as np
import pytest

from attsvm_lab.sweeps.batch import ONE_BATCH
from attsvm_lab.sweeps.drawing import CellEstimate, Layout, draw_curves
from attsvm_lab.sweeps.intervals import share
from attsvm_lab.sweeps.plugins import source
from attsvm_lab.sweeps.result import Sweep
from attsvm_lab.sweeps.store import read_table, write_table
from attsvm_lab.sweeps.sweep import sweep
from attsvm_lab.workers import SerialExecutor


def table(folder):
    return (folder / "runs.parquet").read_bytes()


@pytest.mark.usefixtures("tables_only")
def test_a_rerun_computes_nothing_and_writes_the_same_bytes(study, here, tmp_path):
    first = sweep(study, here, out=tmp_path)
    before, runs = table(tmp_path), here.runs
    again = sweep(study, here, out=tmp_path)
    assert runs == 4 * ONE_BATCH and here.runs == runs
    assert table(tmp_path) == before
    assert len(again.runs["seed"]) == len(first.runs["seed"]) == 4 * 6


@pytest.mark.usefixtures("tables_only")
def test_a_batch_without_a_measure_is_computed_again(study, here, tmp_path):
    sweep(study, here, out=tmp_path)
    before, runs = table(tmp_path), here.runs
    (file, *_) = sorted((tmp_path / "batches").glob("*.parquet"))
    columns, told = read_table(file)
    write_table(file, {name: columns[name] for name in columns if name != "kind"}, told)
    sweep(study, here, out=tmp_path)
    assert here.runs > runs and table(tmp_path) == before


@pytest.mark.usefixtures("tables_only")
def test_added_seeds_and_sizes_extend_the_table_to_that_of_a_fresh_run(study, here, tmp_path, monkeypatch):
    monkeypatch.setattr("attsvm_lab.sweeps.batch.LENGTHS", dict.fromkeys(("cpu", "gpu"), (64, 64)))
    study |= {"measure": "kind", "seeds": 70, "data": study["data"] | {"T": 2, "d": 2}}
    sweep(study, here, out=tmp_path / "a")
    larger = study | {"seeds": 130, "data": study["data"] | {"d": [2, 5]}}
    runs = here.runs
    sweep(larger, here, out=tmp_path / "a")
    assert here.runs == runs + 64 + 192
    sweep(larger, here, out=tmp_path / "b")
    assert table(tmp_path / "a") == table(tmp_path / "b")


@pytest.mark.usefixtures("tables_only")
def test_other_settings_measures_and_code_are_other_results(study, here, tmp_path, monkeypatch):
    from attsvm_lab.sweeps import batch, cell, sweep as sweeping

    study |= {"data": study["data"] | {"T": 2, "d": 2}}
    for changed in (study, study | {"train": {"steps": 61, "lr": 0.5}}, study | {"measure": "kind"}):
        runs = here.runs
        sweep(changed, here, out=tmp_path)
        assert here.runs == runs + ONE_BATCH
    for module in (cell, batch, sweeping):
        monkeypatch.setattr(module, "study_code", lambda: "other code")
    sweep(study, here, out=tmp_path)
    assert here.runs == 4 * ONE_BATCH


@pytest.mark.usefixtures("tables_only")
def test_seeds_are_added_until_the_interval_is_narrow_and_no_further(study, here, tmp_path):
    wanted = {"share": "global", "width": 0.25, "first": 16, "most": 64}
    data = {"model": "prompt_sphere", "n": 2, "T": [2, 4], "d": 2}
    done = sweep(study | {"measure": "kind", "seeds": wanted, "data": data}, here, out=tmp_path)
    widths = {cell.words["T"]: (cell.runs, cell.quantities["global"].width) for cell in done.cells}
    assert widths[2][0] < 64 and widths[2][1] <= 0.25
    assert widths[4][0] == 64
    fewer = done.runs["kind"][done.runs["cell"] == 0][: widths[2][0] // 2] == "global"
    assert widths[2][0] == 16 or share(fewer).width > 0.25


OWN = """
import attsvm as att

def data(n, noise, seed):
    tokens, v = att.datasets.prompt_sphere(n, 2, 2, seed=seed)
    return att.Tokens(tokens.keys * noise, labels=tokens.labels), v

def length(path):
    return float(path.norm()[-1])

def best(path, v):
    return bool((path.selected == att.best_tokens(path.tokens, v)).all())
"""


@pytest.mark.usefixtures("tables_only")
def test_functions_of_the_users_own_give_data_and_measures(here, tmp_path):
    (tmp_path / "own_study.py").write_text(OWN)
    file = tmp_path / "study.toml"
    text = 'measure = ["own_study:length", "own_study:best", "kind"]\nseeds = 4\n[train]\nsteps = 20\n'
    file.write_text(text + '[data]\nmodel = "own_study:data"\nn = 1\nnoise = [1.0, 2.0]\n')
    done = sweep(file, here, out=tmp_path / "out")
    assert [cell.words["noise"] for cell in done.cells] == [1.0, 2.0]
    np.testing.assert_allclose(done.runs["own_study:length"], 2.0)  # 20 unit steps of 0.1 along one line
    np.testing.assert_array_equal(done.runs["own_study:best"], done.runs["kind"] == "global")


def test_results_depend_on_every_file_that_a_function_imports_from_beside_it(tmp_path):
    texts = {
        "mine.py": "def f(path):\n    import parts.one\n    return 0\n",
        "parts/__init__.py": "",
        "parts/one.py": "from .deep import two\n",
        "parts/deep/__init__.py": "",
        "parts/deep/two.py": "",
        "other.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    known = source("mine:f", str(tmp_path))
    for name, text in texts.items():
        (tmp_path / name).write_text(f"{text}# edited\n")
        assert (source("mine:f", str(tmp_path)) == known) == (name == "other.py")
        (tmp_path / name).write_text(text)
    assert source("mine:f", str(tmp_path)) == known


TOLD = (
    'measure = ["told:by"]\nseeds = 2\n[train]\nsteps = 2\n[data]\nmodel = "told:data"\nn = 1\nnoise = 1.0\n'
)


@pytest.mark.usefixtures("tables_only")
def test_a_function_is_that_of_the_studys_own_folder_as_it_is_now(here, tmp_path):
    """Two studies may call their files by one name, in one process and one out; and a file may be edited.

    Here it is the one that the function's own imports: results are not those that the old one gave.
    """

    def says(folder, word):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "helper_of_told.py").write_text(f"WORD = {word!r}\n")
        own = f"{OWN}\nfrom helper_of_told import WORD\ndef by(path): return WORD\n"
        (tmp_path / folder / "told.py").write_text(own)
        (tmp_path / folder / "study.toml").write_text(TOLD)
        done = sweep(tmp_path / folder / "study.toml", here, out=tmp_path / "out")
        return set(done.runs["told:by"])

    assert [says("a", "first"), says("b", "second"), says("a", "third one")] == [
        {"first"},
        {"second"},
        {"third one"},
    ]


@pytest.mark.usefixtures("tables_only")
def test_batches_in_several_threads_leave_the_process_as_it_was(study, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    optimised = jax.config.read("jax_disable_most_optimizations")
    with ThreadPoolExecutor(4) as pool:
        done = sweep(study | {"seeds": 40}, pool, out=tmp_path / "four")
    assert "OMP_NUM_THREADS" not in os.environ
    assert jax.config.read("jax_disable_most_optimizations") == optimised
    alone = sweep(study | {"seeds": 40}, SerialExecutor(), out=tmp_path / "one")
    np.testing.assert_array_equal(done.runs["margin_ratio"], alone.runs["margin_ratio"])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere:f", r"No module named 'nowhere'\. Put nowhere\.py into .*, or on PYTHONPATH"),
        ("a_package.nowhere:f", r"No module named 'a_package'\. Put a_package/nowhere\.py into"),
        ("mine:cions", r"mine has no 'cions'\. Did you mean coins\? Pass"),
        ("mine:size", r" is 3\. Pass the name of a function"),
        ("needy:f", r"No module named 'not_installed'\. needy\.py imports it\."),
    ],
    ids=str,
)
def test_a_function_that_is_not_there_is_named(study, tmp_path, name, told):
    (tmp_path / "mine.py").write_text("size = 3\n\ndef coins(seed): ...\n")
    (tmp_path / "needy.py").write_text("import not_installed\n")
    rows = "\n".join(f"{key} = {study['data'][key]!r}" for key in ("n", "T", "d"))
    (tmp_path / "study.toml").write_text(f"seeds = 2\n[data]\nmodel = '{name}'\n{rows}\n")
    with pytest.raises(ValueError, match=f"{name}.*{told}"):
        sweep(tmp_path / "study.toml", out=tmp_path / "out")


def test_the_folder_holds_tables_page_and_study_and_shows_them_again(study, here, tmp_path):
    study |= {
        "title": "Two <tokens>",
        "seeds": 3,
        "measure": ["kind", "margin_ratio:l1", "margin_ratio:linf"],
    }
    done = sweep(study, here, out=tmp_path)
    rows = list(csv.DictReader((tmp_path / "cells.csv").open()))
    assert [float(row["global"]) for row in rows] == [c.quantities["global"].value for c in done.cells]
    assert len(list(csv.DictReader((tmp_path / "runs.csv").open()))) == 12
    page = (tmp_path / "sweep.html").read_text(encoding="utf8")
    assert "norm by norm" in page
    assert (
        "Two &lt;tokens&gt;" in page
        and page.count("<figure") == len(list((tmp_path / "pictures").iterdir()))
        and "<script src" not in page
    )
    assert json.loads((tmp_path / "study.json").read_text())["parameters"][:3] == ["model", "n", "T"]
    before = table(tmp_path)
    again = Sweep.load(tmp_path)
    again.write()
    assert str(again) == str(done) and "0." in str(done)
    assert table(tmp_path) == before


def test_a_folder_without_a_study_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no finished study"):
        Sweep.load(tmp_path)


@pytest.mark.usefixtures("tables_only")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (5, "5 instead of an object"),
        ({"title": None}, "title is None"),
        ({"parameters": ["n", "depth"]}, "'depth' is no column"),
        ({"measures": ["rate"]}, "'rate' is no column"),
        ({"show": {"x": "depth"}}, "'depth' is no column"),
        ({"wanted": {"quantity": "global"}}, "wanted is"),
        ("no JSON", "not what attsvm sweep wrote"),
    ],
    ids=str,
)
def test_a_study_that_was_edited_is_refused_in_words(study, here, tmp_path, change, said):
    study |= {"measure": "separable", "seeds": 1, "data": study["data"] | {"T": 2, "d": 2}}
    sweep(study, here, out=tmp_path)
    file = tmp_path / "study.json"
    edited = json.loads(file.read_text()) | change if isinstance(change, dict) else change
    file.write_text(edited if isinstance(edited, str) else json.dumps(edited))
    with pytest.raises(ValueError, match=said):
        Sweep.load(tmp_path)


def test_dollars_in_words_are_dollars_in_pictures():
    words = [{"T": 1, "model": "a$b$c"}, {"T": 2, "model": "$\\alpha$"}]
    points = [CellEstimate(own, 0.5, 0.4, 0.6) for own in words]
    drawn = draw_curves(points, "mine = $title", Layout("T", "model")).axes[0]
    said = [*(text.get_text() for text in drawn.get_legend().get_texts()), drawn.get_ylabel()]
    assert said == [r"model = a\$b\$c", r"model = \$\alpha\$", r"mine = \$title"]


@pytest.mark.usefixtures("tables_only")
def test_two_sweeps_at_once_on_one_folder_agree(study, tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    study |= {"measure": "kind"}
    sweep(study, SerialExecutor(), out=tmp_path / "alone")
    with ThreadPoolExecutor(2) as both:
        list(both.map(lambda _: sweep(study, SerialExecutor(), out=tmp_path / "shared"), range(2)))
    assert table(tmp_path / "alone") == table(tmp_path / "shared")


def test_without_pyarrow_the_extra_is_named(study, monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r'the extra lab\. Run: pip install "(matplotlib|\.\[)'):
        (tmp_path / "batches").mkdir()
        (tmp_path / "batches" / "x.parquet").write_bytes(b"")
        sweep(study, out=tmp_path)


class Doomed(SerialExecutor):
    """An executor whose workers are gone."""

    def submit(self, fn, /, *args, **options):
        return (
            super().submit(fn, *args, **options) if fn.__name__ != "compute" else super().submit(self.broken)
        )

    def broken(self, *_):
        raise BrokenExecutor("a process in the pool was terminated abruptly")


def test_lost_workers_are_told_in_a_sentence_and_other_errors_are_not_hidden(study, tmp_path, monkeypatch):
    from attsvm_lab.sweeps import sweep as sweeping

    with pytest.raises(ConnectionError, match="Finished batches are kept"):
        sweep(study, Doomed(), out=tmp_path)
    monkeypatch.setattr(sweeping, "compute", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sweep(study, SerialExecutor(), out=tmp_path)
