"""The store: whole files or none, whatever is killed, damaged or run twice."""

import json
import random
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from attsvm.numbers.atomic_write import replacing
from attsvm_lab.sweeps.store import Piece, Store, read_table, write_table


def filled(folder, *places, key="a"):
    store = Store(folder, {key})
    for start in places:
        store.add([Piece(key, start, start + 3, {"x": np.arange(start, start + 3) / 7})])
    return store


def test_what_was_added_is_found_again_in_the_order_of_seeds(tmp_path):
    filled(tmp_path, 3, 0)
    again = Store(tmp_path, {"a"})
    assert again.has("a", range(6)) and not again.has("a", range(7)) and not again.has("b", range(1))
    np.testing.assert_array_equal(again.rows("a", range(1, 5))["x"], np.arange(1, 5) / 7)


def test_keys_that_nobody_asks_for_are_not_read(tmp_path):
    filled(tmp_path, 0)
    assert not Store(tmp_path, {"b"}).pieces


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped"])
def test_a_damaged_file_counts_as_missing(tmp_path, damage):
    filled(tmp_path, 0)
    (file,) = (tmp_path / "batches").glob("*.parquet")
    data = bytearray(file.read_bytes())
    data[100:200] = bytes(100)
    file.write_bytes({"cut": data[:-20], "empty": b"", "flipped": bytes(data)}[damage])
    assert not Store(tmp_path, {"a"}).has("a", range(3))
    assert filled(tmp_path, 0).has("a", range(3))
    assert Store(tmp_path, {"a"}).has("a", range(3))


def test_a_flipped_bit_anywhere_leaves_the_same_rows_or_none(tmp_path):
    columns = {"x": np.arange(3) / 7, "kind": np.array(["local", "global", "local"]), "lr": [None, 1.0, None]}
    Store(tmp_path, {"a"}).add([Piece("a", 0, 3, {k: np.array(column) for k, column in columns.items()})])
    (file,) = (tmp_path / "batches").glob("*.parquet")
    whole, rng, missing = file.read_bytes(), np.random.default_rng(0), 0
    rows = str(Store(tmp_path, {"a"}).rows("a", range(3)))
    for bit in rng.choice(8 * len(whole), 400, replace=False):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)
        store = Store(tmp_path, {"a"}, list(columns))
        if store.has("a", range(3)):
            assert str(store.rows("a", range(3))) == rows
        missing += not store.has("a", range(3))
    assert 100 < missing < 400


@pytest.mark.parametrize(
    "told", ["5", "null", "[]", '["a"]', '[["a", 0, 2]]', '[["a", "0", 3]]', '[["b", 0, 3]]']
)
def test_a_file_that_does_not_say_what_it_holds_counts_as_missing(tmp_path, told):
    filled(tmp_path, 0)
    (file,) = (tmp_path / "batches").glob("*.parquet")
    columns, before = read_table(file)
    write_table(file, columns, before)
    assert Store(tmp_path, {"a"}, ["x"]).has("a", range(3))
    write_table(file, columns, {"pieces": told})
    assert not Store(tmp_path, {"a"}, ["x"]).has("a", range(2))


@pytest.mark.parametrize("names", [3, 1])
def test_a_batch_whose_digest_damage_hides_counts_as_missing(tmp_path, names):
    # The names of the metadata are counted before they are listed: one bit hides the digest and the types.
    filled(tmp_path, 0)
    (file,) = (tmp_path / "batches").glob("*.parquet")
    count = b"\x19%c\x18\x06pieces"
    before, after = (count % (16 * told + 12) for told in (3, names))
    assert before in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(before, after))
    assert read_table(file)[0]["x"].tolist() == [0, 1 / 7, 2 / 7]
    assert Store(tmp_path, {"a"}).has("a", range(3)) == (names == 3)


def test_a_batch_that_lacks_a_column_counts_as_missing(tmp_path):
    filled(tmp_path, 0)
    assert Store(tmp_path, {"a"}, ["x"]).has("a", range(3))
    assert not Store(tmp_path, {"a"}, ["x", "kind"]).has("a", range(3))


def test_the_same_columns_are_the_same_bytes_and_other_ones_are_not(tmp_path):
    columns = {
        "kind": np.array(["local", "global"]),
        "x": np.array([0.1, np.nan]),
        "lr": np.array([None, 1.0]),
    }
    for name in "ab":
        write_table(tmp_path / name, columns, {})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    write_table(tmp_path / "b", columns | {"x": np.array([0.1, 0.2])}, {})
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()
    back, _ = read_table(tmp_path / "a")
    assert back["kind"].tolist() == ["local", "global"]
    np.testing.assert_array_equal(back["lr"], [np.nan, 1.0])


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    file = tmp_path / "x"
    file.write_text("old")
    with pytest.raises(OSError, match="full"), replacing(file) as part:
        part.write_text("ne")
        raise OSError("the disk is full")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


WRITER = """
    import numpy as np, sys
    from pathlib import Path
    from attsvm_lab.sweeps.store import Piece, Store
    store = Store(Path(sys.argv[1]), {"a"})
    for k in range(0, 100_000, 4):
        if not store.has("a", range(k, k + 4)):
            store.add([Piece("a", k, k + 4, {"x": np.sin(np.arange(k, k + 4.0))})])
"""


def test_two_writers_killed_at_random_moments_leave_whole_files_only(tmp_path):
    rng, held = random.Random(0), 0
    for _ in range(2):
        command = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)]
        writers = [subprocess.Popen(command) for _ in range(2)]
        while len(list((tmp_path / "batches").glob("*.parquet"))) < held + 2:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.1))
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        files = list((tmp_path / "batches").glob("*.parquet"))
        store = Store(tmp_path, {"a"})
        assert sum(len(own) for own in store.pieces.values()) == len(files) > held
        held = len(files)
    for piece in store.pieces["a"]:
        np.testing.assert_array_equal(piece.columns["x"], np.sin(np.arange(piece.start, float(piece.stop))))


def test_the_files_say_what_they_hold(tmp_path):
    filled(tmp_path, 3)
    (file,) = (tmp_path / "batches").glob("*.parquet")
    columns, told = read_table(file)
    assert json.loads(told["pieces"]) == [["a", 3, 6]]
    assert columns["seed"].tolist() == [3, 4, 5]
