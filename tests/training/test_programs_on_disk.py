"""Compiled programs are kept for other processes, in the user's folder, and nothing else changes."""

import os
import subprocess
import sys

import jax
import pytest

from attsvm.training import compilation

SCRIPT = """
import jax
from attsvm.datasets import sphere
from attsvm import frobenius, steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.train import train

hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event.endswith("cache_hits")))
tokens, v = sphere(3, 4, 5, seed=0)
for lr in (0.1, 0.2):
    train(tokens, Linear(v), optimizer=steepest(frobenius, lr), steps=5)
print(sum(hits), jax.config.jax_compilation_cache_dir)
"""


def run_script(folder, **settings):
    environment = (
        os.environ | {"XDG_CACHE_HOME": str(folder), "JAX_ENABLE_COMPILATION_CACHE": "true"} | settings
    )
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    return done.stdout.split()


@pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME names the folder on Linux")
def test_a_second_process_compiles_nothing_again(tmp_path):
    first = run_script(tmp_path)
    kept = len(list(tmp_path.rglob("jit_*-cache")))
    second = run_script(tmp_path)
    assert first == ["0", "None"]
    assert int(second[0]) == kept > 0
    assert second[1] == "None"  # the user's own programs go where they went before


def test_the_users_own_cache_stays_theirs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "ours"))
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    try:
        with compilation.kept_programs():
            assert jax.config.jax_compilation_cache_dir == str(tmp_path / "theirs")
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME names the folder on Linux")
def test_where_the_folder_cannot_be_made_nothing_is_kept(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compilation.program_folder() is None
    with compilation.kept_programs():
        assert jax.config.jax_compilation_cache_dir is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compilation.program_folder().is_dir()


@pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME names the folder on Linux")
def test_the_folder_does_not_grow_without_end(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = compilation.program_folder()
    for j in range(4):
        (folder / str(j)).write_bytes(bytes(100))
        os.utime(folder / str(j), (j, j))
    monkeypatch.setattr(compilation, "MOST_BYTES", 250)
    compilation._trim(folder)
    assert sorted(file.name for file in folder.iterdir()) == ["2", "3"]
