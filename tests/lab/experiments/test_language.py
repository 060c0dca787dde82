"""The language model: its text, its causality, and what is measured of its heads."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import softmax

import language
import language_heads
import language_record
from added import Added
from attsvm import next_token
from attsvm.torch import MarginMonitor
from attsvm_lab.figures.ours import language as figure
from attsvm_lab.figures.recorded import FOLDER
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


def induction(sharpness, spread=0.0):
    """A head on two texts of five random tokens read twice, that chooses the token after the earlier copy.

    A place's state is its own unit vector, and that of its token before: W asks for the latter.
    """
    half, texts = 5, 2
    T = 2 * half + 1
    rng = np.random.default_rng(0)
    ids = np.concatenate([[START], *2 * [np.arange(half) + 1]])
    now, before = np.eye(half + 1)[ids], np.eye(half + 1)[np.roll(ids, 1)]
    states = np.concatenate([now, before], 1)[None] + 0.01 * rng.standard_normal((texts, T, 2 * half + 2))
    W = np.zeros((2 * half + 2,) * 2)
    W[half + 1 :, : half + 1] = sharpness * np.eye(half + 1)
    W += spread * rng.standard_normal(W.shape)
    logits = states @ W.T @ states.transpose(0, 2, 1)
    logits[:, ~np.tri(T, dtype=bool)] = -np.inf
    natural = np.tile(np.arange(T), (2, 1)), np.zeros((2, T), int), np.ones((2, T))
    return language_heads.Kept(0, 0, W, W, states, softmax(logits, axis=-1), natural)


def test_an_induction_head_is_judged_by_the_program_of_its_next_tokens():
    sharp, other = induction(10.0), induction(10.0, spread=3.0)
    assert language_heads.score(sharp.attention) > 0.4 and language_heads.right(sharp.attention) > 0.7
    choices = language_heads.own(sharp.attention, 6)
    corpus = language_heads.of_places(choices, 2, 11)
    solution = next_token.attention_program(corpus, sharp.states.reshape(-1, 12))
    found = [
        language_heads.judged(one, choices, ["Frobenius"])["margins"]["Frobenius"] for one in (sharp, other)
    ]
    assert solution.certified and found[0]["certified"]
    assert found[0]["best"] == pytest.approx(solution.margin, rel=1e-5)  # kept to six digits
    assert found[0]["ratio"] > 0.3 > found[1]["ratio"] and found[0]["cosine"] > found[1]["cosine"]
    assert found[0]["ratio"] == pytest.approx(found[0]["added ratio"])


def test_nets_are_judged_together_where_their_heads_choose_alike():
    sharp, blind = induction(10.0), induction(-10.0)
    assert len(language_heads.shared(sharp.attention, sharp.attention, 4)) == 4
    assert len(language_heads.shared(sharp.attention, blind.attention, 4)) == 0
    nets = {"a-adam+gd-heads-0": [blind, sharp], "a-adam+muon-heads-0": [induction(5.0)], "a-adam-0": [sharp]}
    ((name, pair),) = language_heads.together(nets, 4, ["Frobenius"]).items()
    assert name == "a-adam+gd-heads-0 and a-adam+muon-heads-0"
    assert [one["own"]["used"] for one in pair] == [4, 4] and pair[0]["head"][2] > 0.4
    assert not language_heads.together(nets | {"a-adam+gd-heads-0": [blind]}, 4, ["Frobenius"])
    assert language_heads.judged(induction(1.0), np.zeros((0, 3), int), ["Frobenius"]) == {"used": 0}


def test_an_order_of_the_tokens_explains_a_head_that_has_one_and_no_other():
    rng = np.random.default_rng(0)
    ids = np.array(
        [[*rng.permutation(6), 7, *rng.permutation(6), 7, *rng.permutation(6), 7] for _ in range(30)]
    )
    mass = np.where(ids == 7, 1.0, 0.0)
    largest = np.tile((ids == 5).argmax(1)[:, None], (1, 21))
    found = language_heads.ordered(ids, largest, mass)
    assert found[0] == 60 and found[1] == 1 and found[2] < 0.2


def test_looks_become_the_record_that_the_figure_draws(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(language, "LAST", 40)
    for rule in ("adam+gd-heads", "adam+muon-heads"):
        for seed in range(2):
            task = Language((reviews(40, 0), reviews(20, 1)), "cpu", **SIZES)
            settings = Settings("language", 3, rule, 1e-2, seed, epochs=3, until=float("inf"))
            name = tmp_path / "runs" / f"language-20-{rule}-{seed}"
            train(task, settings, name, look=LanguageLook.of(task, frozenset({0})))
    language_heads.main([str(tmp_path / "runs"), str(tmp_path / "heads.json"), "--norms", "Frobenius"])
    language_record.main(
        [str(tmp_path / "runs"), "--out", str(tmp_path), "--heads", str(tmp_path / "heads.json")]
    )
    record = json.loads((tmp_path / "language.json").read_text())
    one = record["runs"]["language-20-adam+gd-heads-0"]
    assert one["tokens"] == [0, 10 * 32 * 256, *one["tokens"][2:]] and len(one["fit"]) == 4
    assert np.shape(one["heads"]) == (4, 8) and np.shape(one["curves"]["first"]) == (4, 4)
    trained, before = (record["programs"]["own"][name] for name in ("language-20-adam+gd-heads-0", "start-0"))
    assert len(trained) == 3 and trained[0]["own"]["Frobenius"][4] is True
    assert trained[0]["own"]["Frobenius"][3] is not None and before[0]["own"]["Frobenius"][3] is None
    monkeypatch.setenv(FOLDER, str(tmp_path))
    arrays = figure.experiment()
    assert arrays["added adam+gd-heads"].shape == (2, 3, 3) and len(figure.checks(arrays)) == 2
    assert figure.draw(arrays) is not None


def test_heads_begin_to_select_where_a_threshold_is_passed():
    table = np.zeros((3, 4, len(COLUMNS)))
    table[1:, 1, COLUMNS.index("lead")] = 0.7
    table[2, 2, COLUMNS.index("top mass")] = 0.3
    table[2, 3, COLUMNS.index("top mass")] = 0.2
    assert language_record.selecting(table).argmax(0).tolist() == [0, 1, 2, 0]
    assert language_record.selecting(table).any(0).tolist() == [False, True, True, False]
