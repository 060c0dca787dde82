"""The attention heads of real transformers: a Hugging Face model and texts → `Tokens` per head (extra `hf`).

A head here is an attention head of a layer, and `head` its number in the layer. `model.py` loads a model,
`texts.py` holds what it reads. `record.py` runs the model layer by layer within a memory bound and yields one
`Head` (`head.py`) after the other: tokens, a weight, an attention. `attention.py` computes a model's own
attention, some queries at a time, and reads the weights before it. The audit (`audit.py`) describes every
head: what it attends to (`detectors.py`), its margins, and examples for the page (`page.py`). `surgery.py`
replaces or silences heads. `activations.py` writes hidden states for probes. A new architecture is a name in
`_support/architectures.py`.
"""

from attsvm.heads.activations import Activations, activations
from attsvm.heads.head import Head
from attsvm.heads.model import UnsupportedModel, load
from attsvm.heads.record import extract
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
