"""The hidden states of a model on texts, written to disk: one file of tokens and offsets per layer."""

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

from attsvm._support.progress import ProgressLine
from attsvm._support.token_text import PieceToBytes, decode_pieces, piece_to_bytes
from attsvm.heads.model import Reader, depends_on_padding, load, padded_inputs
from attsvm.heads.texts import LENGTH, Cut, CutTexts, cut_message, cuts
from attsvm.numbers.archives import tensor_header
from attsvm.numbers.atomic_write import naming_disk_errors, rename_durably, to_disk, write_text

DTYPES = {"float16": ("F16", 2), "bfloat16": ("BF16", 2), "float32": ("F32", 4)}
"""The format's name of each type, and its bytes."""

ABOUT, PROGRESS = "activations.json", "progress.json"

SAVED_EVERY = 2.0
"""Seconds between two checkpoints: after a kill at most so much is computed again."""

Ids = NDArray[np.int32]
Offsets = NDArray[np.int64]


class NotANumber(ValueError):
    """A hidden state is not finite in the type it is to be stored in."""


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
        """The activations that `activations` wrote into a folder."""
        path = Path(folder)
        if not (path / ABOUT).is_file():
            raise FileNotFoundError(
                f"{path} holds no finished activations. Write them: activations(…, out=…)."
            )
        about = _read_json(path / ABOUT)
        files = {layer: _file(path, layer) for layer in about["layers"]}
        vocabulary = {int(k): piece for k, piece in about["vocabulary"].items()}
        cut = tuple(Cut(**entry) for entry in about["cut"])
        return cls(path, about["model"], files, about["texts"], about["tokens"], cut, vocabulary)

    def pieces(self, text: int) -> list[str]:
        """The tokens of a text as readable pieces, one for each."""
        offsets, ids = self._offsets_and_ids
        spellings = [self.vocabulary[int(i)] for i in ids[offsets[text] : offsets[text + 1]]]
        return decode_pieces(spellings, self._piece_to_bytes)

    @cached_property
    def _piece_to_bytes(self) -> PieceToBytes | None:
        return piece_to_bytes(self.vocabulary.values())

    @cached_property
    def _offsets_and_ids(self) -> tuple[Offsets, Ids]:
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
    """Write the hidden states of texts into a folder, batch after batch, and return where they are.

    model: hub name, folder, `.gguf` file, or `load(model, tokenizer)`; it runs on its device, CPU or GPU.
    layers: 0 are the embeddings, k the states after block k, −1 those after the last block (and its norm).
    out: a folder. The same call resumes an interrupted one, and returns at once when all files are finished.
    length: at most so many tokens are read of each text; warns CutTexts where one is longer.
    skip: so many first tokens of each text are read but not stored (the last token always is). None: one
        token of a language model, because this token is a sink whose state may be a thousand times as large
        as others, which ruins the fit of a probe; no token of an encoder.
    batch: padded tokens per forward pass. dtype: float16, bfloat16 or float32.
    Raises NotANumber where a state does not fit the dtype.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}. Pass one of {', '.join(DTYPES)}.")
    reader, folder = load(model), Path(out)
    indices = _layer_indices(layers, reader.model.config.num_hidden_layers)
    skipped = int(reader.generates) if skip is None else int(skip)
    read = _tokenised(reader, texts, length, skipped)
    count = len(read.full_lengths)
    cut = cuts(read.lengths, read.full_lengths)
    if cut:
        warnings.warn(cut_message(cut, count, length), CutTexts, stacklevel=2)
    job: dict[str, Any] = {"model": reader.name, "weights": _weights_digest(reader), "layers": indices}
    job |= {"dtype": dtype, "batch": batch, "skip": skipped}
    job |= {"ids": hashlib.sha256(read.offsets.tobytes() + read.ids.tobytes()).hexdigest()}
    if (folder / ABOUT).is_file():
        _check_same_job(folder, _read_json(folder / ABOUT), job)
        return Activations.open(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _write(reader, folder, job, read)
    sizes = {"texts": count, "tokens": int(read.places[-1]), "length": length}
    contents = {"cut": [vars(entry) for entry in cut], "vocabulary": reader.vocabulary(read.ids)}
    _write_json(folder / ABOUT, job | sizes | contents)
    (folder / PROGRESS).unlink(missing_ok=True)
    return Activations.open(folder)


# ---------------------------------------------------------------------- texts in batches


@dataclass(frozen=True, eq=False)
class TextIds:
    """The token ids of all texts, and the places of the stored tokens, the last ones of each text.

    Text i is ids[offsets[i] : offsets[i + 1]]; its places in the files are places[i] … places[i + 1] − 1.
    full_lengths (n,): tokens of each text before it was cut.
    """

    offsets: Offsets
    ids: Ids
    places: Offsets
    full_lengths: NDArray[np.intp]

    @property
    def lengths(self) -> Offsets:
        """Tokens read of each text (n,)."""
        return np.diff(self.offsets)

    def text(self, i: int) -> Ids:
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    @property
    def stored(self) -> Ids:
        """The ids of the stored tokens."""
        counts = np.diff(self.places).tolist()
        return np.concatenate([self.text(i)[-count:] for i, count in enumerate(counts)])


def _tokenised(reader: Reader, texts: Sequence[str], length: int, skipped: int) -> TextIds:
    """The tokens to read, at most `length` of each text; the first ones, so many, are not stored."""
    texts = reader.checked(texts, length)
    rows, full_lengths, limit = list[list[int]](), list[int](), min(length, reader.longest)
    for start in range(0, len(texts), 1000):
        chunk = list(texts[start : start + 1000])
        ids = reader.token_ids(chunk)
        full_lengths += map(len, ids)
        if max(map(len, ids)) > limit:
            ids = reader.tokenizer(chunk, truncation=True, max_length=limit)["input_ids"]
        rows += ids
    lengths = np.array([len(row) for row in rows])
    offsets, places = (
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        for counts in (lengths, np.maximum(lengths - skipped, 1))
    )
    return TextIds(offsets, np.concatenate(rows).astype(np.int32), places, np.array(full_lengths))


def _batches(lengths: Offsets, tokens: int) -> list[NDArray[np.intp]]:
    """Texts of similar length, at most so many padded tokens in a batch.

    The longest come first: if a batch does not fit into the memory, it is the first one.
    """
    order, batches, start = np.argsort(-lengths, kind="stable"), [], 0
    while start < len(order):
        count = max(1, tokens // int(lengths[order[start]]))
        batches.append(np.sort(order[start : start + count]))
        start += count
    return batches


# ---------------------------------------------------------------------- forward passes


def _write(reader: Reader, folder: Path, job: dict[str, Any], texts: TextIds) -> None:
    """Fill the files of all layers, from the checkpoint of an interrupted call on."""
    lengths = texts.lengths
    shortest = texts.text(int(lengths.argmin()))
    one_by_one = depends_on_padding(reader, shortest, int(lengths.max()))
    batches = _batches(lengths, 0 if one_by_one else job["batch"])
    written, saved_at = _written_batches(folder, job), time.monotonic()
    width, ids = reader.model.config.hidden_size, texts.stored
    files = {}
    for layer in job["layers"]:
        names = {"format": "attsvm activations 1", "model": job["model"], "layer": str(layer)}
        files[layer] = TokenFile(
            _file(folder, layer), width, job["dtype"], texts.places, ids, names, fresh=not written
        )
    tokens = np.cumsum([lengths[batch].sum() for batch in batches])
    try:
        with ProgressLine(total=float(tokens[-1])) as line:
            for number in range(written, len(batches)):
                _write_batch(reader, files, batches[number], texts)
                progress = f"{job['model']}: {tokens[number]:,} of {tokens[-1]:,} tokens"
                line.show(progress, float(tokens[number]))
                if time.monotonic() - saved_at > SAVED_EVERY:
                    for file in files.values():  # the numbers must be on the disk before the record of them
                        file.flush()
                    _write_json(folder / PROGRESS, job | {"done": number + 1})
                    saved_at = time.monotonic()
    except BaseException:
        for file in files.values():
            file.close()
        raise
    for file in files.values():
        file.finish()


def _write_batch(
    reader: Reader, files: dict[int, TokenFile], batch: NDArray[np.intp], texts: TextIds
) -> None:
    """One forward pass: write the states of these texts to their places in every file."""
    import torch

    rows = [texts.text(int(i)) for i in batch]
    inputs = padded_inputs(reader, rows, max(map(len, rows)))
    with torch.inference_mode():
        states = reader.body(**inputs, output_hidden_states=True).hidden_states
    for layer, file in files.items():
        for row, i in enumerate(batch):
            start, length = int(texts.places[i]), len(rows[row])
            count = int(texts.places[i + 1]) - start
            try:
                file.write(start, states[layer][row, length - count : length])
            except NotANumber as error:
                raise NotANumber(f"layer {layer}: {error}") from None


# ---------------------------------------------------------------------- the file of a layer


class TokenFile:
    """tokens (N, d), offsets (n + 1,) and ids (N,) of n sequences in one file.

    The name of an unfinished file ends with `.part`. fresh: overwrite an unfinished file.
    """

    def __init__(
        self,
        path: Path,
        width: int,
        dtype: str,
        offsets: NDArray[np.int64],
        ids: NDArray[np.int32],
        names: dict[str, str],
        *,
        fresh: bool,
    ) -> None:
        self.path, self.part_path, self.dtype = path, unfinished(path), dtype
        format_name, size = DTYPES[dtype]
        self.row_bytes = width * size
        token_bytes = len(ids) * self.row_bytes
        # The tokens come first, so that they begin where the header ends.
        arrays = {
            "tokens": (format_name, [len(ids), width], token_bytes),
            "offsets": ("I64", [len(offsets)], offsets.nbytes),
        }
        header = tensor_header(arrays | {"ids": ("I32", [len(ids)], ids.nbytes)}, names)
        self.start = len(header)
        if fresh:
            path.parent.mkdir(parents=True, exist_ok=True)
            with naming_disk_errors(path, self.part_path), self.part_path.open("wb") as file:
                file.write(header)
                file.seek(self.start + token_bytes)
                file.write(offsets.astype("<i8").tobytes() + ids.astype("<i4").tobytes())
        elif path.is_file() and not self.part_path.is_file():
            path.replace(self.part_path)  # the earlier call stopped between finishing two files
        self.file = self.part_path.open("r+b")

    def write(self, start: int, states: Any) -> None:
        """Write a torch tensor (m, d) to the rows start … start + m − 1 of the tokens."""
        import torch

        stored = states.detach().to(getattr(torch, self.dtype))
        if not bool(torch.isfinite(stored).all()):
            largest = float(states.abs().max())
            if not np.isfinite(largest):
                raise NotANumber("the model itself gives a state that is not finite. Run it in float32.")
            remedy = "Pass dtype='bfloat16' or 'float32'."
            raise NotANumber(f"a state of {largest:.3g} is not a finite {self.dtype}. {remedy}")
        self.file.seek(self.start + start * self.row_bytes)
        # NumPy has no bfloat16: its bits are written as int16.
        bits = stored.view(torch.int16) if self.dtype == "bfloat16" else stored
        with naming_disk_errors(self.path, self.part_path):
            self.file.write(bits.cpu().contiguous().numpy().tobytes())

    def flush(self) -> None:
        """Force what was written to the disk."""
        with naming_disk_errors(self.path, self.part_path):
            self.file.flush()
            to_disk(self.part_path)

    def close(self) -> None:
        self.file.close()

    def finish(self) -> None:
        """Close the file and give it its final name."""
        self.close()
        rename_durably(self.part_path, self.path)


def unfinished(path: Path) -> Path:
    """The name of a file that is being written."""
    return path.with_name(f"{path.name}.part")


# ---------------------------------------------------------------------- files of an earlier call


def _file(folder: Path, layer: int) -> Path:
    return folder / f"layer-{layer:02d}" / "tokens.safetensors"


def _layer_indices(layers: Iterable[int], count: int) -> list[int]:
    requested = [layers] if isinstance(layers, int) else list(layers)
    if not requested or not all(-count - 1 <= layer <= count for layer in requested):
        raise ValueError(
            f"layers are {requested}. Pass numbers from 0 (embeddings) to {count}, or from the end."
        )
    return sorted({int(layer) % (count + 1) for layer in requested})


def _weights_digest(reader: Reader) -> str:
    """A digest of a few numbers of every array, which distinguishes two models of one name."""
    digest = hashlib.sha256()
    for weight in reader.model.parameters():
        samples = weight.detach().flatten()[:: max(1, weight.numel() // 8)][:8]
        digest.update(samples.double().cpu().numpy().tobytes())
    return digest.hexdigest()


def _written_batches(folder: Path, job: dict[str, Any]) -> int:
    """How many batches an interrupted call has written."""
    files = (_file(folder, layer) for layer in job["layers"])
    if not (folder / PROGRESS).is_file() or not all(f.is_file() or unfinished(f).is_file() for f in files):
        return 0
    progress = _read_json(folder / PROGRESS)
    _check_same_job(folder, progress, job)
    return int(progress["done"])


def _check_same_job(folder: Path, stored: dict[str, Any], job: dict[str, Any]) -> None:
    different = [name for name, value in job.items() if stored.get(name) != value]
    if different:
        names = ", ".join({"ids": "texts"}.get(name, name) for name in different)
        raise ValueError(
            f"{folder} holds activations of another call (its {names}). Pass another folder as out."
        )


def _write_json(file: Path, record: dict[str, Any]) -> None:
    write_text(file, json.dumps(record, ensure_ascii=False))


def _read_json(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf8")))
