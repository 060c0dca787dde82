"""The command says what is wrong in one line, and what it found in a page, JSON and CSV."""

import json

import pytest
from typer.testing import CliRunner

from attsvm.cli import app
from tests import commands


def run(*words):
    return commands.run("heads", *words)


def test_a_missing_file_or_model_ends_the_command_with_one_line(tmp_path):
    texts = tmp_path / "texts.txt"
    for line in ("texts.txt does not exist. Pass a file with one text per line", "there is no file x.gguf"):
        done = run("x.gguf", "--texts", texts, "--out", tmp_path)
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert line in done.stderr
        texts.write_text("a touching film .\n", encoding="utf8")


@pytest.mark.parametrize(("length", "cut"), [(3, [1]), (6, [])])
def test_texts_that_were_cut_are_counted_and_their_lines_named(llama, tmp_path, monkeypatch, length, cut):
    monkeypatch.setattr("attsvm.heads.audit.load", lambda model: llama)
    texts = tmp_path / "texts.txt"
    texts.write_text("a film\n\nthe plot is dull .\n", encoding="utf8")
    done = run("tiny", "--texts", texts, "--out", tmp_path / "audit", "--length", length, "--json")
    assert [each["text"] for each in json.loads(done.stdout)["cut"]] == cut
    note = "note: 1 of 2 texts cut after 3 tokens (line 3; the longest has 6). Pass --length 6 to read all.\n"
    assert done.stderr == (note if cut else "")


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["words", "json"])
def test_the_audit_of_a_model_is_written_and_told(llama, tmp_path, monkeypatch, options):
    monkeypatch.setattr("attsvm.heads.audit.load", lambda model: llama)
    texts = tmp_path / "texts.txt"
    texts.write_text("a touching film .\nthe plot is dull .\n", encoding="utf8")
    done = run("tiny", "--texts", texts, "--out", tmp_path / "audit", *options)
    assert done.exit_code == 0
    assert {f.name for f in (tmp_path / "audit").iterdir()} == {"heads.html", "heads.json", "heads.csv"}
    assert len(json.loads(done.stdout)["heads"]) == 12 if options else "12 heads" in done.stdout
    written = json.loads((tmp_path / "audit/heads.json").read_text(encoding="utf8"))
    judged = any(head["queries used"] for head in written["heads"])
    assert "undertraining" in written["limit"] and ("undertraining" in done.stdout) == (
        judged or bool(options)
    )


def test_margins_may_be_left_out_and_heads_silenced(llama, tmp_path, monkeypatch):
    monkeypatch.setattr("attsvm.heads.audit.load", lambda model: llama)
    texts = tmp_path / "texts.txt"
    texts.write_text("a touching film .\n", encoding="utf8")
    done = run("tiny", "--texts", texts, "--out", tmp_path / "audit", "--no-margins", "--ablate", 1)
    assert done.exit_code == 0 and "certified" not in done.stdout
    assert "undertraining" not in done.stdout
    table = (tmp_path / "audit/heads.csv").read_text(encoding="utf8")
    assert "ablation" in table and "Frobenius" not in table


# ---------------------------------------------------------------------- code that comes with a model

CODE = """
from pathlib import Path

from transformers import PretrainedConfig

Path({marker!r}).touch()


class OwnConfig(PretrainedConfig):
    model_type = "own"
"""


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    """A folder whose configuration is a class of its own, and the file that its code makes."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder, marker = tmp_path / "model", tmp_path / "ran"
    folder.mkdir()
    about = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}}
    (folder / "config.json").write_text(json.dumps(about), encoding="utf8")
    (folder / "own.py").write_text(CODE.format(marker=str(marker)), encoding="utf8")
    (tmp_path / "texts.txt").write_text("a touching film .\n", encoding="utf8")
    return folder, marker


@pytest.mark.parametrize("words", [(), ("--trust-remote-code",)], ids=["plain", "trusted"])
def test_code_of_a_folder_runs_with_the_flag_that_says_so_only(own_code, tmp_path, words):
    folder, marker = own_code
    command = [
        "heads",
        str(folder),
        "--texts",
        str(tmp_path / "texts.txt"),
        "--out",
        str(tmp_path / "out"),
        *words,
    ]
    done = CliRunner().invoke(app, command, input="y\ny\ny\n")
    assert done.exit_code == 1 and done.stderr.count("\n") == 1  # this one has no model
    assert marker.exists() is bool(words)
    assert ("has Python code of its own, which is not run" in done.stderr) is not bool(words)
    assert ("--trust-remote-code" in done.stderr) is not bool(words)


def test_code_of_a_folder_does_not_run_in_python_either(own_code):
    from attsvm.heads import load

    folder, marker = own_code
    with pytest.raises(ValueError, match="pass trust_remote_code=True"):
        load(folder)
    assert not marker.exists()
