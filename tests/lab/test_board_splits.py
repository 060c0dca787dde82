"""Splits of the public board: their rows, their errors, the heads beside the probe, and the page."""

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp
from sklearn.linear_model import LogisticRegression

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "lab" / "board.md").read_text(encoding="utf8")
SCRIPTS = "board_splits", "board_heads"
RECORDS = {name: json.loads((ROOT / "lab" / "records" / f"{name}.json").read_text()) for name in SCRIPTS}


@pytest.fixture
def script(monkeypatch):
    """A script of lab/benchmarks/practice as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "lab" / "benchmarks" / "practice"))
    return importlib.import_module


def rows_on_the_page():
    """Rows of the tables of the section."""
    (section,) = re.findall(r"^## Five splits\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    tables = re.findall(r"^\|[^\n]*\n\|[-|]+\|\n((?:\|.*\n)+)", section, re.MULTILINE)
    return {row for table in tables for row in table.splitlines()}


def printed(script, capsys, records):
    for name, content in records.items():
        script(name).tables(content)
    return set(capsys.readouterr().out.splitlines())


def test_every_row_of_the_section_is_printed_from_a_record(script, capsys):
    rows = rows_on_the_page()
    assert len(rows) > 20
    assert rows <= printed(script, capsys, RECORDS)


def test_changed_differences_are_not_on_the_page(script, capsys):
    changed = json.loads(json.dumps(RECORDS))
    gains = changed["board_splits"]["layers"]["6"]["mean"]["gain"]
    gains[:] = [[gain + 0.01 for gain in of_set] for of_set in gains]
    assert len(rows_on_the_page() - printed(script, capsys, changed)) >= 3


def test_corrected_t_without_shared_rows_is_the_t_of_the_splits(script):
    gains = np.random.default_rng(0).normal(0.3, 1, (6, 5))
    corrected_t = script("board_splits").corrected_t
    plain = ttest_1samp(gains, 0, axis=1).statistic
    assert np.allclose(corrected_t(gains, np.zeros(6)), plain)
    assert np.allclose(corrected_t(gains, np.full(6, 1.8)), plain / np.sqrt(10))  # (1/5 + 1.8) : 1/5
    assert (corrected_t(np.zeros((2, 5)), np.ones(2)) == 0).all()


def test_a_split_has_every_row_once_with_its_label(script, tmp_path):
    lengths = np.array([3, 1, 2, 4, 1, 2])
    first = np.concatenate([[[i, place] for place in range(T)] for i, T in enumerate(lengths)])
    labels = np.arange(6) % 2
    np.savez(tmp_path / "a.npz", layer_6=first.astype(np.float16), lengths=lengths, labels=labels, training=4)
    load, orders = script("board_states").load, []
    for split in (0, 1, 2):
        b = load(tmp_path, "a", 6, split)
        sequences, of_rows = [*b.training, *b.test], np.concatenate([b.labels, b.truth])
        order = [int(x[0, 0]) for x in sequences]
        assert len(b.labels) == 4
        assert sorted(order) == list(range(6))
        assert all(x[:, 1].tolist() == list(range(lengths[i])) for x, i in zip(sequences, order, strict=True))
        assert (of_rows == labels[order]).all()
        orders.append(order)
    assert orders[0] == list(range(6))
    assert orders[1] != orders[2]


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e3])
def test_a_head_is_the_logistic_regression_of_scikit_learn(script, spread):
    heads, rng = script("board_heads"), np.random.default_rng(1)
    x = spread * rng.standard_normal((90, 7)) * np.geomspace(0.1, 10, 7)
    x[:, 3] = spread  # a constant feature
    labels = (x[:, 0] / x[:, 0].std() + rng.standard_normal(90) > 0).astype(int)
    path = heads.head_path(x[:60], x[60:], labels[:60], x[:60].std(0))
    z = (x - x[:60].mean(0)) / np.where(x[:60].std(0) > 0, x[:60].std(0), 1)
    ridge = heads.RIDGES[4]
    model = LogisticRegression(C=1 / (60 * ridge), tol=1e-8, max_iter=5000).fit(z[:60], labels[:60])
    assert np.allclose(path["test"][4], model.decision_function(z[60:]), atol=0.01)
    assert not np.allclose(path["test"][3], model.decision_function(z[60:]), atol=0.1)  # another ridge
