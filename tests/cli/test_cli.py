"""Commands on files: what they print, what they write, how they end."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attsvm
import attsvm_lab
from attsvm import Tokens, datasets, max_margin
from attsvm._support.options import seed_range
from attsvm.cli.files import read_problem
from attsvm.cli.show import program_of
from attsvm.norms.names import norm_of
from attsvm_lab.claims import run as running
from tests.archives import arrays_of
from tests.commands import run


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    tokens, v = attsvm.datasets.sphere(4, 5, 6, seed=0)
    file = tmp_path_factory.mktemp("problem") / "problem.npz"
    np.savez(file, **tokens.arrays(), v=v)
    return file


def test_the_version_and_every_help_with_examples():
    assert run("--version").stdout == f"attsvm {attsvm.__version__}\n"
    for command in ("solve", "train", "show", "reproduce", "claims", "sweep"):
        done = run(command, "--help")
        assert (done.exit_code, f"attsvm {command}" in done.stdout) == (0, True)


COMMANDS = ["solve", "train", "show", "heads", "explore", "claims", "reproduce", "sweep"]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_commands_and_the_options_of_each_fit_on_a_screen(command):
    """80 columns, 24 lines: rich takes 80 columns where the output is no terminal."""
    lines = run(*command.split(), "--help").stdout.rstrip().splitlines()
    start = next(k for k, line in enumerate(lines) if "─ Options ─" in line) if command else 0
    assert len(lines) - start <= 24
    assert command or all(f" {name} " in "\n".join(lines) for name in COMMANDS)


@pytest.mark.parametrize("command", ["solve", "heads", "explore", "sweep", "claims", "reproduce"])
def test_the_help_shows_a_type_where_a_value_follows_and_none_after_a_flag(command):
    option, flag = (
        [line for line in run(command, "--help").stdout.splitlines() if f"{name} " in line][-1]
        for name in ("--table" if command == "claims" else "--out", "--json")
    )
    assert "path" in option.lower()
    assert "bool" not in flag.lower()


# ---------------------------------------------------------------------- solve


def test_solve_prints_the_certificate_and_writes_the_solution(problem, tmp_path):
    done = run("solve", problem, "--out", tmp_path / "solution.npz")
    kept = attsvm.Solution.load(tmp_path / "solution.npz")
    assert (done.exit_code, done.stdout) == (0, f"{kept}\nsolution: {tmp_path / 'solution.npz'}\n")
    assert "constraints: primal violation" in done.stdout


def test_solve_takes_the_best_tokens_unless_told_otherwise(problem):
    best, first, listed = (
        json.loads(run("solve", problem, "--json", *more).stdout)["margin"]
        for more in ((), ("--select", "first"), ("--select", "0,0,0,0"))
    )
    tokens = attsvm.Tokens.load(problem)
    v = arrays_of(problem)["v"]
    assert best == attsvm.max_margin(tokens, attsvm.best_tokens(tokens, v)).margin
    assert first == listed != best


def test_safetensors_and_npz_give_the_same_answer(problem, tmp_path):
    numpy_files = pytest.importorskip("safetensors.numpy", reason="needs safetensors")
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays_of(problem).items()}
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


def test_a_wrong_array_name_is_not_answered_as_another_problem(problem, tmp_path):
    arrays = arrays_of(problem)
    np.savez(tmp_path / "wrong.npz", query=arrays.pop("queries"), **arrays)
    for command in ("solve", "train", "show"):
        done = run(command, tmp_path / "wrong.npz")
        assert (done.exit_code, done.stdout) == (1, "")
        assert "unknown array 'query'. Did you mean 'queries'?" in done.stderr or command == "show"


def test_a_file_that_selects_nothing_is_asked_which_tokens_win(tmp_path):
    np.savez(tmp_path / "keys.npz", keys=np.ones((1, 2, 2)))
    assert "does not say which tokens win. Pass --select" in run("solve", tmp_path / "keys.npz").stderr


def test_a_saved_solution_is_solved_again_for_its_own_selection(problem, tmp_path):
    asked = (problem, "--select", "first", "--norm", "nuclear", "--json")
    first = json.loads(run("solve", *asked, "--out", tmp_path / "kept").stdout)
    assert first.pop("solution") == str(tmp_path / "kept.npz")
    again = json.loads(run("solve", tmp_path / "kept", "--norm", "nuclear", "--json").stdout)
    other = json.loads(run("solve", problem, "--norm", "nuclear", "--json").stdout)
    assert first["margin"] == pytest.approx(again["margin"], rel=1e-6)
    assert other["margin"] != pytest.approx(again["margin"], rel=1e-6)


def test_a_folder_is_not_taken_for_a_file(problem, tmp_path):
    for words in (("solve", tmp_path), ("solve", "."), ("train", "."), ("explore", ".", "--no-open")):
        done = run(*words)
        assert done.exit_code == 1 and "is a folder. Pass an .npz" in done.stderr
    for words in (("solve", problem), ("train", problem), ("explore", "--no-open")):
        done = run(*words, "--out", tmp_path)
        assert done.exit_code == 64 and "--out is the folder" in done.stderr
    with pytest.raises(IsADirectoryError, match=r"'.' is no name of a file"):
        Tokens(np.ones((1, 2, 3))).save(".")


def test_the_file_that_holds_the_tokens_is_not_replaced_by_their_solution(problem, tmp_path):
    before = problem.read_bytes()
    for command in ("solve", "train"):
        done = run(command, problem, "--out", problem)
        assert (done.exit_code, problem.read_bytes()) == (64, before)
        assert "itself, whose arrays it would replace" in done.stderr
    mapped = tmp_path / "keys.npy"
    np.save(mapped, np.random.default_rng(0).standard_normal((2, 3, 4)))
    mapped = mapped.rename(tmp_path / "keys.npz")  # a name that a solution may have
    keys = np.memmap(mapped, float, "r", mapped.stat().st_size - 8 * 24, (2, 3, 4))
    solution = max_margin(Tokens(keys), [0, 0])
    with pytest.raises(ValueError, match="holds the tokens, which would be lost"):
        solution.save(mapped)
    assert solution.save(tmp_path / "solution").exists() and mapped.stat().st_size > 8 * 24


def test_indices_of_several_runs_are_no_truth_values(tmp_path):
    """Three runs of three examples of three tokens: the shape of one index per example fits the other."""
    tokens, _ = datasets.sphere(3, 3, 9, seed=range(3))
    indices = np.array([[0, 1, 0], [1, 1, 0], [1, 0, 1]])
    np.savez(tmp_path / "runs.npz", **tokens.arrays(), selected=indices)
    assert read_problem(tmp_path / "runs.npz").selected.tolist() == indices.tolist()
    np.savez(tmp_path / "one.npz", keys=tokens.keys[0], selected=indices)
    assert read_problem(tmp_path / "one.npz").selected.dtype == bool


def test_a_table_that_cannot_be_written_is_told_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "run", lambda *_: pytest.fail("the claims were run"))
    done = run("claims", "aligned_factors_stay_aligned", "--table", tmp_path)
    assert done.exit_code == 64 and "Pass a file in it" in done.stderr


def test_claims_that_are_interrupted_say_so_to_people_and_machines(monkeypatch):
    def pressed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run", pressed)
    done = run("claims", "aligned_factors_stay_aligned", "--json")
    assert (done.exit_code, json.loads(done.stdout)["code"]) == (130, 130)
    assert done.stderr == "interrupted. Nothing is kept.\n"


def broken_files(folder):
    (folder / "words.npz").write_text("hello")
    (folder / "words.safetensors").write_text("hello")
    np.savez(folder / "other.npz", other=1)
    np.savez(folder / "nothing.npz")
    np.savez(folder / "flat.npz", keys=np.ones((2, 3)))
    np.savez(folder / "hole.npz", keys=np.full((2, 3, 2), np.nan))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("words.npz", "words.npz: neither a zip archive of arrays (.npz) nor .safetensors"),
        ("words.safetensors", "words.safetensors: neither a zip archive"),
        ("other.npz", "unknown array 'other'"),
        ("nothing.npz", "no array 'keys'"),
        ("flat.npz", "keys has shape (2, 3)"),
        ("hole.npz", "keys[0, 0, 0] is nan"),
        ("missing.npz", "does not exist"),
    ],
)
def test_garbage_ends_with_code_1_and_one_line(tmp_path, name, said):
    broken_files(tmp_path)
    done = run("solve", tmp_path / name, "--select", "first")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert said in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("solve", "--norm", "l3"), 64, "lp:P"),
        (("solve", "--select", "maybe"), 64, "best, first, file"),
        (("solve", "--select", "0,1"), 1, "n=4"),
        (("solve", "--out", "nowhere/solution.npz"), 1, "no folder nowhere"),
        (("solve", "--out", "solution.txt"), 64, "ends in .txt, expected .npz. Pass solution.txt.npz"),
        (("solve", "--nrom", "l1"), 64, "--norm"),
        (("solve", "--slack", "much"), 64, "slack"),
        (("train", "--optimizer", "lion"), 64, "steepest, gd, mirror, polyak, adam"),
        (("train", "--optimizer", "muon"), 64, "steepest with the norm spectral"),
        (("train", "--optimizer", "mirror", "--norm", "nuclear"), 64, "norm lp:P"),
        (("train", "--steps", "0"), 64, "steps"),
        (("show",), 1, "neither a path nor a solution"),
        (("show", "--out", "x.jpeg"), 64, "expected .svg or .pdf or .png"),
        (("sovle",), 64, "solve"),
        (("claims", "--seeds", "none"), 64, "claim"),
    ],
)
def test_wrong_words_end_with_code_64_and_bad_input_with_1_in_one_line(problem, words, code, said):
    command, *options = words
    done = run(command, problem, *options)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert said in done.stderr


def test_the_exit_codes_are_told():
    page = (Path(__file__).parents[2] / "docs" / "api" / "commands.md").read_text(encoding="utf8")
    for text in (run("--help").stdout, page):
        words = " ".join(text.replace("|", " ").split())
        assert "64 wrong usage" in words and "2 not separable" in words


# ---------------------------------------------------------------------- JSON, and letters


def strict(text):
    return json.loads(text, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("words", "code"),
    [(("solve", "missing.npz"), 1), (("solve", "missing.npz", "--norm", "l3"), 64), (("solve", "--no"), 64)],
)
def test_an_error_is_a_json_object_where_json_is_spoken(words, code):
    done = run(*words, "--json")
    record = strict(done.stdout)
    assert (done.exit_code, record["code"], record["error"] in done.stderr) == (code, code, True)
    assert run(*words).stdout == ""


def test_what_is_not_finite_is_null_and_a_rank_is_an_integer(tmp_path):
    np.savez(
        tmp_path / "alone.npz", keys=np.ones((1, 1, 2))
    )  # no constraint: W = 0 and the margin is infinite
    record = strict(run("solve", tmp_path / "alone.npz", "--select", "0", "--json").stdout)
    assert (record["margin"], record["rank"]) == (None, 0)
    assert isinstance(record["rank"], int)


@pytest.mark.parametrize(
    ("charset", "shown"), [("ascii", "W 6 ? 6"), ("latin-1", "W 6 × 6"), ("utf-8", "W 6 × 6")]
)
def test_a_terminal_without_unicode_gets_a_mark_for_what_it_lacks(problem, charset, shown):
    solved, wrong = (run("solve", problem, *more, charset=charset) for more in ((), ("--norm", "l3")))
    assert (solved.exit_code, shown in solved.stdout) == (0, True)
    assert ("P ≥ 1" if charset == "utf-8" else "P ? 1") in wrong.stderr
    for command in ("solve", "claims", "train"):
        assert run(command, "--help", charset=charset).exit_code == 0


def test_the_interpreter_may_speak_ascii_only(problem):
    command = [sys.executable, "-m", "attsvm", "solve", str(problem), "--norm", "linf"]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"l? max-margin solution, W 6 ? 6")


# ---------------------------------------------------------------------- lists


def test_claims_and_figures_can_be_listed():
    for command, known in (("claims", attsvm_lab.claims.claims), ("reproduce", attsvm_lab.figures.ALL)):
        told, record = run(command, "--list"), strict(run(command, "--list", "--json").stdout)
        assert [entry["name"] for entry in record] == list(known)
        assert told.exit_code == 0 and all(name in told.stdout.split() for name in known)


def test_norms_are_read_from_words():
    words = ("frobenius", "linf", "lp:1.5", "schatten:3", "longest-row")
    told = ["Frobenius", "l∞", "l1.5", "Schatten 3", "longest row"]
    assert [str(norm_of(word)) for word in words] == told
    with pytest.raises(ValueError, match="a number P ≥ 1"):
        norm_of("lp:0.5")


# ---------------------------------------------------------------------- train, show


def test_a_trained_path_is_saved_shown_and_solved(problem, tmp_path):
    file = tmp_path / "run.npz"
    trained = json.loads(run("train", problem, "--steps", "300", "--out", file, "--json").stdout)
    assert trained["path"] == str(file)
    assert trained["selected"] == np.argmax(attsvm.Path.load(file).selected, axis=-1).tolist()
    shown = run("show", file)
    assert shown.stdout.startswith("Path(W 6 × 6")
    assert (tmp_path / "run.svg").read_text(encoding="utf8").startswith("<?xml")
    solved = json.loads(run("solve", file, "--json", "--out", tmp_path / "solution.npz").stdout)
    assert solved["certified"]
    again = json.loads(run("show", tmp_path / "solution.npz", "--json", "--out", tmp_path / "s.pdf").stdout)
    assert again["margin"] == solved["margin"]


def test_an_unknown_claim_is_told_the_nearest_one():
    done = run("claims", "aligned_factors_stay_alined")
    assert (done.exit_code, done.stderr.count("\n")) == (64, 1)
    assert "Did you mean aligned_factors_stay_aligned?" in done.stderr


MINE = """
from attsvm.comparison.evidence import at_least, judge
from attsvm_lab.claims import claim

@claim("me, 2026", "derived", removed="a fair coin", twin={"fair": False})
def coins_are_fair(seed, fair=True):
    \"\"\"Coins are fair.\"\"\"
    return judge("fair", at_least("fairness", float(fair), 1.0))

@claim("me, 2026", "derived", removed="nothing that matters", twin={"fair": True})
def coins_are_blind(seed, fair=True):
    \"\"\"The twin holds, too.\"\"\"
    return coins_are_fair.check(seed, fair)

def even(seed):
    \"\"\"Seeds are even.\"\"\"
    return judge("even", at_least("evenness", 1 - seed % 2, 1))

def number(seed):
    return 3.0

def needs_more(seed, what):
    return even(seed)

word = "no function"
"""


@pytest.fixture
def own_claims(tmp_path, monkeypatch):
    (tmp_path / "coins_of_mine.py").write_text(MINE, encoding="utf8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "code", "row"),
    [
        ("coins_are_fair", 0, r"^coins_are_fair +holds +3/3 +twin detected +3/3"),
        ("coins_are_blind", 1, r"^coins_are_blind +holds +3/3 +twin detected +0/3"),
        ("even", 1, r"^even +holds +2/3 +without a twin"),
    ],
)
def test_a_claim_of_ones_own_runs_by_module_and_function(own_claims, name, code, row):
    done = run("claims", f"coins_of_mine:{name}", "--seeds", "3", "--table", "table.md")
    assert done.exit_code == code and re.search(row, done.stdout), done.output
    assert f"### `{name}`" in Path("table.md").read_text(encoding="utf8")
    (told,) = json.loads(run("claims", f"coins_of_mine:{name}", "--seeds", "3", "--json").stdout)
    assert told["name"] == name and len(told["verdicts"]) == 3


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("coins_of_mine:nothing", 64, "has no 'nothing'"),
        ("no_such_coins:even", 64, "Put no_such_coins.py into"),
        ("coins_of_mine:word", 64, "Pass the name of a function"),
        ("coins_of_mine:number", 1, "number returned 3.0. Return a verdict"),
        ("coins_of_mine:needs_more", 1, "does not take one seed"),
    ],
)
def test_what_is_no_claim_of_ones_own_is_told_in_a_line(own_claims, name, code, message):
    done = run("claims", name)
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert (done.exit_code != 0) and (done.exit_code == 64) == (code == 64)


def test_the_command_says_where_it_wrote_the_table(tmp_path, monkeypatch):
    row = running.Row(next(iter(attsvm_lab.claims.claims)), (0,), ("holds",), ("fails",), (), (), 0.1)
    monkeypatch.setattr(running, "run", lambda names, seeds, executor: [row])
    done = run("claims", row.name, "--table", tmp_path / "new" / "claims.md")
    assert (done.exit_code, done.stderr) == (0, f"table: {tmp_path / 'new' / 'claims.md'}\n")
    assert row.name in (tmp_path / "new" / "claims.md").read_text(encoding="utf8")


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


@pytest.mark.parametrize("words", [("--seed", "3"), ("--optimizer", "adam", "--lr", "0.01", "--seed", "3")])
def test_what_is_written_on_the_way_changes_no_bit(problem, tmp_path, words, monkeypatch):
    monkeypatch.setattr("attsvm.training.segments.SEGMENT", 0.0)
    monkeypatch.setattr("attsvm.training.train.first_steps", lambda *_: 7)
    written, save = [], attsvm.Path.save
    monkeypatch.setattr(attsvm.Path, "save", lambda path, file: written.append(path) or save(path, file))
    words = ("train", problem, *words, "--steps", "100", "--tolerance", "1e-3")
    often, once = tmp_path / "often.npz", tmp_path / "once.npz"
    assert run(*words, "--out", often, "--checkpoint", "1e-9").exit_code == 0
    assert len(written) > 3 and written[0].stopped == "interrupted"
    assert run(*words, "--out", once, "--checkpoint", "0").exit_code == 0
    found, expected = attsvm.Path.load(often), attsvm.Path.load(once)
    for name in ("index", "W", "loss", "stopped"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


@pytest.mark.parametrize(
    ("words", "norm"),
    [
        (("--norm", "linf"), attsvm.linf),
        (("--optimizer", "gd"), attsvm.frobenius),
        (("--optimizer", "adam"), None),
    ],
)
def test_a_path_is_shown_beside_the_program_of_its_training(problem, tmp_path, words, norm):
    run("train", problem, *words, "--steps", "300", "--out", tmp_path / "run.npz")
    path = attsvm.Path.load(tmp_path / "run.npz")
    found = program_of(path, None)
    assert (found and found.norm) == norm
    assert program_of(path, "l1").norm == attsvm.l1
    if norm is None:  # one picture of the three: it takes a second
        assert run("show", tmp_path / "run.npz", "--norm", "l1", "--out", tmp_path / "run.png").exit_code == 0


def test_seed_tolerance_and_adam_mean_what_they_mean_in_python(problem, tmp_path):
    file = tmp_path / "run.npz"
    words = ("--optimizer", "adam", "--lr", "0.05", "--seed", "3", "--tolerance", "0.01", "--steps", "900")
    assert run("train", problem, *words, "--out", file).exit_code == 0
    data = arrays_of(problem)
    path = attsvm.train(
        attsvm.Tokens.load(problem),
        attsvm.Linear(data["v"]),
        optimizer=attsvm.adam(0.05),
        init=attsvm.uniform(3),
        tolerance=0.01,
        steps=900,
    )
    np.testing.assert_array_equal(attsvm.Path.load(file).final, path.final)
    assert path.stopped == "converged"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--optimizer", "gd", "--norm", "linf"), 64, "--norm has no effect with --optimizer gd"),
        (("--optimizer", "polyak", "--lr", "0.1"), 64, "--lr has no effect with --optimizer polyak"),
        (("--loss", "linear"), 64, "logistic, exponential, correlation"),
        (("--resume",), 1, "not a saved Path"),
    ],
)
def test_an_option_without_effect_is_refused(problem, words, code, said):
    done = run("train", problem, *words)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert said in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [((), 1, "Pass --steps with a larger"), (("--steps", "99", "--lr", "1"), 64, "--lr cannot change")],
)
def test_a_run_does_not_go_on_with_other_settings(problem, tmp_path, words, code, said):
    run("train", problem, "--steps", "50", "--out", tmp_path / "run.npz")
    done = run("train", tmp_path / "run.npz", "--resume", *words)
    assert (done.exit_code, said in done.stderr) == (code, True)


def test_a_path_of_python_goes_on_in_python(problem, tmp_path):
    tokens, v = attsvm.Tokens.load(problem), arrays_of(problem)["v"]
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


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")
@pytest.mark.parametrize("words", [("solve",), ("--version",)], ids=" ".join)
def test_an_output_that_takes_no_more_ends_a_command_in_one_line(words, tmp_path):
    tokens, v = datasets.sphere(3, 4, 3, seed=0)
    np.savez(tmp_path / "problem.npz", **tokens.arrays(), v=v)
    files = [str(tmp_path / "problem.npz")] * (words[0] == "solve")
    command = [sys.executable, "-m", "attsvm", *words, *files]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "cannot write to standard output: No space left on device. Write it elsewhere.\n"
