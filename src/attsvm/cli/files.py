"""Problems in files, .npz or .safetensors: keys, and any of queries, labels, mask, values, selected, v."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray

from attsvm.bfloat16 import decoded
from attsvm.cli.app import errors, stop
from attsvm.path import Path
from attsvm.selection import TiedScores, best_tokens
from attsvm.tokens import Tokens

TOKENS = ("keys", "queries", "labels", "mask", "values")
WANTED = (*TOKENS, "selected", "v", "path_W", "W", "multipliers")


@dataclass(frozen=True)
class Problem:
    """The tokens of a file, and what else it says: which tokens are selected, the head v."""

    file: File
    tokens: Tokens
    selected: NDArray[Any] | None
    v: NDArray[Any] | None

    def head(self) -> NDArray[Any]:
        """The head v, which scores the tokens."""
        if self.v is None:
            raise ValueError(
                f"{self.file} has no array 'v', the head that scores tokens. Add it to the file."
            )
        return self.v

    def choose(self, words: str | None) -> NDArray[Any]:
        """The selection asked for: best, first, file, or token indices such as 0,2,1.

        Without words: what the file selects, else the best tokens under its head.
        """
        if words == "first":
            return np.argmax(self.tokens.mask, axis=-1)
        if words == "best" or (words is None and self.selected is None and self.v is not None):
            return best_tokens(self.tokens, self.head())
        if words in (None, "file"):
            if self.selected is None:
                raise ValueError(
                    f"{self.file} says not which tokens win. Pass --select best, first or 0,2,1."
                )
            return self.selected
        try:
            indices = np.array([int(word) for word in str(words).split(",")])
        except ValueError:
            raise ValueError(f"no selection {words!r}. Pass best, first, file, or indices: 0,2,1.") from None
        return np.full(self.tokens.n, indices[0]) if indices.size == 1 else indices


def read_problem(file: File) -> Problem:
    """Read tokens, selection and head; a saved path selects the tokens it attends to."""
    arrays = read_arrays(file)
    if "keys" not in arrays:
        raise ValueError(f"{file} has no array 'keys'. Add the tokens under that name, shape (n, T, d).")
    dtype = np.float32 if arrays["keys"].dtype == np.float32 else np.float64
    found: dict[str, Any] = {name: arrays[name] for name in TOKENS if name in arrays}
    selected = arrays.get("selected")
    if selected is None and "path_W" in arrays:
        selected = Path.load(file).selected
    if selected is not None and selected.ndim > 1 and np.isin(selected, (0, 1)).all():
        selected = selected.astype(bool)  # safetensors of other tools may hold 0 and 1
    return Problem(file, Tokens(**found, dtype=dtype), selected, arrays.get("v"))


def read_arrays(file: File) -> dict[str, NDArray[Any]]:
    """The arrays of the file that we know, by name."""
    if not file.is_file():
        raise ValueError(f"no file {file}. Pass an .npz or .safetensors file.")
    read = _safetensors if file.suffix == ".safetensors" else _npz
    try:
        return read(file)
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # zip, pickle and header errors of all kinds: the file is not what it says
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{file} cannot be read: {reason}. Pass an .npz or .safetensors file.") from None


def _npz(file: File) -> dict[str, NDArray[Any]]:
    if not is_zipfile(file):
        raise ValueError("it is not a zip archive of arrays")
    with np.load(file, allow_pickle=False) as data:
        return {name: data[name] for name in data if name in WANTED}


def _safetensors(file: File) -> dict[str, NDArray[Any]]:
    try:
        from safetensors import deserialize
    except ImportError:
        raise ImportError(
            "reading .safetensors needs the package safetensors: pip install safetensors"
        ) from None
    entries = deserialize(file.read_bytes())  # the package's own arrays have no bfloat16
    return {name: decoded(entry["dtype"], entry["data"]).reshape(entry["shape"]) for name, entry in entries}


def check_folder(out: File | None) -> None:
    """Refuse an output file in a folder that does not exist before the work, not after it."""
    if out is not None and not out.absolute().parent.is_dir():
        raise ValueError(f"no folder {out.parent} to write {out.name} to. Make it first.")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End with one line on stderr where input is bad; say tied scores once, without code."""
    with warnings.catch_warnings(record=True, action="always", category=TiedScores) as ties:
        try:
            yield
        except (ValueError, TypeError, ImportError, OSError) as error:
            stop(error)
        except MemoryError:
            stop("not enough memory for this problem. Pass fewer examples, or float32 arrays.")
        finally:
            for tie in ties:
                errors.print(f"note: {tie.message}", markup=False, soft_wrap=True)
