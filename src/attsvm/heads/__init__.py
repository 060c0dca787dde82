"""The heads of real transformers: a Hugging Face model and texts → `Tokens` per head (extra `hf`).

`model.py` loads a model, `texts.py` holds what it reads. `record.py` runs it layer by layer within a memory
bound, its attention some queries at a time (`blocks.py`); `projections.py` reads a module's weights.
`extract.py` yields one `Head` (`head.py`) after the other: tokens, a weight, an attention. The audit
(`audit.py`) describes every head: what it attends to (`detectors.py`), its margins (`margins.py`), examples
for the page (`examples.py`, `page.py`). `surgery.py` replaces or silences heads. `activations.py` writes
hidden states for probes, in the format of `tensor_files.py`. A new architecture is a name in
`_support/architectures.py`.
"""

from attsvm.heads.activations import Activations, activations
from attsvm.heads.extract import extract
from attsvm.heads.head import Head
from attsvm.heads.model import UnsupportedModel, load
from attsvm.heads.surgery import replace_head
from attsvm.heads.texts import CutTexts

__all__ = [
    "Activations",
    "CutTexts",
    "Head",
    "UnsupportedModel",
    "activations",
    "extract",
    "load",
    "replace_head",
]
