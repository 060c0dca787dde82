"""From a model and texts to hidden states on disk: one file of tokens and offsets per layer."""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.heads.batches import Ids, Offsets, Read, batches, tokenised
from attsvm.heads.model import Reader, load
from attsvm.heads.tensor_files import DTYPES, NotANumber, TokenFile, unfinished
from attsvm.heads.texts import LENGTH, Cut, CutTexts, cut_in_words, cuts
from attsvm.pieces import Spelling, read, spelling
from attsvm.progress import Line
from attsvm.replacing import replacing

ABOUT, PROGRESS = "activations.json", "progress.json"

SAVED_EVERY = 2.0
"""Seconds between two notes of what is on disk: a run that is killed repeats at most so much."""


@dataclass(frozen=True, eq=False, repr=False)
class Activations:
    """Hidden states of texts in a folder, one file per layer.

        layer-06/tokens.safetensors:  tokens (N, d), offsets (n + 1,), ids (N,)
        sequence i is tokens[offsets[i] : offsets[i + 1]]

    files: the file of each layer; cut: the texts of which the end was not read.
    """

    folder: Path
    model: str
    files: dict[int, Path]
    texts: int
    tokens: int
    cut: tuple[Cut, ...]
    vocabulary: dict[int, str]

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Activations:
        """What `activations` wrote into a folder."""
        place = Path(folder)
        if not (place / ABOUT).is_file():
            raise FileNotFoundError(
                f"{place} holds no finished activations. Write them: activations(…, out=…)."
            )
        about = json.loads((place / ABOUT).read_text(encoding="utf8"))
        files = {layer: _file(place, layer) for layer in about["layers"]}
        vocabulary = {int(k): piece for k, piece in about["vocabulary"].items()}
        cut = tuple(Cut(**each) for each in about["cut"])
        return cls(place, about["model"], files, about["texts"], about["tokens"], cut, vocabulary)

    def pieces(self, text: int) -> list[str]:
        """What the tokens of a text read, one piece for each."""
        offsets, ids = self._spelled
        written = [self.vocabulary[int(i)] for i in ids[offsets[text] : offsets[text + 1]]]
        return read(written, self._spelling)

    @cached_property
    def _spelling(self) -> Spelling | None:
        return spelling(self.vocabulary.values())

    @cached_property
    def _spelled(self) -> tuple[Offsets, Ids]:
        from safetensors import safe_open

        with safe_open(next(iter(self.files.values())), "numpy") as file:
            return file.get_tensor("offsets"), file.get_tensor("ids")

    def __len__(self) -> int:
        return self.texts

    def __repr__(self) -> str:
        layers, size = ", ".join(map(str, self.files)), f"{self.texts} texts, {self.tokens} tokens"
        return f"Activations({self.model}, layers {layers}: {size}, in {self.folder})"


def activations(
    model: Any,
    texts: Sequence[str],
    layers: Iterable[int],
    out: str | os.PathLike[str] = "activations",
    *,
    length: int = LENGTH,
    skip: int | None = None,
    batch: int = 4096,
    dtype: str = "float16",
) -> Activations:
    """Write the hidden states of texts into a folder, batch after batch, and say where they are.

    model: hub name, folder, `.gguf` file, or `load(model, tokenizer)`; it runs where it lies, CPU or GPU.
    layers: 0 are the embeddings, k the states after block k, −1 those after the last (and its norm).
    out: a folder. The same call goes on where an interrupted one was, and returns at once when all is there.
    length: at most so many tokens are read of each text; warns CutTexts where one is longer.
    skip: so many first tokens of each text are read but not kept (its last one always is). None: one of a
        language model, because it is a sink whose state may be a thousand times as large as others, which
        ruins the fit of a probe; none of an encoder.
    batch: padded tokens per forward pass. dtype: float16, bfloat16 or float32.
    Raises NotANumber where a state does not fit the dtype.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}. Pass one of {', '.join(DTYPES)}.")
    reader, folder = load(model), Path(out)
    wanted = _layers(layers, reader.model.config.num_hidden_layers)
    offsets, ids, whole = tokenised(reader, texts, length)
    cut = cuts(np.diff(offsets), whole)
    if cut:
        warnings.warn(cut_in_words(cut, len(whole), length), CutTexts, stacklevel=2)
    skipped = int(reader.generates) if skip is None else int(skip)
    places = np.concatenate([[0], np.cumsum(np.maximum(np.diff(offsets) - skipped, 1))])
    job: dict[str, Any] = {"model": reader.name, "weights": _weights_mark(reader), "layers": wanted}
    job |= {"dtype": dtype, "batch": batch, "skip": skipped}
    job |= {"ids": hashlib.sha256(offsets.tobytes() + ids.tobytes()).hexdigest()}
    if _finished(folder, job):
        return Activations.open(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _write(reader, folder, job, Read(offsets, ids, places))
    about = {"texts": len(whole), "tokens": int(places[-1]), "length": length}
    said = {"cut": [vars(each) for each in cut], "vocabulary": reader.vocabulary(ids)}
    _put(folder / ABOUT, job | about | said)
    (folder / PROGRESS).unlink(missing_ok=True)
    return Activations.open(folder)


# ---------------------------------------------------------------------- the work


def _write(reader: Reader, folder: Path, job: dict[str, Any], texts: Read) -> None:
    """Fill the files of all layers; what an interrupted call noted is not done again."""
    parts, lengths = batches(texts.offsets, job["batch"]), np.diff(texts.offsets)
    done, noted = _noted(folder, job), time.monotonic()
    width, ids = reader.model.config.hidden_size, texts.kept
    files = {}
    for layer in job["layers"]:
        names = {"format": "attsvm activations 1", "model": job["model"], "layer": str(layer)}
        files[layer] = TokenFile(
            _file(folder, layer), width, job["dtype"], texts.places, ids, names, fresh=not done
        )
    read = np.cumsum([lengths[some].sum() for some in parts])
    try:
        with Line(total=float(read[-1])) as line:
            for number in range(done, len(parts)):
                _one(reader, files, parts[number], texts)
                line.show(f"{job['model']}: {read[number]:,} of {read[-1]:,} tokens", float(read[number]))
                if time.monotonic() - noted > SAVED_EVERY:
                    _note(folder, job, files, number + 1)
                    noted = time.monotonic()
    except BaseException:
        for file in files.values():
            file.close()
        raise
    for file in files.values():
        file.finish()


def _one(reader: Reader, files: dict[int, TokenFile], batch: NDArray[np.intp], texts: Read) -> None:
    """One forward pass: the states of these texts go to their places in every file."""
    import torch

    rows = [texts.text(int(i)) for i in batch]
    padded, mask = np.zeros((2, len(rows), max(map(len, rows))), np.int64)
    for row, ids in enumerate(rows):
        padded[row, : len(ids)], mask[row, : len(ids)] = ids, 1
    body = reader.model.base_model  # without a language model's predictions, which are wider than its states
    device = next(body.parameters()).device
    with torch.inference_mode():
        given = (torch.as_tensor(x, device=device) for x in (padded, mask))
        named = dict(zip(("input_ids", "attention_mask"), given, strict=True))
        states = body(**named, output_hidden_states=True).hidden_states
    for layer, file in files.items():
        for row, i in enumerate(batch):
            first, last = int(texts.places[i]), len(rows[row])
            count = int(texts.places[i + 1]) - first
            try:
                file.write(first, states[layer][row, last - count : last])
            except NotANumber as error:
                raise NotANumber(f"layer {layer}: {error}") from None


# ---------------------------------------------------------------------- what is there already


def _file(folder: Path, layer: int) -> Path:
    return folder / f"layer-{layer:02d}" / "tokens.safetensors"


def _layers(layers: Iterable[int], count: int) -> list[int]:
    wanted = [layers] if isinstance(layers, int) else list(layers)
    if not wanted or not all(-count - 1 <= layer <= count for layer in wanted):
        raise ValueError(
            f"layers are {wanted}. Pass numbers from 0 (embeddings) to {count}, or from the end."
        )
    return sorted({int(layer) % (count + 1) for layer in wanted})


def _weights_mark(reader: Reader) -> str:
    """A mark of the weights: two models of one name are told apart by a few numbers of every array."""
    mark = hashlib.sha256()
    for weight in reader.model.parameters():
        few = weight.detach().flatten()[:: max(1, weight.numel() // 8)][:8]
        mark.update(few.double().cpu().numpy().tobytes())
    return mark.hexdigest()


def _finished(folder: Path, job: dict[str, Any]) -> bool:
    if not (folder / ABOUT).is_file():
        return False
    _check_same(folder, json.loads((folder / ABOUT).read_text(encoding="utf8")), job)
    return True


def _noted(folder: Path, job: dict[str, Any]) -> int:
    """How many batches an interrupted call has written."""
    files = (_file(folder, layer) for layer in job["layers"])
    if not (folder / PROGRESS).is_file() or not all(f.is_file() or unfinished(f).is_file() for f in files):
        return 0
    noted = json.loads((folder / PROGRESS).read_text(encoding="utf8"))
    _check_same(folder, noted, job)
    return int(noted["done"])


def _check_same(folder: Path, there: dict[str, Any], job: dict[str, Any]) -> None:
    other = [name for name, value in job.items() if there.get(name) != value]
    if other:
        words = {"ids": "texts"}
        what = ", ".join(words.get(name, name) for name in other)
        raise ValueError(
            f"{folder} holds activations of another call (its {what}). Pass another folder as out."
        )


def _note(folder: Path, job: dict[str, Any], files: dict[int, TokenFile], done: int) -> None:
    for file in files.values():  # first the numbers, then the note that they are there
        file.flush()
    _put(folder / PROGRESS, job | {"done": done})


def _put(file: Path, what: dict[str, Any]) -> None:
    with replacing(file) as part:
        part.write_text(json.dumps(what, ensure_ascii=False), encoding="utf8")
