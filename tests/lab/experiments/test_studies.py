"""From a training to the package's records: heads are studied, curves are kept."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import factors
import head_programs
import head_study
import summary
from attsvm import Entrywise, Tokens, frobenius, linf, max_margin, nuclear, spectral
from attsvm.torch import LpMirrorDescent
from attsvm_lab.figures.ours import head_pairs
from looks import TextLook
from tasks import Sentiment
from training import Settings, train

from .test_training import TINY, reviews


def head_file(file, W, states, mask):
    """A net of one layer and one head whose logits are x_tᵀ W z."""
    width = len(W)
    tensors = {
        "0.query": torch.eye(width),
        "0.key": torch.tensor(W.T * np.sqrt(width)),
        "0.states": torch.tensor(states),
    }
    save_file(
        {"mask": torch.tensor(mask)} | {name: x.double().contiguous() for name, x in tensors.items()},
        file,
        {"heads": "1"},
    )


def test_a_head_at_the_best_margin_has_ratio_one_and_another_less(tmp_path):
    """Two orthonormal tokens: the best W ranks each query's own token first, in every norm the same rows."""
    states, mask = np.eye(3)[None, :2], np.ones((1, 2), bool)
    best = np.zeros((3, 3))
    best[:2, :2] = [[1, -1], [-1, 1]]
    ratios = {}
    for name, W in (("best", 5 * best), ("other", 5 * best + np.diag([4.0, 0, 0]))):
        head_file(tmp_path / "heads.safetensors", W, states, mask)
        ((found,),) = head_study.study([tmp_path / "heads.safetensors"], 8, ["Frobenius"])
        assert (
            found["used"] == 2
            and found["confident"] == 1
            and found["norm"] == pytest.approx(np.linalg.norm(W))
        )
        assert found["margins"]["Frobenius"]["certified"]
        ratios[name] = found["margins"]["Frobenius"]["ratio"]
    assert ratios["best"] == pytest.approx(1, abs=1e-6)
    assert ratios["other"] < 0.9


def test_heads_are_judged_on_shared_selections_where_asked(tmp_path, monkeypatch):
    """Two nets look at the query's own token, the third one does so for two of the three queries."""
    monkeypatch.setattr(head_study, "LEAST", 2)
    states, mask = np.eye(3)[None], np.ones((1, 3), bool)
    own = 3 * np.eye(3) - 1
    other = own.copy()
    other[:, 2] = [2, -1, -1]  # the last query looks at the first token
    for name, W in (("a", 5 * own), ("b", 4 * own), ("c", 3 * other)):
        (tmp_path / name).mkdir()
        head_file(tmp_path / name / "heads-last.safetensors", W, states, mask)
    head_study.main([str(tmp_path), str(tmp_path / "o.json"), "--together", *"abc", "--norms", "Frobenius"])
    same = json.loads((tmp_path / "o.json").read_text())["same"]
    assert {found["used"] for (found,) in same.values()} == {2}
    ratios = [same[name][0]["margins"]["Frobenius"]["ratio"] for name in "abc"]
    assert ratios[0] == pytest.approx(ratios[1], abs=1e-6) and ratios[0] == pytest.approx(
        np.sqrt(2 / 3), abs=1e-6
    )
    monkeypatch.setattr(head_study, "LEAST", 3)
    assert head_study.together(tmp_path, list("abc"), 8, ["Frobenius"]) == {"a": [], "b": [], "c": []}


def test_what_training_added_is_judged_beside_the_head(tmp_path):
    """The start looks elsewhere, so that W is off, and what was added to it is the best direction."""
    states, mask = np.eye(3)[None, :2], np.ones((1, 2), bool)
    best, start = np.zeros((3, 3)), np.diag([4.0, 0, 0])
    best[:2, :2] = [[5, -5], [-5, 5]]
    for name, W in (("heads-0000", start), ("heads-last", start + best)):
        (tmp_path / "net-0").mkdir(exist_ok=True)
        head_file(tmp_path / "net-0" / f"{name}.safetensors", W, states, mask)
    file = tmp_path / "net-0" / "heads-last.safetensors"
    ((found,),) = head_study.study([file], 8, ["Frobenius"], head_study.start_of(file))
    margins = found["margins"]["Frobenius"]
    assert margins["added ratio"] == pytest.approx(1, abs=1e-6) == margins["added cosine"]
    assert margins["ratio"] < 0.9 and margins["cosine"] < 0.99
    ((alone,),) = head_study.study([file], 8, ["Frobenius"])
    assert "added ratio" not in alone["margins"]["Frobenius"]


@pytest.mark.parametrize("norm", [nuclear, frobenius, spectral], ids=str)
def test_a_program_in_the_span_of_its_queries_has_the_margin_of_the_whole(norm):
    rng = np.random.default_rng(3)
    queries = rng.standard_normal((3, 2)) @ rng.standard_normal((2, 6))  # in a plane
    tokens, selected = Tokens(rng.standard_normal((3, 4, 6)), queries), np.array([0, 1, 2])
    small, basis = head_programs.spanned(tokens)
    whole, found = max_margin(tokens, selected, norm), max_margin(small, selected, norm)
    assert small.e == 2 and whole.certified and found.certified
    assert found.margin == pytest.approx(whole.margin, rel=1e-6)  # both are certified to 1e-8
    lifted = found.W @ basis
    assert norm.value(lifted) == pytest.approx(norm.value(found.W))
    assert head_programs.least_margin(tokens, selected, lifted) == pytest.approx(1, abs=1e-6)
    # Not so of entries: a rotation changes their norms.
    other = max_margin(small, selected, linf).margin
    assert other != pytest.approx(max_margin(tokens, selected, linf).margin, rel=0.01)


def test_the_surest_selections_come_first_one_for_each_token():
    mass, selected = np.array([[0.9, 0.8, 0.1], [0.7, 0.0, 0.0]]), np.array([[2, 2, 1], [0, 0, 0]])
    assert head_study.surest(mass, selected, 2).tolist() == [[0, 0], [1, 0]]
    assert head_study.surest(mass, selected, 8).tolist() == [[0, 0], [1, 0], [0, 2]]


def test_trainings_become_the_record_of_what_they_added(tmp_path, capsys):
    look = TextLook(
        torch.tensor([[1, 3, 4, 7, 2]]), torch.tensor([[1, 7, 2]]), torch.tensor([1]), frozenset({0})
    )
    for seed in range(2):
        task = Sentiment((reviews(20, 0), reviews(20, 1)), 1, "cpu", batch=20, **TINY)
        settings = Settings("sentiment", 1, "adam+muon", 1e-2, epochs=2, seed=seed)
        train(task, settings, tmp_path / "runs" / f"net-{seed}", look=look)
    head_study.main([str(tmp_path / "runs"), str(tmp_path / "own.json"), "--norms", "Frobenius"])
    factors.main([str(tmp_path / "runs"), "--out", str(tmp_path), "--margins", str(tmp_path / "own.json")])
    record = json.loads((tmp_path / "factors.json").read_text())
    one = record["runs"]["net-0"]
    assert one["epochs"] == 2 and np.shape(one["curve"]) == (2, 6) and np.shape(one["norms"]) == (3, 1)
    assert one["spectrum"][0] == 1 and one["heads"][0][0] >= 1
    assert one["heads"][0] != record["runs"]["net-1"]["heads"][0]
    (tmp_path / "runs" / "net-0" / "last.json").write_text('{"epoch": 3}')  # left behind by its heads
    with pytest.raises(ValueError, match=r"of epoch 2, last\.json of 3"):
        head_study.study([tmp_path / "runs" / "net-0" / "heads-last.safetensors"], 8, [])
    (head,) = record["margins"]["own"]["net-0"]
    assert head["layer"] == 0 and len(head["Frobenius"]) == 5 and head["Frobenius"][4] is True


def test_a_training_becomes_a_record(tmp_path, capsys):
    task = Sentiment((reviews(20, 0), reviews(20, 1)), 1, "cpu", batch=20, **TINY)
    look = TextLook(torch.tensor([[1, 3, 4, 7, 2]]), torch.tensor([[1, 7, 2]]), torch.tensor([1]))
    records = train(
        task, Settings("sentiment", 1, "adam", 1e-2, epochs=2), tmp_path / "runs" / "one", look=look
    )
    summary.main([str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    record = json.loads((tmp_path / "out" / "transformers.json").read_text())
    one = record["runs"]["one"]
    assert one["test_accuracy"] == [pytest.approx(r["test_accuracy"], abs=1e-4) for r in records[1:]]
    assert len(one["layers"]) == 3 and sum(one["last"]["histogram_key"]) == 64
    assert {"machine", "versions", "commit", "command"} == set(record["made"])


def test_a_longer_training_replaces_a_recorded_one_and_a_shorter_does_not(tmp_path, capsys):
    look = TextLook(torch.tensor([[1, 3, 4, 7, 2]]), torch.tensor([[1, 7, 2]]), torch.tensor([1]))
    task = Sentiment((reviews(20, 0), reviews(20, 1)), 1, "cpu", batch=20, **TINY)
    out = tmp_path / "out"
    for where, seconds, names in (("a", 3, "xy"), ("b", 4, "yz"), ("c", 2, "z")):
        for name in names:
            settings = Settings("sentiment", 1, "adam", 1e-3, epochs=seconds, until=2.0)
            train(task, settings, tmp_path / where / name, look=look)
            file = tmp_path / where / name / "about.json"
            about = json.loads(file.read_text()) | {"commit": f"{where * 20}"}
            file.write_text(json.dumps(about | ({"machine": "another"} if where == "b" else {})))
        summary.main([str(tmp_path / where), "--out", str(out)])
    record = json.loads((out / "transformers.json").read_text())
    runs = record["runs"]
    assert {name: (run["trained"], run["commit"]) for name, run in runs.items()} == {
        "x": (3, 10 * "a"),
        "y": (4, 10 * "b"),
        "z": (4, 10 * "b"),
    }
    assert record["made"]["commit"] == f"{10 * 'a'} and {10 * 'b'}"
    assert "made" not in runs["x"] and runs["y"]["made"]["machine"] == "another"
    assert "z: the recorded one stays, 4 epochs; the new has 2" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        summary.main([str(tmp_path / "nothing"), "--out", str(out)])


def test_heads_are_kept_as_means_by_layer():
    def head(layer, x):
        margin = {"ratio": 2 * x, "cosine": 3 * x, "certified": x < 8}
        return {"layer": layer, "mass": x, "margins": {"Frobenius": margin}}

    net = [head(1, 7.0), head(0, 1.0), head(0, 3.0)]
    assert summary.by_layer(net) == [[2, 4, 6], [7, 14, 21]]
    with pytest.raises(ValueError, match="not certified"):
        summary.by_layer([*net, head(1, 9.0)])


def test_the_same_weight_with_wasteful_factors_has_less_of_the_best_factors_margin():
    """One row, e1 e1ᵀ: factors e1, e1 are the best in every norm; a row of K that Q ignores is waste."""
    tokens, selected = Tokens(np.eye(3)[None, [0, 0]] * [[[1], [0]]], np.eye(3)[:1]), np.array([0])
    K, Q = np.eye(3)[:2], np.diag([1.0, 0, 0])[:2]
    for name, N in head_programs.FACTORS.items():
        lean, waste = (
            head_programs.margins(tokens, selected, {"": K.T @ Q}, name, factors)
            for factors in ((K[:1], Q[:1]), (K, Q))
        )
        assert lean["ratio"] == waste["ratio"] == pytest.approx(1) == lean["factors ratio"]
        less = 2 ** (-1 / N.p) / head_programs.rows_gain(N, 2)
        assert waste["factors ratio"] == pytest.approx(less)
        most = [found.get("factors most", found["factors ratio"]) for found in (lean, waste)]
        assert most == pytest.approx([1, less])


def test_no_factors_have_more_than_the_bound_and_with_p_above_two_it_needs_the_rows():
    rng = np.random.default_rng(5)
    tokens, selected = Tokens(rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 4))), np.array([0, 1])
    for name, N in head_programs.FACTORS.items():
        best = max_margin(tokens, selected, head_programs.NORMS[name])
        bound = best.margin * head_programs.rows_gain(N, 4)
        found = head_programs.found_factors(tokens, selected, N, best.W)
        assert 0.3 * best.margin < found <= bound * (1 + 1e-6)  # both are certified to 1e-8
        U, sizes, V = np.linalg.svd(best.W)
        K, Q = np.sqrt(sizes)[:, None] * U.T, np.sqrt(sizes)[:, None] * V
        share = head_programs.of_factors(tokens, selected, K, Q, N, best)["factors ratio"]
        assert (share == pytest.approx(1, abs=1e-5)) == (N.p == 2) and share < 1 + 1e-5
    ones, cubic = np.ones((9, 1)), Entrywise(3)
    assert cubic.value(ones) ** 2 < cubic.value(ones.T @ ones)
    assert cubic.value(ones) ** 2 * head_programs.rows_gain(cubic, 9) == pytest.approx(
        cubic.value(ones.T @ ones)
    )


def test_shapes_are_those_of_closed_forms():
    one, equal = np.diag([1.0, 0, 0, 0]), np.ones((4, 4))
    assert head_study.shaped("", np.eye(4), one, one) == {"rank": pytest.approx(4), "spread": 1 / 16}
    assert head_study.shaped("x ", one, equal, -equal) == {"x rank": 1, "x spread": 1}
    assert head_study.shaped("", one, one, equal)["spread"] == pytest.approx(17 / 32)


def test_a_start_of_another_size_is_not_taken(tmp_path):
    states, mask = np.eye(3)[None], np.ones((1, 3), bool)
    for name in ("a-0/heads-last", "b-0/heads-0000", "c-1/heads-0000"):
        (tmp_path / name).parent.mkdir()
        head_file(tmp_path / f"{name}.safetensors", np.eye(3), states, mask)
    last, start = (tmp_path / f"{name}.safetensors" for name in ("a-0/heads-last", "b-0/heads-0000"))
    assert head_study.start_of(last) == start
    save_file(load_file(start) | {"1.query": torch.eye(3)}, start, {"heads": "1"})  # one more layer
    assert head_study.start_of(last) is None


def test_pairs_are_recorded_beside_the_heads_and_exchanged_they_are_turned_over(
    tmp_path, monkeypatch, capsys
):
    """Two nets of a seed: one is at the best margin of what both select, the other is not."""
    monkeypatch.setattr(head_study, "LEAST", 2)
    states, mask = np.eye(3)[None, :2], np.ones((1, 2), bool)
    best = np.array([[5.0, -5, 0], [-5, 5, 0], [0, 0, 0]])
    group = "1.1, size 3"
    names = head_pairs.names(group)[0]
    for name, W in zip(names, (best, best + np.diag([4.0, 0, 0])), strict=True):
        (tmp_path / name).mkdir()
        head_file(tmp_path / name / "heads-last.safetensors", W, states, mask)
    norms = ["--norms", "Frobenius", "nuclear", "l1.1"]
    head_study.main([str(tmp_path), str(tmp_path / "pair.json"), *norms, "--together", *names])
    file, runs = tmp_path / "heads.json", {name: {"trained": 7} for name in names}
    monkeypatch.setenv("ATTSVM_COMMIT", "a")
    record = summary.studied(file, [], [tmp_path / "pair.json"], runs)
    summary.write(file, record)
    found = record["pairs"]
    assert record["last"] == dict.fromkeys(names, 7) and len(found) == 2
    monkeypatch.setenv("ATTSVM_COMMIT", "b")
    again = summary.studied(file, [], [], {})  # nothing new: what is there stays
    assert again == record | {"made": record["made"] | {"commit": "a and b"}}
    for nets, above in ((found, True), (dict(zip(found, reversed(found.values()), strict=True)), False)):
        records = {"heads": {"pairs": nets}, "transformers": {"runs": {}}}
        monkeypatch.setattr(head_pairs, "recorded", records.get)
        arrays = head_pairs.experiment()
        assert arrays[f"pair {group} seed"].tolist() == [0]
        for name in ("W, Frobenius", "W, l1.1", "cosine, nuclear"):
            (quotient,) = head_pairs.quotient(arrays, group, name)
            assert (quotient > 1.02) == above and (quotient < 0.98) != above  # a cosine of 0.961


@pytest.mark.parametrize("p", [1.1, 1.5, 2.0])
def test_the_spread_of_a_first_step_is_the_closed_form_and_not_that_of_gradient_descent(p):
    """A million weights: the quotient of spreads is known to about 0.002."""
    rng = np.random.default_rng(7)
    before, g = rng.uniform(-1, 1, 10**6), rng.standard_normal(10**6)
    w = torch.nn.Parameter(torch.tensor(before))
    w.grad = torch.tensor(g)
    LpMirrorDescent([w], 1e-7, p).step()
    moved = (w.detach().numpy() - before).reshape(1000, -1)
    found, plain = (head_study.shaped("", np.eye(2), x, x)["spread"] for x in (moved, g.reshape(moved.shape)))
    assert found / plain == pytest.approx(head_pairs.first_step(p), abs=0.01)
    assert (found / plain == pytest.approx(1, abs=0.01)) == (p == 2)
