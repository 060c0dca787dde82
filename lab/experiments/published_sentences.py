"""The score of pivotal words on the authors' own sentences, of nets before training:

    git clone https://github.com/aaronk2002/AttentionMD FOLDER
    python lab/experiments/published_sentences.py FOLDER

Sentences and pivotal words are read from the notebook attn_map.ipynb, the tokenizer from its folder; both are
public but without a licence, so that neither is shipped. As there, a sentence counts if its word is one token
of it: 44 of 50. Writes src/attsvm_lab/figures/records/sentences.json: a score per size and seed of the
initial weights. The authors' trained nets lie in the same folder, results/P/6/1.pt.
"""

from __future__ import annotations

import ast
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer

from looks import TextLook, exactly
from models import SentimentEncoder
from summary import SHORT, commit

RECORD = Path(__file__).parents[2] / "src" / "attsvm_lab" / "figures" / "records" / "sentences.json"
SEEDS, SIZES = 10, (3, 4, 6)


class Sentences(NamedTuple):
    """Padded ids (n, T), and the place of the pivotal word in each."""

    ids: torch.Tensor
    places: torch.Tensor


def main(folder: Path) -> None:
    sentences = published(folder / "real-data")
    scores = {str(size): [score(size, seed, sentences) for seed in range(SEEDS)] for size in SIZES}
    made = {
        "machine": f"{platform.machine()} CPU",
        "versions": {name: version(name) for name in ("torch", "tokenizers")},
        "commit": commit()[:SHORT],
        "command": "python lab/experiments/published_sentences.py FOLDER",
    }
    record = {"made": made, "sentences": len(sentences.places), "scores": scores}
    RECORD.write_text(json.dumps(record) + "\n", encoding="utf8")


def published(folder: Path) -> Sentences:
    """The sentences of the notebook whose pivotal word is one token, as its own code selects them."""
    cells = json.loads((folder / "attn_map.ipynb").read_text(encoding="utf8"))["cells"]
    lists = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            lists |= _lists("".join(cell["source"]))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    rows, places = [], []
    for text, good_words in zip(lists["sentences"], lists["good_tokens"], strict=True):
        spelled = tokenizer.encode(text)
        found = [k for k, token in enumerate(spelled.tokens) if token in good_words]
        if good_words <= set(spelled.tokens):
            rows.append(spelled.ids)
            places.append(found[0])
    ids = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.long)
    for k, row in enumerate(rows):
        ids[k, : len(row)] = torch.tensor(row)
    return Sentences(ids, torch.tensor(places))


def _lists(source: str) -> dict[str, Any]:
    """The lists of strings, and of sets of strings, that a cell assigns; nothing of the cell is run."""
    scores: dict[str, Any] = {}
    if not source.startswith(("sentences", "good_tokens")):
        return scores
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.List):
            elements = [e.args[0] if isinstance(e, ast.Call) else e for e in statement.value.elts]
            scores[statement.targets[0].id] = [ast.literal_eval(e) for e in elements]  # type: ignore[attr-defined]
    return scores


def score(size: int, seed: int, sentences: Sentences) -> float:
    """The mean score of the pivotal words for the net of this size with the initial weights of this seed."""
    torch.manual_seed(seed)
    model = SentimentEncoder(size)
    text_look = TextLook(sentences.ids, sentences.ids, sentences.places)
    with exactly(model):
        return float(f"{text_look.selection(model):.4g}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
