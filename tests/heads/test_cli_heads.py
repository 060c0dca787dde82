"""The command says what is wrong in one line, and what it found in a page, JSON and CSV."""

import json

import pytest
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


def test_margins_may_be_left_out_and_heads_silenced(llama, tmp_path, monkeypatch):
    monkeypatch.setattr("attsvm.heads.audit.load", lambda model: llama)
    texts = tmp_path / "texts.txt"
    texts.write_text("a touching film .\n", encoding="utf8")
    done = run("tiny", "--texts", texts, "--out", tmp_path / "audit", "--no-margins", "--ablate", 1)
    assert done.exit_code == 0 and "certified" not in done.stdout
    table = (tmp_path / "audit/heads.csv").read_text(encoding="utf8")
    assert "ablation" in table and "Frobenius" not in table
