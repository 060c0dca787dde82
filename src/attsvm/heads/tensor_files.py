"""A .safetensors file of tokens that is filled in any order: its size is known beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers.archives import tensor_header
from attsvm.numbers.atomic_write import named, naming_disk_errors, to_disk

DTYPES = {"float16": ("F16", 2), "bfloat16": ("BF16", 2), "float32": ("F32", 4)}
"""The format's name of each type, and its bytes."""


class NotANumber(ValueError):
    """A hidden state is not finite in the type it is to be stored in."""


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
        named(self.part_path, self.path)


def unfinished(path: Path) -> Path:
    """The name of a file that is being written."""
    return path.with_name(f"{path.name}.part")
