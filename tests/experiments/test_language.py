"""The language model: its text, its causality, and what is measured of its heads."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import language
from added import Added
from attsvm.torch import MarginMonitor
from data import packed
from language import COLUMNS, START, UNKNOWN, Language, LanguageLook, mark, numbered, text_of
from optimizers import optimizer
from training import Settings, train

SIZES = {"pieces": 12, "length": 16, "batch": 4, "width": 8, "depth": 2, "heads": 2, "hidden": 16}


def reviews(count, seed):
    """Made-up reviews: an opening, tokens that count up from a random one, a closing."""
    first = np.random.default_rng(seed).integers(0, 8, count)
    texts = [[101, *(200 + (k + np.arange(30)) % 8), 102] for k in first]
    return packed(texts, np.zeros(count))


@pytest.fixture
def task():
    return Language((reviews(40, 0), reviews(20, 1)), "cpu", **SIZES)


def test_frequent_pieces_are_known_and_the_opening_is_left_out():
    half = packed([[101, 7, 7, 9, 102], [101, 7, 9, 11, 102, 102]], np.zeros(2))
    number = numbered(half.ids, 5)  # three of the pieces 7, 102, 9, 11, two numbers of ours
    assert text_of(half, number).tolist() == [2, 2, 4, 3, 2, 4, UNKNOWN, 3, 3]


def test_every_token_of_a_window_is_predicted_from_those_before(task):
    ids, follow = task.windows(task.train, torch.tensor([0, 50]))
    follow = follow.view_as(ids)
    assert follow[1].tolist() == task.train[50:66].tolist()
    assert (ids[:, 0] == START).all() and (ids[:, 1:] == follow[:, :-1]).all()


def test_a_pass_shows_every_window_once_and_the_next_one_others(task):
    one, two, other = task.starts(0, 0), task.starts(0, 1), task.starts(1, 0)
    assert len(torch.unique(one)) == one.numel() and (one.flatten().sort().values.diff() == 16).all()
    assert one.max() + task.length <= len(task.train)
    assert not torch.equal(one, two) and not torch.equal(one, other)
    seen = [batch for epoch in (1, 2, 3) for batch in task.batches(0, epoch)]
    assert len(seen) == mark(3) and mark(language.LOOKS) == language.LAST
    rows = torch.cat([one, two])[: len(seen)]
    assert all(torch.equal(a[0], task.windows(task.train, b)[0]) for a, b in zip(seen, rows, strict=False))


def test_a_text_shorter_than_a_batch_is_refused():
    with pytest.raises(ValueError, match="more --rows"):
        Language((reviews(2, 0), reviews(20, 1)), "cpu", **SIZES)


def test_no_token_looks_ahead(task):
    torch.manual_seed(0)
    model, ids = task.make(), task.windows(task.train, torch.tensor([3]))[0]
    other = ids.clone()
    other[0, 9] = 2 + (ids[0, 9] - 1) % 8
    with torch.no_grad():
        change = (model(ids) - model(other)).abs().amax(-1)[0]
    assert not change[:9].any() and (change[9:] > 0).all()


def test_what_is_measured_of_a_head_is_what_its_attention_says(task, monkeypatch):
    torch.manual_seed(0)
    model = task.make()
    with torch.no_grad():
        for block in model.blocks:
            block.attention.query.weight *= 200  # attention that selects
            block.attention.key.weight *= 20
    look = LanguageLook.of(task)
    with language.exactly(model):
        rows = np.array(look.heads(model))
        found = [dense(model, ids) for ids in (look.held_out, look.repeats)]
        with MarginMonitor(model) as monitor:
            model(look.held_out)
            watched = monitor.record(0)
    for row in rows:
        layer, head = row[:2].astype(int)
        natural, copies = (attention[layer][:, head] for attention in found)
        early, half = 8, look.repeats.shape[1] // 2
        i, j = np.arange(early, 16), np.arange(half + 1, 2 * half + 1)
        late, logs = natural[:, i], np.log(natural[:, i].clip(1e-300))
        ordered = np.sort(logs, -1)
        expected = [-(late * logs).sum(-1).mean(), late.max(-1).mean()]
        leads = np.sort((ordered[..., -1] - ordered[..., -2]).ravel())
        expected += [leads[(leads.size - 1) // 2], late[..., 0].mean(), natural[:, i, i - 1].mean()]
        expected += [copies[:, j, j - half + 1].mean(), copies[:, j, j - half].mean()]
        assert row[3:] == pytest.approx(expected, rel=1e-4)  # queries and keys are in float32
    assert rows[:, 2] == pytest.approx([one.norm for one in watched], rel=1e-4)
    assert rows[:, COLUMNS.index("top mass")].max() > 0.3  # it does select


def dense(model, ids):
    """Causal attention of every layer (n, heads, T, T), by its definition."""
    found, ahead = [], np.triu(np.ones((ids.shape[1],) * 2, bool), 1)
    for q, k in language.queries_keys(model, ids):
        logits = q.double().numpy() @ k.double().numpy().swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        logits[..., ahead] = -np.inf
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        found.append(weights / weights.sum(-1, keepdims=True))
    return found


def test_a_training_learns_and_keeps_its_most_inductive_heads(task, tmp_path):
    settings = Settings("language", 3, "adam+muon-heads", 1e-2, epochs=6, until=float("inf"))
    records = train(task, settings, tmp_path, look=LanguageLook.of(task, frozenset({0})))
    assert records[-1]["fit_loss"] < 1 < 2 < records[0]["fit_loss"]
    assert all(len(record["heads"]) == 4 and len(record["copy"]) == 2 for record in records)
    assert all(len(record["added"]) == 4 for record in records[1:])
    kept = load_file(tmp_path / "heads-last.safetensors")
    scores = sorted(records[-1]["heads"], key=lambda row: -row[COLUMNS.index("induction")])
    for row in scores[:3]:
        name = f"{row[0]:.0f}.{row[1]:.0f}.query"
        assert kept[name].shape == (4, 8) and not torch.equal(kept[name], kept[f"{name}.start"])
    assert len([name for name in kept if name.endswith("where")]) == language.KEPT
    assert (tmp_path / "heads-0000.safetensors").is_file()


def test_singular_values_of_what_was_added_are_those_of_the_difference(task):
    torch.manual_seed(0)
    model = task.make()
    before, added = products(model), Added(model)
    rule = optimizer("adam+gd-heads", model, 0.1)
    task.loss(model, next(task.batches(0, 1)))[0].backward()
    rule.step()
    expected = np.linalg.svd(products(model) - before, compute_uv=False)
    assert added.spectra(model).numpy() == pytest.approx(expected, abs=1e-10)


def products(model):
    """W_Kᵀ W_Q / √width of every head."""
    found = []
    for block in model.blocks:
        K, Q = (getattr(block.attention, name).weight.detach().double().numpy() for name in ("key", "query"))
        found += [K[rows].T @ Q[rows] / 2 for rows in (slice(0, 4), slice(4, 8))]
    return np.array(found)
