"""Read problems from files, check the files to write, and print errors of input in one line."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm._support.options import BadOption
from attsvm.cli.app import USAGE, stop, warn
from attsvm.data.path import Path
from attsvm.data.selection import TiedScores, best_tokens
from attsvm.data.tokens import Tokens
from attsvm.numbers.files import naming, read_arrays


@dataclass(frozen=True)
class ProblemFile:
    """The tokens, the selection and the head v of a file."""

    file: File
    tokens: Tokens
    selected: NDArray[Any] | None
    v: NDArray[Any] | None

    def head(self) -> NDArray[Any]:
        """The head v, which scores the tokens."""
        if self.v is None:
            raise ValueError(f"{self.file}: no array 'v', the head that scores tokens. Add it to the file.")
        return self.v

    def choose(self, option: str | None) -> NDArray[Any]:
        """The selection of the option --select: best, first, file, or token indices such as 0,2,1.

        Without the option: the selection of the file, else the best tokens under its head.
        """
        if option == "first":
            return np.argmax(self.tokens.mask, axis=-1)
        if option == "best" or (option is None and self.selected is None and self.v is not None):
            return best_tokens(self.tokens, self.head())
        if option in (None, "file"):
            if self.selected is None:
                raise ValueError(
                    f"{self.file} does not say which tokens win. Pass --select best, first or 0,2,1."
                )
            return self.selected
        try:
            indices = np.array([int(index) for index in str(option).split(",")])
        except ValueError:
            raise BadOption(f"no selection {option!r}. Pass best, first, file, or indices: 0,2,1.") from None
        return np.full(self.tokens.n, indices[0]) if indices.size == 1 else indices


def read_problem(file: File, *, in_place: bool = False) -> ProblemFile:
    """Read tokens, selection and head; a saved path selects the tokens it attends to, a solution its own.

    in_place: large keys and values stay in the file, see `read_arrays`.
    """
    arrays = read_arrays(file, in_place=in_place)
    with naming(file):
        tokens = Tokens.from_arrays(arrays)
    selected = arrays.get("selected")
    if selected is None and "path_W" in arrays:
        selected = Path.load(file).selected
    # Files of other tools may store a boolean per token as 0 or 1. One number per example is an index.
    if selected is not None and selected.ndim > 1 and selected.shape != tokens.labels.shape:
        selected = selected.astype(bool) if np.isin(selected, (0, 1)).all() else selected
    return ProblemFile(file, tokens, selected, arrays.get("v"))


def out_file(out: File, *endings: str, source: File | None = None) -> File:
    """The file to write. Its folder and the ending of its name are checked before the work, not after it.

    A name without an ending gets the first of the endings. source: a file that must not be replaced.
    """
    if out.is_dir():
        raise BadOption(f"--out is the folder {out}. Pass a file in it, such as {out / 'out'}{endings[0]}.")
    target = out if out.suffix else out.with_name(f"{out.name}{endings[0]}")
    if target.suffix not in endings:
        raise BadOption(
            f"{out} ends in {out.suffix}, expected {' or '.join(endings)}. Pass {out}{endings[0]}."
        )
    check_folder(target)
    if source is not None and target.exists() and source.exists() and target.samefile(source):
        raise BadOption(f"--out is {source} itself, whose arrays it would replace. Pass another name.")
    return target


def check_folder(out: File) -> None:
    """Refuse to write into a folder that does not exist."""
    if not out.absolute().parent.is_dir():
        raise ValueError(f"no folder {out.parent} to write {out.name} to. Make it first.")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """After an error of input end with one line on stderr; print warnings of tied scores as notes."""
    with warnings.catch_warnings(record=True, action="always", category=TiedScores) as ties:
        try:
            yield
        except BadOption as error:
            stop(error, USAGE)
        except (ValueError, TypeError, ImportError, OSError) as error:
            stop(error)
        except MemoryError:
            stop("not enough memory for this problem. Pass fewer examples, or float32 arrays.")
        finally:
            for tie in ties:
                warn(f"note: {tie.message}")
