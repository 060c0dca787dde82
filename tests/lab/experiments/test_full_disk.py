"""On a full disk a training keeps its last good checkpoint, and the drive says which one failed."""

import errno
import subprocess
from pathlib import Path

import pytest
from safetensors.torch import save_file

import drive
import run
import training

ASKED = ["digits", "--rows", "40", "--epochs", "5", "--save-every", "0", "--out"]


def full(file, size=100):
    """Write so many bytes, and fail as a full disk does."""
    Path(file).write_bytes(b"x" * size)
    raise OSError(errno.ENOSPC, "No space left on device", str(file))


@pytest.mark.parametrize("what", ["checkpoint", "records"])
def test_a_training_on_a_full_disk_keeps_its_last_checkpoint_and_goes_on_from_it(tmp_path, monkeypatch, what):
    whole = run.main([*ASKED, str(tmp_path / "whole")])
    written, put = [], training._put
    place = tmp_path / "cut"

    def save(tensors, part, about):
        written.append(part)
        return full(part) if what == "checkpoint" and len(written) > 2 else save_file(tensors, part, about)

    def keep(file, text):
        if what == "records" and len(written) > 1 and file.name == "records.jsonl":
            patch.setattr(Path, "write_text", lambda self, *_, **__: full(self))
        put(file, text)

    with monkeypatch.context() as patch:
        patch.setattr(training, "save_file", save)
        patch.setattr(training, "_put", keep)
        with pytest.raises(OSError, match="No space left"):
            run.main([*ASKED, str(place)])
    assert not list(place.glob(".*"))  # no half file takes what room there is
    ended = run.main([*ASKED, str(place)])
    assert [record["epoch"] for record in ended] == [record["epoch"] for record in whole]
    files = [folder / "checkpoint.safetensors" for folder in (tmp_path / "whole", place)]
    weights = [training._parts(training.load_file(file))["model"] for file in files]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])
    assert ended[-1]["train_loss"] == whole[-1]["train_loss"] != whole[-2]["train_loss"]


def test_the_drive_names_what_failed_and_goes_on(tmp_path, monkeypatch, capsys):
    def started(line, place, *_):
        if line == "b":
            full(tmp_path / "half")
        place.mkdir()
        (place / "log.txt").write_bytes("epoch 3, …".encode()[:-1])  # cut within a letter
        return subprocess.Popen(["sh", "-c", f"exit {int(line == 'c')}"])

    monkeypatch.setattr(drive, "started", started)
    assert drive.drive(["a", "b", "c", "d"], tmp_path, tmp_path, 60, 1) == ["b", "c"]
    said = capsys.readouterr().out.splitlines()
    assert [next(name for name in "abcd" if f"{name}: " in line) for line in said] == ["a", "b", "c", "d"]
    assert ["FAILED" in line for line in said] == [False, False, True, False]
    assert "not started" in said[1] and "No space left" in said[1]
    assert "MiB free" in said[2] and "epoch 3, " in said[2]


def test_what_cannot_be_gathered_is_named_and_the_older_copy_stays(tmp_path, monkeypatch, capsys):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "records.jsonl").write_text("old\n")
    assert drive.gather(tmp_path) == []
    copy = drive.shutil.copy2
    for name in ("a", "b"):
        (tmp_path / name / "records.jsonl").write_text("new\n")
    monkeypatch.setattr(drive.shutil, "copy2", lambda a, b: full(b) if a.parent.name == "a" else copy(a, b))
    assert drive.gather(tmp_path) == ["a"]
    assert "a: records.jsonl not gathered: [Errno 28]" in capsys.readouterr().out
    small = tmp_path / "small"
    assert [(small / name / "records.jsonl").read_text() for name in ("a", "b")] == ["old\n", "new\n"]
    assert sorted(file.name for file in small.glob("*/*")) == ["records.jsonl"] * 2


def test_a_drive_with_a_failure_ends_with_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(drive, "drive", lambda *_: ["digits-adam"])
    (tmp_path / "plan").write_text("digits --optimizer adam\n")
    with pytest.raises(SystemExit, match="failed: digits-adam"):
        drive.main([str(tmp_path / "plan"), str(tmp_path)])
    monkeypatch.setattr(drive, "drive", lambda *_: [])
    drive.main([str(tmp_path / "plan"), str(tmp_path)])
