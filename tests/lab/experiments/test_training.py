"""The harness: what is killed goes on bit for bit; a record per epoch; plans."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import drive
import half
import run
import steps
from data import packed
from looks import TextLook, weights_of
from optimizers import optimizer
from tasks import Sentiment, Vision
from training import ONLY, Settings, freeze, train

TINY = {"vocabulary": 20, "length": 12, "width": 8, "hidden": 16}
ASKED = ["digits", "--rows", "60", "--optimizer", "mirror:1.1", "--epochs", "12", "--save-every", "0"]


def reviews(count, seed):
    """Made-up reviews: a text is good where token 7 occurs in it."""
    rng = np.random.default_rng(seed)
    texts = [[1, *rng.integers(3, 7, rng.integers(3, 10)), 2] for _ in range(count)]
    for text in texts[::2]:
        text[rng.integers(1, len(text) - 1)] = 7
    return packed(texts, [1 - k % 2 for k in range(count)])


def begun(arguments):
    """A process that trains; its number."""
    if torch.get_num_threads() > 1:  # what is forked would wait for the threads of OpenMP, which stay behind
        return subprocess.Popen([sys.executable, run.__file__, *arguments]).pid
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, which the child does not use
        child = os.fork()  # not a new process: importing takes five times as long as all of this
    if child == 0:
        try:
            run.main(arguments)
        finally:
            os._exit(0)
    return child


def killed(arguments, records):
    """Train in a process that is killed once it has written four records; how many it wrote."""
    child, give_up = begun(arguments), time.monotonic() + 60
    while time.monotonic() < give_up and (not records.exists() or len(records.read_text().splitlines()) < 4):
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return len(records.read_text().splitlines())


def with_a_test(records):
    """The epochs with a test."""
    return [record["epoch"] for record in records if "test_accuracy" in record]


def test_late_epochs_are_tested_a_fifth_as_often(tmp_path):
    asked = ["digits", "--rows", "20", "--optimizer", "adam", "--epochs", "29", "--every", "2"]
    records = run.main([*asked, "--late", "14", "--out", str(tmp_path)])
    assert with_a_test(records) == [*range(1, 11), 12, 14, 20, 29]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")
def test_a_killed_training_goes_on_bit_for_bit(tmp_path):
    whole = run.main([*ASKED, "--every", "5", "--out", str(tmp_path / "whole")])
    assert with_a_test(whole) == [*range(1, 11), 12]
    cut = killed([*ASKED, "--out", str(tmp_path / "cut")], tmp_path / "cut" / "records.jsonl")
    assert 4 <= cut < 13  # it was cut in the middle
    run.main([*ASKED, "--out", str(tmp_path / "cut")])
    whole, cut = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    other = Settings("digits", 3, "mirror:1.1", 0.05, seed=1, epochs=12, until=float("inf"))
    with pytest.raises(ValueError, match="another training"):
        train(Vision(run.some(run.digits(), 60), "cpu", **run.DIGITS), other, tmp_path / "cut")


OWN = ["adam+gd", "adam+schatten4-heads", "adam+muon", "adam+muon-heads:1", "adam+sign", "adam+adamw"]


@pytest.mark.parametrize("name", ["mirror:1.1", "mirror:3", "adam", "sign", "spectral", *OWN])
def test_every_optimizer_continues_from_its_state(name):
    torch.manual_seed(0)
    ends = []
    for cut in (False, True):
        torch.manual_seed(0)
        model = Sentiment((reviews(4, 0),) * 2, 1, "cpu", **TINY).make()
        rule = optimizer(name, model, 1e-3)
        for step in range(4):
            if cut and step == 2:
                state, rule = rule.tensors(), optimizer(name, model, 1e-3)
                rule.load(state)
            rule.zero_grad()
            sum(w.square().sum() * (step + 1) for w in model.parameters()).backward()
            rule.step()
        ends.append([w.detach().clone() for w in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_an_encoder_learns_the_telling_token(tmp_path):
    task = Sentiment((reviews(200, 0), reviews(100, 1)), 1, "cpu", batch=20, **TINY, dropout=0.0)
    sentences = torch.tensor([[1, 3, 7, 2, 0], [1, 7, 4, 5, 2]])
    look = TextLook(torch.tensor([[1, 3, 4, 7, 2]]), sentences, torch.tensor([2, 1]), frozenset({1}))
    settings = Settings("sentiment", 1, "adam", 1e-2, epochs=6, until=0.995)
    records = train(task, settings, tmp_path, look=look)
    assert records[-1]["test_accuracy"] > 0.95 > 0.8 > records[1]["train_accuracy"]
    assert [record["epoch"] for record in records] == list(range(len(records)))
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == records
    kept = load_file(tmp_path / "heads-0001.safetensors")
    assert kept["0.states"].shape == (1, 5, 8) and kept["0.query"].dtype == torch.float16
    assert {"machine", "versions", "commit", "settings"} <= set(
        json.loads((tmp_path / "about.json").read_text())
    )


def test_texts_that_fill_a_batch_change_neither_loss_nor_gradient():
    task = Sentiment((reviews(10, 0), reviews(4, 1)), 2, "cpu", batch=4, **TINY, dropout=0.0)
    torch.manual_seed(0)
    model, found = task.make(), []
    for task.fill in (0, 20):
        batches = list(task.batches(0, 1))
        losses, right = zip(*(task.loss(model, batch) for batch in batches), strict=True)
        grads = torch.autograd.grad(sum(losses), list(model.parameters()))
        found.append([torch.stack(losses).detach(), torch.stack(right), *grads])
    assert [len(batch[-1]) for batch in batches] == [4, 4, 2]
    assert all(len(batch[0]) % 20 == 0 and len(batch[2]) == len(batch[3]) + 3 for batch in batches)
    assert all(torch.allclose(a, b, atol=1e-5, rtol=1e-4) for a, b in zip(*found, strict=True))
    ids, positions, starts, labels = batches[0]
    other = task.loss(model, (ids.roll(1), positions, starts, labels))[0]
    assert not torch.allclose(other, found[1][0][0], atol=1e-3)


def test_large_weights_are_counted():
    model = Sentiment((reviews(4, 0),) * 2, 1, "cpu", **TINY).make()
    with torch.no_grad():
        model.blocks[0].attention.key.weight.fill_(0.01)
        model.blocks[0].attention.key.weight[0, :3] = torch.tensor([0.07, -0.3, 0.059])
    found = weights_of(model)
    assert found["large_key"] == 2 and found["histogram_key"][11] == 1 and sum(found["histogram_key"]) == 64


def test_crops_and_flips_keep_the_pixels_of_the_picture():
    torch.manual_seed(0)
    task = Vision(run.some(run.digits(), 10), "cpu", **(run.DIGITS | {"border": 2}))
    one = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8) + 1
    moved = task._moved(one.repeat(50, 1, 1, 1))
    assert moved.shape == (50, 1, 8, 8) and moved.max() <= 64
    rows = moved[:, 0, 3].long()
    steps = rows.diff(dim=1)[:, 2:5]
    assert set(steps.flatten().tolist()) == {1, -1}  # left to right, or flipped
    assert len({tuple(row.tolist()) for row in rows}) > 10


@pytest.mark.parametrize("name", ["lion", "adam+lion", "adam+muon-layers"])
def test_an_unknown_optimizer_is_named(name):
    model = Sentiment((reviews(4, 0),) * 2, 1, "cpu", **TINY).make()
    with pytest.raises(ValueError, match=r"mirror:P.*adam\+muon") as said:
        optimizer(name, model, 0.1)
    assert repr(name) in str(said.value)


def test_a_training_stops_within_an_epoch_once_its_loss_is_low_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "PART", 2)
    settings = Settings("sentiment", 1, "adam", 1e-2, epochs=6, until=float("inf"))
    ends = []
    for enough in (0.0, 0.4):
        task = Sentiment((reviews(200, 0), reviews(20, 1)), 1, "cpu", batch=20, **TINY, dropout=0.0)
        found = train(task, replace(settings, enough=enough), tmp_path / str(enough))
        ends.append(found[-1])
    assert ends[0]["epoch"] == 6 and "part_loss" not in ends[0]
    assert ends[1]["epoch"] < 6 and ends[1]["part_loss"] <= 0.4 and "test_accuracy" in ends[1]
    assert ends[1]["batches"] in (2, 4, 6, 8, 10)
    before = [record["part_loss"] for record in found[:-1]]
    assert before and min(before) > 0.4


def test_a_plan_runs_some_at_once_skips_what_has_ended_and_outlives_failures(tmp_path, monkeypatch):
    (tmp_path / "plan").write_text("a --seed 1 # first\n\nb --keep 1 2\nc\nd\n")
    lines = drive.read(tmp_path / "plan")
    assert [drive.name_of(line) for line in lines] == ["a-1", "b", "c", "d"]
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "last.json").write_text('{"ended": true}')
    together, seen = [], []

    def started(line, place, *_):
        place.mkdir()
        (place / "log.txt").write_text("one line")
        together.append(line)
        seen.append(sum(process.poll() is None for process in processes) + 1)
        processes.append(subprocess.Popen(["sh", "-c", f"sleep 0.3; exit {int(line == 'd')}"]))
        return processes[-1]

    processes = []
    monkeypatch.setattr(drive, "started", started)
    drive.drive(lines, tmp_path, tmp_path, 60, 2)
    assert together == ["a --seed 1", "b --keep 1 2", "d"] and max(seen) == 2
    assert processes[-1].returncode == 1 and all(process.poll() is not None for process in processes)


def test_trials_can_share_their_initial_weights(tmp_path):
    def first(name, *more):
        asked = ["digits", "--rows", "20", "--epochs", "1", "--out", str(tmp_path / name)]
        run.main([*asked, "--lr", "0", *more])
        return load_file(tmp_path / name / "checkpoint.safetensors")["model.head.weight"]

    own, shared, other = (
        first("own"),
        first("shared", "--seed", "5", "--init", "0"),
        first("5", "--seed", "5"),
    )
    assert torch.equal(own, shared)
    assert not torch.equal(shared, other)


@pytest.mark.parametrize("rule", ["adam", "mirror:1.1", "adam+gd", "spectral"])
def test_only_the_last_queries_and_keys_are_trained_and_the_tokens_they_see_stay(tmp_path, rule):
    asked = ["digits", "--rows", "40", "--epochs", "2", "--lr", "1e-2", "--optimizer", rule]
    run.main([*asked, "--out", str(tmp_path / "all")])
    frozen = ["--only", "last-query-key"]
    run.main([*asked, *frozen, "--from", "all", "--out", str(tmp_path / "frozen")])
    before, after = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("all", "frozen"))
    moved = {x for x in before if x.startswith("model.") and not torch.equal(before[x], after[x])}
    assert moved == {f"model.blocks.1.attention.{kind}.weight" for kind in ("query", "key")}
    states = [load_file(tmp_path / name / "heads-last.safetensors")["1.states"] for name in ("all", "frozen")]
    assert torch.equal(*states)
    settings = json.loads((tmp_path / "frozen" / "about.json").read_text())["settings"]
    assert settings["only"] == "last-query-key" and settings["start"].startswith("all ")
    run.main([*asked, *frozen, "--out", str(tmp_path / "initial")])
    other = load_file(tmp_path / "initial" / "checkpoint.safetensors")
    assert not torch.equal(other["model.head.weight"], before["model.head.weight"])  # it began elsewhere
    with pytest.raises(SystemExit, match="no training in"):
        run.main([*asked, "--from", "nowhere", "--out", str(tmp_path / "none")])


def test_what_is_frozen_is_computed_without_dropout():
    model = Vision(run.some(run.digits(), 10), "cpu", **run.DIGITS).make().train()
    pictures = torch.randn(2, 1, 8, 8)
    assert not torch.equal(model(pictures), model(pictures))
    freeze(model, "last-query-key")
    assert torch.equal(model(pictures), model(pictures))


def test_the_head_is_trained_with_the_last_queries_and_keys_where_it_is_asked_for():
    model = Vision(run.some(run.digits(), 10), "cpu", **run.DIGITS).make()
    names = {}
    for only in ONLY:
        freeze(model, only)
        names[only] = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert names["last-query-key-head"] - names["last-query-key"] == {"head.weight", "head.bias"}
    assert len(names["last-query-key"]) == 2


def test_a_plan_leaves_out_what_a_record_has_and_keeps_what_others_begin_with(tmp_path):
    lines = ["a --seed 1", "b --seed 1", "c --from a-1", "d --from b-1", "e --no-half --keep 3"]
    runs = {"a-1": {"ended": True}, "b-1": {"ended": True}, "d-b-1": {"ended": True}, "e": {"ended": True}}
    (tmp_path / "record.json").write_text(json.dumps({"runs": runs}))
    assert drive.missing(lines, tmp_path / "record.json") == [lines[0], lines[2], lines[4]]
    assert drive.name_of(lines[4]) == "e-no-half"  # not the one that is there


def test_a_training_waits_for_the_one_it_begins_with(tmp_path, monkeypatch):
    order = []

    def started(line, place, *_):
        place.mkdir()
        (place / "log.txt").write_text("one line")
        order.append(line)
        return subprocess.Popen(["sleep", "0.3"])

    monkeypatch.setattr(drive, "started", started)
    lines = ["a --from c", "b", "c"]
    drive.drive(lines, tmp_path, tmp_path, 60, 3)
    assert order == ["b", "c", "a --from c"]


def test_the_plan_has_the_published_table_three_times_and_no_name_twice():
    names = [drive.name_of(line) for line in drive.read(drive.HERE / "plan.txt")]
    assert len(set(names)) == len(names)
    cells = [
        f"sentiment-{size}-mirror{p}-{seed}" for size in (3, 4, 6) for p in ("1.1", 2, 3) for seed in range(3)
    ]
    assert set(cells) <= set(names)
    sources = {drive.source_of(line) for line in drive.read(drive.HERE / "plan.txt")} - {None}
    assert sources <= set(names)


def test_half_precision_moves_a_gradient_less_than_dropout_and_float32_not_at_all(monkeypatch):
    task = Sentiment((reviews(12, 0), reviews(4, 1)), 2, "cpu", batch=4, **TINY)
    found = half.compared(task)
    assert set(found["bfloat16"]) == {"all", *half.KINDS}
    for kind, moved in found["bfloat16"].items():
        assert 1e-4 < moved < 0.1 < found["dropout"][kind]  # seven bits: 4e-3 and its sums
    monkeypatch.setattr(half.torch, "bfloat16", torch.float32)
    assert not any(half.compared(task)["bfloat16"].values())
