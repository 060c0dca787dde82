"""A file is replaced whole or not at all, on Windows too, which replaces no open files."""

import os
from pathlib import Path

import pytest

from attsvm.numbers import atomic_write as replacing

pytestmark = pytest.mark.quick


@pytest.fixture
def windows(monkeypatch):
    """What Windows does otherwise: a file is flushed only by who may write it, a folder never."""
    monkeypatch.setattr(replacing, "WINDOWS", True)
    monkeypatch.setattr(replacing, "PATIENCE", 0.3)
    opened, flags, flushed = os.open, {}, os.fsync

    def watched(path, flag, *more, **named):
        if Path(path).is_dir():
            raise PermissionError(13, "Windows opens no folders")
        handle = opened(path, flag, *more, **named)
        flags[handle] = flag
        return handle

    def strict(handle):
        if flags.get(handle, os.O_RDWR) & (os.O_RDWR | os.O_WRONLY) == 0:
            raise OSError(9, "Bad file descriptor")
        flushed(handle)

    monkeypatch.setattr(os, "open", watched)
    monkeypatch.setattr(os, "fsync", strict)


def refusing(monkeypatch, times):
    """The first so many replacements meet an open file; how many were asked for."""
    asked, kept = [], Path.replace

    def replace(part, file):
        asked.append(file)
        if len(asked) <= times:
            raise PermissionError(13, "Access is denied", str(part))
        return kept(part, file)

    monkeypatch.setattr(Path, "replace", replace)
    return asked


def write(file):
    with replacing.replacing(file) as part:
        part.write_text("new")


@pytest.mark.usefixtures("windows")
def test_on_windows_a_reader_that_is_soon_done_is_waited_for(tmp_path, monkeypatch):
    asked = refusing(monkeypatch, 2)
    write(tmp_path / "a.npz")
    assert (tmp_path / "a.npz").read_text() == "new" and len(asked) == 3


@pytest.mark.usefixtures("windows")
def test_on_windows_a_reader_that_stays_is_named_and_the_old_file_kept(tmp_path, monkeypatch):
    file = tmp_path / "a.npz"
    file.write_text("old")
    refusing(monkeypatch, 10**6)
    with pytest.raises(PermissionError, match=r"Close what reads it.*a\.npz"):
        write(file)
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_elsewhere_a_refusal_is_final_at_once(tmp_path, monkeypatch):
    asked = refusing(monkeypatch, 1)
    with pytest.raises(PermissionError, match="Access is denied"):
        write(tmp_path / "a.npz")
    assert len(asked) == 1


@pytest.mark.usefixtures("windows")
def test_the_disk_of_windows_refuses_to_flush_what_was_opened_for_reading(tmp_path):
    file = tmp_path / "a"
    file.write_text("")
    handle = os.open(file, os.O_RDONLY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fsync(handle)
    os.close(handle)


@pytest.mark.skipif(os.name == "nt", reason="Windows has neither such links nor such modes")
def test_a_link_stays_one_and_a_private_file_private(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    file, link = tmp_path / "elsewhere" / "file", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o600)
    link.symlink_to(file)
    with replacing.replacing(link) as part:
        part.write_text("new")
    assert link.is_symlink() and file.read_text() == "new" and file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(RuntimeError, match="halfway"), replacing.replacing(link) as part:
        part.write_text("half")
        raise RuntimeError("halfway")
    assert file.read_text() == "new" and len(list(tmp_path.rglob("*"))) == 3
