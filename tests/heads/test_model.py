"""A model is looked for in its folder, at the hub if that answers, and in the local cache."""

import socket
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from attsvm.heads import load, model
from tests.heads.conftest import Letters

NAME = "nobody/tiny"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The hub's settings: a cache of our own, and an address where nobody listens."""
    from huggingface_hub import constants

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return constants


@contextmanager
def answering(status):
    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_hub_that_refuses_answers_and_one_that_is_away_does_not(hub, monkeypatch):
    assert not model._hub_answers()
    for status in (200, 404, 503):
        with answering(status) as address:
            monkeypatch.setattr(hub, "ENDPOINT", address)
            assert model._hub_answers()
            monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
            assert not model._hub_answers()
            monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)


@pytest.mark.parametrize(("offline", "why"), [(False, "does not answer"), (True, "HF_HUB_OFFLINE is set")])
def test_without_a_hub_an_unknown_model_is_refused_in_one_line_that_says_what_to_do(
    hub, tmp_path, monkeypatch, capfd, offline, why
):
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", offline)
    with pytest.raises(ValueError, match=why) as refused:
        load(NAME)
    assert f"hf download {NAME}" in str(refused.value) and str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value) and "Retry" not in capfd.readouterr().err


def test_without_a_hub_a_cached_model_is_read_and_one_without_weights_is_not(hub, tmp_path, bert):
    place = tmp_path / "models--nobody--tiny"
    bert.model.save_pretrained(place / "snapshots" / "0")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0", encoding="utf8")
    assert repr(load(NAME, Letters())) == repr(bert).replace("BertModel:", f"{NAME}:")
    (place / "snapshots" / "0" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="no whole model of this name"):
        load(NAME, Letters())


def test_bars_of_a_gguf_file_are_drawn_on_a_terminal_only(capsys):
    """transformers draws this bar by itself; it would fill the log of a job with a hundred lines."""
    transformers = pytest.importorskip("transformers")
    gguf = pytest.importorskip("transformers.modeling_gguf_pytorch_utils")
    with model._no_progress_bars_in_files(transformers):
        list(gguf.tqdm(range(3), desc="inside"))
    list(gguf.tqdm(range(3), desc="outside"))
    drawn = capsys.readouterr().err
    assert "inside" not in drawn
    assert "outside" in drawn
