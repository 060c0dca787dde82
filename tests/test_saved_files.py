"""Laws of every saved file: damage is noticed, the same object is the same bytes, the umask decides."""

import os
from functools import cache
from pathlib import Path as File

import numpy as np
import pytest

from attsvm import Path, Solution, Tokens, datasets, max_margin
from attsvm.numbers.archives import BadFile
from attsvm_lab.sweeps.store import Piece, Store

KINDS = ("tokens", "path", "solution", "probe", "kernel probe", "batch")
COLUMNS = {
    "kind": np.array(["global", "local", "neither"]),
    "stopped": np.array(["steps", "steps", "diverged"]),
    "margin_ratio": np.array([0.5, np.nan, 1 / 3]),
    "holds": np.array([True, False, True]),
}


@cache
def sequences():
    rng = np.random.default_rng(0)
    return rng.standard_normal((24, 5, 3)), np.arange(24) % 2


@cache
def saved_object(kind):
    tokens, _ = datasets.sphere(3, 4, 3, seed=0)
    if kind == "path":
        W = np.random.default_rng(0).standard_normal((3, 3, 3))
        return Path(tokens, np.array([0, 10, 100]), W, np.ones(3), np.zeros(3), "steps")
    if kind == "solution":
        return max_margin(tokens, [0, 1, 2])
    if "probe" in kind:
        pytest.importorskip("sklearn", reason="probes are estimators of scikit-learn")
        from sklearn.model_selection import KFold

        from attsvm.probe import AttentionProbe

        features = "rbf" if kind == "kernel probe" else "linear"
        given = {"cv": KFold(3)}  # a file does not hold it
        probe = AttentionProbe(head_ridge=0.1, prompt_ridge=0.1, features=features, **given)
        return probe.fit(*sequences())
    return tokens


def save(kind, folder):
    """The file of an object of this kind."""
    if kind != "batch":
        return saved_object(kind).save(folder / "file")
    pytest.importorskip("pyarrow", reason="batches of a study are Parquet files")
    Store(folder, {"a"}).add([Piece("a", 0, 3, COLUMNS)])
    return next((folder / "batches").glob("*.parquet"))


def numbers(kind, file):
    """All that is read from a file, as arrays; a damaged batch counts as missing."""
    if kind == "batch":
        pieces = Store(file.parent.parent, {"a"}, COLUMNS).pieces
        if not pieces:
            raise BadFile(f"{file} is computed again")
        (piece,) = pieces["a"]
        return [np.array(piece[1:3]), *(piece.columns[name] for name in COLUMNS)]
    if "probe" in kind:
        probe = type(saved_object(kind)).load(file)
        return [probe.decision_function(sequences()[0]), probe.classes_, np.array(str(probe.get_params()))]
    thing = {"tokens": Tokens, "path": Path, "solution": Solution}[kind].load(file)
    if kind == "tokens":
        return list(thing.arrays().values())
    if kind == "path":
        return [
            thing.W,
            thing.index,
            thing.loss,
            thing.log_excess,
            thing.tokens.keys,
            np.array(thing.stopped),
        ]
    return [thing.W, thing.multipliers, thing.tokens.keys, np.array(str(thing.norm)), thing.certificate.worst]


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_an_error_that_names_the_file_or_changes_no_number(kind, tmp_path):
    file = save(kind, tmp_path)
    data, sound, refused = file.read_bytes(), numbers(kind, file), 0
    places = np.linspace(0, len(data) - 1, 200).astype(int)
    directory = np.arange(max(0, len(data) - 300 * (kind == "tokens")), len(data))  # of a zip archive
    places = np.unique([*places, *directory]).tolist()
    for at in places:
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        file.write_bytes(damaged)
        try:
            read = numbers(kind, file)
        except (ValueError, OSError) as error:
            assert str(file) in str(error) and "\n" not in str(error)
            refused += 1
        else:
            assert all(
                np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(sound, read, strict=True)
            ), at
            assert [a.dtype for a in sound] == [b.dtype for b in read]
    assert refused > 0.3 * len(places)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_object_is_the_same_bytes(kind, tmp_path):
    files = []
    for name in "abcd":
        (tmp_path / name).mkdir()
        files.append(save(kind, tmp_path / name))
    assert len({file.read_bytes() for file in files}) == 1
    assert b" at 0x" not in files[0].read_bytes()  # an address differs in every process


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
@pytest.mark.parametrize("kind", KINDS)
def test_who_may_read_a_saved_file_is_what_the_umask_says(kind, mask, tmp_path):
    before = os.umask(mask)
    try:
        file = save(kind, tmp_path)
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.fixture
def full_disk():
    """No file may grow beyond 64 bytes, which fails as a full disk does: with an error that names no file."""
    resource = pytest.importorskip("resource", reason="Windows has no such limits")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def pages():
    """Texts that are saved, by the name of their file."""
    from attsvm.explorer.page import Explorer

    return {"page": Explorer("x" * 1000).save}


@pytest.mark.parametrize("kind", [*KINDS, "page"])
def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_nothing(kind, tmp_path, full_disk):
    with pytest.raises(
        OSError, match=r"File too large.*(file|[0-9a-f]{32})\.(npz|safetensors|parquet|html)"
    ) as error:
        pages()[kind](tmp_path / "file.html") if kind == "page" else save(kind, tmp_path)
    assert ".part" not in str(error.value)
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


@pytest.mark.parametrize("name", ["probe.pkl", "probe.PT", "probe.joblib", "probe.json"])
@pytest.mark.parametrize("kind", ["tokens", "path", "solution", "probe"])
def test_a_name_that_promises_another_format_is_refused(kind, name, tmp_path):
    with pytest.raises(
        ValueError, match=r"probe\.\w+: a \.\w+ file is written.*Pass probe\.(npz|safetensors)\.$"
    ):
        saved_object(kind).save(tmp_path / name)
    assert not list(tmp_path.iterdir())
    assert saved_object(kind).save(tmp_path / "run.0.1").name.startswith("run.0.1.")


def test_a_device_is_written_to_as_it_is(tmp_path):
    from attsvm.numbers.atomic_write import write_text

    write_text(File(os.devnull), "text")
    assert not File(os.devnull).is_file()
