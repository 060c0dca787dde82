"""The audit: kinds of tokens, certified margins, and the page."""

import csv
import json
from base64 import b64decode
from dataclasses import replace
from html import escape

import numpy as np
import pytest

import attsvm as att
from attsvm.heads.audit import AuditSettings, audit, mapped_texts, margins
from attsvm.heads.detectors import KINDS, kinds
from attsvm.heads.page import as_json, write
from attsvm.heads.record import record
from tests.browsers import elements
from tests.heads.conftest import TEXTS


@pytest.fixture(scope="module")
def audited(llama):
    return audit(llama, TEXTS, AuditSettings(above=0.2, queries=8), layers=[0])


def problem(seed=0, n=6, T=5, d=30):
    rng = np.random.default_rng(seed)
    tokens = att.Tokens(rng.normal(size=(n, T, d)), rng.normal(size=(n, d)))
    return tokens, rng.integers(T, size=n), rng.normal(size=(d, d))


@pytest.mark.parametrize("norm", [att.frobenius, att.nuclear], ids=str)
def test_the_best_margin_is_that_of_the_program(norm):
    tokens, selected, W = problem()
    found, direct = margins(tokens, selected, W, norm), att.max_margin(tokens, selected, norm)
    assert found.certified and found.best == pytest.approx(direct.margin, rel=1e-7)
    assert found.ratio < 0  # a random weight does not make these selections


@pytest.mark.parametrize("norm", [att.frobenius, att.nuclear], ids=str)
def test_the_solution_itself_has_ratio_and_cosine_one(norm):
    tokens, selected, _ = problem()
    found = margins(tokens, selected, 3 * att.max_margin(tokens, selected, norm).W, norm)
    assert found.ratio == pytest.approx(1, abs=1e-6) and found.cosine == pytest.approx(1, abs=1e-3)


def test_selections_that_contradict_each_other_are_named():
    tokens, _, W = problem(n=1)
    twice = att.Tokens(np.repeat(tokens.keys, 2, 0), np.repeat(tokens.queries, 2, 0))
    found = margins(twice, np.array([0, 1]), W)
    assert "token 0" in found.conflict and not found.certified and np.isnan(found.best)
    soft = margins(twice, np.array([0, 1]), W, slack=1.0)
    assert soft.conflict == found.conflict and soft.certified and np.isfinite(soft.cosine)


def test_a_head_is_never_better_than_the_certified_best(audited):
    assert len(audited.heads) == 6 and all(h.certified for h in audited.heads)
    for head in audited.heads:
        for found in (head.frobenius, head.nuclear):
            assert found is None or 0 < found.ratio <= 1 + 1e-8
    assert any(head.used for head in audited.heads)


def test_every_kind_of_token_is_recognised(bert):
    texts = bert.tokenise(["one two three two"])
    texts = replace(texts, word=np.array([[-1, 0, 1, 1, 3]]))
    token = np.array([0, 2, 1, 3, 4, 4])
    position = np.array([2, 2, 2, 2, 2, 1])
    found = kinds(texts, np.zeros(6, int), position, token)
    assert [KINDS[k] for k in found] == [
        "first or separator",
        "itself",
        "previous",
        "next",
        "same word",
        "content",
    ]


def test_shares_sum_to_one_and_entropy_is_below_the_uniform_one(audited):
    for head in audited.heads:
        assert sum(head.shares.values()) == pytest.approx(1)
        assert 0 <= head.entropy <= np.log(10) and 1 <= head.soft_sparsity <= 10


def test_page_json_and_csv_tell_the_same_numbers(audited, tmp_path):
    page, data, table = write(audited, tmp_path)
    heads = json.loads(data.read_text(encoding="utf8"))["heads"]
    rows = list(csv.DictReader(table.open(encoding="utf8")))
    assert [float(r["mass"]) for r in rows] == [h["mass"] for h in heads]
    text = page.read_text(encoding="utf8")
    assert "__DATA__" not in text and "http" not in text and '"mass":' in text


def test_a_text_cannot_break_out_of_the_page(audited):
    script = "</script><script>alert(1)</script>"
    evil = replace(audited, model=script, sentences=((script, "__DATA__"),))
    from attsvm.heads.page import html

    assert "</script><script>" in as_json(evil) and "</script><script>" not in html(evil)
    assert html(evil).count("__DATA__") == 1  # it stays the word that was read


FIRST_SCREEN = """
const text = (id) => document.getElementById(id).textContent;
const cells = [...document.querySelectorAll("#map button")].map((cell) => cell.textContent);
return [text("margin"), document.getElementById("measure").value, cells,
  [...document.querySelectorAll("#columns th")].slice(0, 4).map((head) => head.textContent),
  document.getElementById("map").getBoundingClientRect().bottom];
"""


def test_the_share_of_the_best_margin_is_on_the_first_screen(audited, tmp_path, chrome):
    chrome.get(write(audited, tmp_path)[0].as_uri())
    lead, measure, cells, columns, bottom = chrome.execute_script(FIRST_SCREEN)
    ratios = [head.frobenius.ratio for head in audited.heads]
    best = int(np.argmax(ratios))
    assert f"Most: layer 0, head {best} (" in lead and "Every best margin is certified." in lead
    assert measure == "Frobenius ratio" and columns[:3] == ["layer", "head", "share of best margin"]
    for cell, ratio in zip(cells, ratios, strict=True):  # percent, in few digits
        assert float(cell) == pytest.approx(100 * ratio, abs=0.51 if "." not in cell else 0.051)
    assert bottom < 1000


def test_a_page_without_margins_says_nothing_of_them(audited, tmp_path, chrome):
    plain = replace(audited, settings=replace(audited.settings, margins=False))
    chrome.get(write(plain, tmp_path)[0].as_uri())
    lead, measure, _, columns, _ = chrome.execute_script(FIRST_SCREEN)
    assert lead == "" and measure != "Frobenius ratio" and "share of best margin" not in columns


@pytest.mark.parametrize("name", ["<!--<script>", "\ud800"])
def test_chromium_runs_the_page_whatever_models_and_tokens_are_called(audited, tmp_path, chrome, name):
    sentences = tuple((name, *pieces[1:]) for pieces in audited.sentences)
    page, data, _ = write(replace(audited, model=name, sentences=sentences), tmp_path)
    shown = escape(name.replace("\ud800", "\ufffd"))
    said = elements(chrome, page)
    assert f"Heads of {shown}</h1>" in said and f">{shown}</i>" in said
    assert json.loads(data.read_text(encoding="utf8"))["model"] == name


def test_heads_are_described_without_margins(llama, audited, tmp_path):
    light = audit(llama, TEXTS, AuditSettings(above=0.2, margins=False, ablation=1), layers=[0])
    for ours, full in zip(light.heads, audited.heads, strict=True):
        assert ours.frobenius is ours.nuclear is None and ours.used == 0 and full.mass == ours.mass
        assert np.isfinite(ours.ablation) and np.isnan(full.ablation) and ours.scores == full.scores
    columns = [set(json.loads(as_json(each))["heads"][0]) for each in (light, audited)]
    assert columns[0] - columns[1] == {"ablation"} and "Frobenius ratio" in columns[1] - columns[0]
    assert "no margins" in repr(light) and "certified" in repr(audited)


def test_heads_without_a_confident_query_have_no_certified_margins(audited):
    unsure = replace(audited.heads[0], frobenius=None, nuclear=None, used=0)
    mixed = replace(audited, heads=(unsure, *audited.heads[1:]))
    assert (audited.certified, mixed.certified) == (6, 5)
    assert [head["certified"] for head in json.loads(as_json(mixed))["heads"]] == [None, *[True] * 5]


def test_progress_counts_every_head_once_and_its_ablation_once(llama):
    steps = []
    settings = AuditSettings(margins=False, ablation=1)
    audit(llama, TEXTS, settings, layers=[0], progress=lambda done, total: steps.append((done, total)))
    assert steps == [(k + 1, 12) for k in range(12)]


def test_the_page_holds_the_whole_attention_of_its_sentences(audited, llama):
    texts = llama.tokenise(TEXTS)
    layer = next(iter(record(llama, texts, [0])))
    for text, pieces in enumerate(audited.sentences):
        T = len(pieces)
        kept = np.frombuffer(b64decode(audited.heads[3].maps[text]), np.uint8).reshape(T, T) / 255
        attention = layer.attention(3, np.array([np.full(T, text), np.arange(T)]))[:, :T]
        assert np.abs(kept - attention).max() <= 0.5 / 255 + 1e-6
    assert len(audited.sentences) == 2


def test_sentences_that_do_not_fit_the_page_are_left_out(llama, monkeypatch):
    texts = llama.tokenise(["one two", *TEXTS, "three four"])
    assert (
        mapped_texts(texts, 8) == [0, 1, 2, 3]
        and mapped_texts(texts, 2) == [0, 1]
        and mapped_texts(texts, 0) == []
    )
    monkeypatch.setattr("attsvm.heads.audit.MAP_BYTES", 20)
    assert mapped_texts(texts, 8) == [0, 3]
    monkeypatch.setattr("attsvm.heads.audit.MAP_BYTES", 1)
    assert mapped_texts(texts, 8) == [0]
    monkeypatch.setattr("attsvm.heads.audit.LONGEST", 2)
    assert mapped_texts(texts, 8) == []


def test_settings_outside_their_range_are_refused():
    with pytest.raises(ValueError, match=r"above is 1\.5"):
        AuditSettings(above=1.5)
    with pytest.raises(ValueError, match="ablation is -1"):
        AuditSettings(ablation=-1)
