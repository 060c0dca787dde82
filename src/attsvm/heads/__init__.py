"""Real transformer heads: a Hugging Face model and texts → Tokens per head; audit; surgery (extra `hf`)."""

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
