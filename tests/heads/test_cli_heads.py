"""The command says what is wrong in one line."""

import pytest
import typer

from attsvm.cli_heads import heads


def test_a_missing_file_or_model_ends_the_command_with_one_line(tmp_path, capsys):
    texts = tmp_path / "texts.txt"
    for model, line in (("x.gguf", "No such file"), ("x.gguf", "there is no file x.gguf")):
        with pytest.raises(typer.Exit):
            heads(model, texts, out=tmp_path)
        assert line in capsys.readouterr().out
        texts.write_text("a touching film .\n", encoding="utf8")
