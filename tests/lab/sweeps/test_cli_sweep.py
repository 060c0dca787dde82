"""attsvm sweep and attsvm show on a study: what they print, what they write, how they end."""

import json
import subprocess
import sys
from contextlib import nullcontext

import pytest

from attsvm._support.options import BadOption
from attsvm_lab.cli import sweep as command
from attsvm_lab.sweeps.sweep import sweep as sweep_study
from attsvm_lab.workers import SerialExecutor
from tests import commands
from tests.browsers import elements

STUDY = """
measure = "kind"
seeds = 4
[data]
model = "prompt_sphere"
n = 2
T = [2, 4]
d = 2
[train]
steps = 60
lr = 0.5
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "preload", lambda *modules: None)
    monkeypatch.setattr(command, "cluster_executor", lambda cluster: nullcontext(SerialExecutor()))
    (tmp_path / "small.toml").write_text(STUDY)
    return commands.run


def test_a_study_is_run_printed_and_shown_again(run, tmp_path):
    done = run("sweep", "small.toml")
    assert done.exit_code == 0, done.output
    assert "Open out/small/sweep.html" in done.stdout and "global" in done.stdout
    (tmp_path / "out" / "small" / "sweep.html").unlink()
    shown = run("show", "out/small")
    assert (shown.exit_code, shown.stdout) == (0, done.stdout)
    assert (tmp_path / "out" / "small" / "sweep.html").exists()
    cells = json.loads(run("show", "out/small", "--json").stdout)["cells"]
    assert [cell["T"] for cell in cells] == [2, 4] and {"global low", "global high"} <= set(cells[0])


def test_the_example_is_printed_as_it_is(run):
    assert run("sweep", "--example").stdout.startswith("# A study")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["sweep"], 64, "no study"),
        (["sweep", "missing.toml"], 1, "missing.toml does not exist. Pass a study in TOML"),
        (["sweep", "."], 1, ". is a folder. Pass a study in TOML"),
        (["sweep", "small.toml", "--scale", "huge"], 1, "no scale 'huge'. This study has default"),
        (["show", "."], 1, "holds no finished study"),
        (["show", ".", "--out", "x.svg"], 64, "a study has a page of its own"),
    ],
)
def test_what_cannot_be_done_ends_with_a_sentence(run, words, code, said):
    done = run(*words)
    assert (done.exit_code, said in done.output) == (code, True), done.output


def test_a_study_that_is_finished_and_unchanged_is_only_shown(run, tmp_path, monkeypatch):
    done = run("sweep", "small.toml")
    with monkeypatch.context() as without:
        without.setattr("attsvm_lab.sweeps.sweep.sweep", None)
        assert run("sweep", "small.toml").stdout == done.stdout
        (tmp_path / "small.toml").write_text(STUDY + "# another")
        assert run("sweep", "small.toml").exception
    assert run("sweep", "small.toml").stdout == done.stdout
    (tmp_path / "out" / "small" / "sweep.html").unlink()
    assert run("sweep", "small.toml").exit_code == 0
    assert (tmp_path / "out" / "small" / "sweep.html").exists()


OWN_STUDY = """
measure = ["own_parts:last_loss"]
seeds = 2
[data]
model = "own_parts:drawn"
n = 2
T = 2
[train]
trainer = "own_parts:trained"
"""
OWN_PARTS = """
import attsvm
from helper_of_parts import STEPS

def drawn(n, T, seed):
    return attsvm.datasets.prompt_sphere(n, T, 2, seed=seed)

def trained(tokens, head, seed):
    return attsvm.train(tokens, head, optimizer=attsvm.gd(0.1), steps=STEPS)

def last_loss(path):
    return float(path.loss[-1])
"""


@pytest.fixture
def own_functions(run, tmp_path, tables_only):
    """A finished study whose data, training and measure are a user's functions, and what its run printed."""
    (tmp_path / "small.toml").write_text(OWN_STUDY)
    (tmp_path / "own_parts.py").write_text(OWN_PARTS)
    (tmp_path / "helper_of_parts.py").write_text("STEPS = 4\n")
    done = run("sweep", "small.toml")
    assert done.exit_code == 0, done.output
    return done.stdout


LIGHT = """
import sys
from attsvm.cli import app
try:
    app(["sweep", "small.toml"])
finally:
    heavy = {"jax", "numba", "matplotlib", "torch", "scipy.optimize", "own_parts"} & set(sys.modules)
    print("loaded", *sorted(heavy), file=sys.stderr)
"""


@pytest.mark.parametrize("functions", ["attsvm's", "a user's"])
def test_showing_a_finished_study_loads_nothing_that_computes_or_draws(run, functions, request):
    printed = request.getfixturevalue("own_functions") if functions == "a user's" else None
    printed = printed or run("sweep", "small.toml").stdout
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "loaded\n", printed)


@pytest.mark.parametrize(
    ("file", "text", "shown"),
    [
        ("unrelated.py", "x = 1", True),
        ("own_parts.py", OWN_PARTS + "# edited", False),
        ("helper_of_parts.py", "STEPS = 5", False),
        ("attsvm.py", "", False),  # from now on own_parts imports this file
        ("own_parts/__init__.py", OWN_PARTS, False),  # a package comes before a module
        ("out/small/.finished", "0123", False),
        ("out/small/.finished", '{"state": "", "functions": [1], "files": []}', False),
    ],
)
def test_a_study_with_own_functions_is_only_shown_while_their_files_are_the_same(
    own_functions, run, tmp_path, monkeypatch, file, text, shown
):
    monkeypatch.setattr("attsvm_lab.sweeps.sweep.sweep", None)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    done = run("sweep", "small.toml")
    assert (done.exception is None, done.stdout == own_functions) == (shown, shown)


def test_ctrl_c_says_how_to_resume(run, monkeypatch):
    def pressed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("attsvm_lab.sweeps.sweep.sweep", pressed)
    done = run("sweep", "small.toml")
    assert (done.exit_code, "run the same command again" in done.output) == (130, True)


@pytest.mark.parametrize(("error", "code"), [(BadOption("no such word"), 64), (OSError("no such word"), 1)])
def test_an_error_is_said_once_with_its_own_code_and_as_one_json_object(run, monkeypatch, error, code):
    def wrong(*_, **__):
        raise error

    monkeypatch.setattr("attsvm_lab.sweeps.sweep.sweep", wrong)
    done = run("sweep", "small.toml", "--json")
    assert (done.exit_code, done.stderr) == (code, "no such word\n")
    assert json.loads(done.stdout) == {"error": "no such word", "code": code}


SEARCH = """<script>
const said = [];
for (const words of ["", "no such word", "4"]) {
  document.querySelector("[name=words]").value = words;
  document.getElementById("filter").dispatchEvent(new Event("input"));
  said.push(document.getElementById("shown").textContent);
}
document.title = said.join("; ");
</script>"""


def test_chromium_searches_the_cells_of_the_page(study, tmp_path, chrome):
    sizes = {"model": "prompt_sphere", "n": 2, "T": [2, 4], "d": 3}
    sweep_study(study | {"measure": "separable", "seeds": 1, "data": sizes}, SerialExecutor(), out=tmp_path)
    text = (tmp_path / "sweep.html").read_text(encoding="utf8")
    (tmp_path / "searched.html").write_text(text + SEARCH, encoding="utf8")
    assert "<title>2 of 2; 0 of 2; 1 of 2</title>" in elements(chrome, tmp_path / "searched.html")
