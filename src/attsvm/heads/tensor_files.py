"""A .safetensors file of tokens that is filled in any order: its size is known before its numbers are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.replacing import named, to_disk

DTYPES = {"float16": ("F16", 2), "bfloat16": ("BF16", 2), "float32": ("F32", 4)}
"""The format's name of each type, and its bytes."""

ALIGNED = 64


class NotANumber(ValueError):
    """A hidden state is not finite in the type it is to be stored in."""


class TokenFile:
    """tokens (N, d), offsets (n + 1,) and ids (N,) of n sequences in one file.

    Until it is finished the file has `.part` at the end of its name. fresh: begin anew.
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
        self.path, self.part, self.dtype = path, unfinished(path), dtype
        kind, size = DTYPES[dtype]
        self.row = width * size
        body = len(ids) * self.row
        # tokens first, so that their place is that of the body
        places = {
            "tokens": (kind, [len(ids), width], body),
            "offsets": ("I64", [len(offsets)], offsets.nbytes),
        }
        header = _header(places | {"ids": ("I32", [len(ids)], ids.nbytes)}, names)
        self.start = len(header)
        if fresh:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self.part.open("wb") as file:
                file.write(header)
                file.seek(self.start + body)
                file.write(offsets.astype("<i8").tobytes() + ids.astype("<i4").tobytes())
        elif path.is_file() and not self.part.is_file():
            path.replace(self.part)  # stopped between finishing two files
        self.file = self.part.open("r+b")

    def write(self, first: int, states: Any) -> None:
        """Put a torch tensor (m, d) to the rows of tokens from `first` on."""
        import torch

        stored = states.detach().to(getattr(torch, self.dtype))
        if not bool(torch.isfinite(stored).all()):
            largest = float(states.abs().max())
            if not np.isfinite(largest):
                raise NotANumber("the model itself gives a state that is not finite. Run it in float32.")
            wider = "Pass dtype='bfloat16' or 'float32'."
            raise NotANumber(f"a state of {largest:.3g} is not a finite {self.dtype}. {wider}")
        self.file.seek(self.start + first * self.row)
        # bfloat16 has no array of its own in NumPy: its bits travel as int16
        bits = stored.view(torch.int16) if self.dtype == "bfloat16" else stored
        self.file.write(bits.cpu().contiguous().numpy().tobytes())

    def flush(self) -> None:
        """What was written is on the disk."""
        self.file.flush()
        to_disk(self.part)

    def close(self) -> None:
        self.file.close()

    def finish(self) -> None:
        """Give the file its name."""
        self.close()
        named(self.part, self.path)


def unfinished(path: Path) -> Path:
    """The name of a file that is being written."""
    return path.with_name(f"{path.name}.part")


def _header(places: dict[str, tuple[str, list[int], int]], names: dict[str, str]) -> bytes:
    """The format's header: its length, then names, types, shapes and places; the body begins aligned."""
    entries: dict[str, Any] = {"__metadata__": names}
    at = 0
    for name, (kind, shape, size) in places.items():
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode("utf8")
    text += b" " * (-(8 + len(text)) % ALIGNED)
    return len(text).to_bytes(8, "little") + text
