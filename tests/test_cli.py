"""Commands on files: what they print, what they write, how they end."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import attsvm
from attsvm.cli import app
from attsvm.cli.words import norm_of, seed_range


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    tokens, v = attsvm.datasets.sphere(4, 5, 6, seed=0)
    file = tmp_path_factory.mktemp("problem") / "problem.npz"
    np.savez(file, **tokens.arrays(), v=v)
    return file


def test_the_version_and_every_help_with_examples():
    assert run("--version").stdout == f"attsvm {attsvm.__version__}\n"
    for command in ("solve", "train", "show", "reproduce", "claims"):
        done = run(command, "--help")
        assert (done.exit_code, f"attsvm {command}" in done.stdout) == (0, True)


# ---------------------------------------------------------------------- solve


def test_solve_prints_the_certificate_and_writes_the_solution(problem, tmp_path):
    done = run("solve", problem, "--out", tmp_path / "solution.npz")
    kept = attsvm.Solution.load(tmp_path / "solution.npz")
    assert (done.exit_code, done.stdout) == (0, f"{kept}\n")
    assert "certified: primal violation" in done.stdout


def test_solve_takes_the_best_tokens_unless_told_otherwise(problem):
    best, first, listed = (
        json.loads(run("solve", problem, "--json", *more).stdout)["margin"]
        for more in ((), ("--select", "first"), ("--select", "0,0,0,0"))
    )
    tokens = attsvm.Tokens.load(problem)
    v = np.load(problem)["v"]
    assert best == attsvm.max_margin(tokens, attsvm.best_tokens(tokens, v)).margin
    assert first == listed != best


def test_safetensors_and_npz_give_the_same_answer(problem, tmp_path):
    numpy_files = pytest.importorskip("safetensors.numpy", reason="needs safetensors")
    arrays = {name: np.ascontiguousarray(array) for name, array in np.load(problem).items()}
    numpy_files.save_file(arrays, tmp_path / "problem.safetensors")
    assert run("solve", tmp_path / "problem.safetensors").stdout == run("solve", problem).stdout


def test_an_unseparable_file_ends_with_code_2_and_names_the_tokens(tmp_path):
    keys = np.random.default_rng(0).standard_normal((2, 2, 3))
    keys[1] = keys[0, ::-1]
    np.savez(tmp_path / "crossed.npz", keys=keys)
    done = run("solve", tmp_path / "crossed.npz", "--select", "0", "--json")
    assert (done.exit_code, json.loads(done.stdout)["conflict"]) == (2, [[0, 1], [1, 1]])
    assert "token 0 above token 1 in example 0, token 0 above token 1 in example 1" in done.stderr
    assert run("solve", tmp_path / "crossed.npz", "--select", "0,1").exit_code == 0


def broken_files(folder):
    (folder / "words.npz").write_text("hello")
    (folder / "words.safetensors").write_text("hello")
    np.savez(folder / "other.npz", other=1)
    np.savez(folder / "flat.npz", keys=np.ones((2, 3)))
    np.savez(folder / "hole.npz", keys=np.full((2, 3, 2), np.nan))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("words.npz", "not a zip archive"),
        ("words.safetensors", "cannot be read"),
        ("other.npz", "no array 'keys'"),
        ("flat.npz", "keys has shape (2, 3)"),
        ("hole.npz", "keys[0, 0, 0] is nan"),
        ("missing.npz", "no file"),
    ],
)
def test_garbage_ends_with_code_1_and_one_line(tmp_path, name, said):
    broken_files(tmp_path)
    done = run("solve", tmp_path / name, "--select", "first")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert said in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("solve", "--norm", "l3"), "lp:P"),
        (("solve", "--select", "maybe"), "best, first, file"),
        (("solve", "--select", "0,1"), "n=4"),
        (("solve", "--out", "nowhere/solution.npz"), "no folder nowhere"),
        (("train", "--optimizer", "adam"), "steepest, gd, mirror, polyak"),
        (("train", "--optimizer", "mirror", "--norm", "nuclear"), "--norm lp:P"),
        (("train", "--steps", "0"), "positive integer"),
        (("show",), "no path and no solution"),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_ones(problem, words, said):
    command, *options = words
    done = run(command, problem, *options)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert said in done.stderr


def test_norms_are_read_from_words():
    assert [str(norm_of(word)) for word in ("frobenius", "linf", "lp:1.5")] == ["Frobenius", "l∞", "l1.5"]
    with pytest.raises(ValueError, match="a number P ≥ 1"):
        norm_of("lp:0.5")


# ---------------------------------------------------------------------- train, show


def test_a_trained_path_is_saved_shown_and_solved(problem, tmp_path):
    file = tmp_path / "run.npz"
    trained = json.loads(run("train", problem, "--steps", "300", "--out", file, "--json").stdout)
    assert trained["selected"] == np.argmax(attsvm.Path.load(file).selected, axis=-1).tolist()
    shown = run("show", file)
    assert shown.stdout.startswith("Path(W 6 × 6")
    assert (tmp_path / "run.svg").read_text(encoding="utf8").startswith("<?xml")
    solved = json.loads(run("solve", file, "--json", "--out", tmp_path / "solution.npz").stdout)
    assert solved["certified"]
    again = json.loads(run("show", tmp_path / "solution.npz", "--json", "--out", tmp_path / "s.pdf").stdout)
    assert again["margin"] == solved["margin"]


def test_an_unknown_claim_is_refused_in_one_line():
    done = run("claims", "the_moon_is_a_matrix")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)


@pytest.mark.parametrize(("text", "seeds"), [("3", [0, 1, 2]), ("20-22", [20, 21, 22]), ("7-7", [7])])
def test_seeds_are_a_number_or_a_range(text, seeds):
    assert list(seed_range(text)) == seeds


@pytest.mark.parametrize("text", ["0", "5-3", "many", "-1", ""])
def test_seeds_that_name_no_seed_are_refused(text):
    with pytest.raises(ValueError, match="20-39"):
        seed_range(text)


# ---------------------------------------------------------------------- train: options, resuming, divergence


def test_a_saved_run_goes_on_with_its_own_settings(problem, tmp_path):
    part, whole = tmp_path / "part.npz", tmp_path / "whole.npz"
    settings = ("--optimizer", "mirror", "--norm", "lp:3", "--lr", "0.05", "--loss", "exponential")
    run("train", problem, *settings, "--steps", "100", "--out", part)
    assert run("train", part, "--resume", "--steps", "300").exit_code == 0
    run("train", problem, *settings, "--steps", "300", "--out", whole)
    np.testing.assert_array_equal(attsvm.Path.load(part).final, attsvm.Path.load(whole).final)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--optimizer", "gd", "--norm", "linf"), "--norm has no effect with --optimizer gd"),
        (("--optimizer", "polyak", "--lr", "0.1"), "--lr has no effect with --optimizer polyak"),
        (("--loss", "linear"), "logistic, exponential, correlation"),
        (("--resume",), "not a saved Path"),
    ],
)
def test_an_option_without_effect_is_refused(problem, words, said):
    done = run("train", problem, *words)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert said in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [((), "Pass --steps with a larger"), (("--steps", "99", "--lr", "1"), "--lr cannot change")],
)
def test_a_run_does_not_go_on_with_other_settings(problem, tmp_path, words, said):
    run("train", problem, "--steps", "50", "--out", tmp_path / "run.npz")
    done = run("train", tmp_path / "run.npz", "--resume", *words)
    assert (done.exit_code, said in done.stderr) == (1, True)


def test_a_path_of_python_goes_on_in_python(problem, tmp_path):
    tokens, v = attsvm.Tokens.load(problem), np.load(problem)["v"]
    attsvm.train(tokens, attsvm.Linear(v), optimizer=attsvm.gd(0.1), steps=5).save(tmp_path / "run.npz")
    done = run("train", tmp_path / "run.npz", "--resume", "--steps", "9")
    assert (done.exit_code, "resume=Path.load(file)" in done.stderr) == (1, True)


def test_a_run_that_diverges_ends_with_code_1_and_keeps_its_path(problem, tmp_path):
    words = ("train", problem, "--steps", "50", "--out", tmp_path / "run.npz")
    done = run(*words, "--lr", "1e308")
    assert (done.exit_code, "the run diverged" in done.stderr) == (1, True)
    assert attsvm.Path.load(tmp_path / "run.npz").stopped == "diverged"
    assert run(*words).exit_code == 0


@pytest.mark.parametrize("word", ["Nuclear", "L1", "LINF", "LP:1.5", "frobenius"])
def test_norms_are_read_in_capitals_too(word):
    assert norm_of(word) == norm_of(word.lower())
