"""From a name, a folder, a GGUF file or a loaded model to a model that can read texts."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLError
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

from attsvm.extras import missing
from attsvm.heads.texts import LENGTH, CutTexts, Texts, cut_in_words
from attsvm.pieces import readable, spelling

PATIENCE = 5.0
"""Seconds in which the hub must have answered."""


class UnsupportedModel(ValueError):
    """The model's attention cannot be written as softmax(x_tᵀ W z)."""


@dataclass(frozen=True, eq=False, repr=False)
class Reader:
    """A Hugging Face model with its tokenizer."""

    model: Any
    tokenizer: Any
    name: str

    @property
    def generates(self) -> bool:
        """Whether the model predicts the next token."""
        return bool(getattr(self.model, "lm_head", None) is not None)

    @property
    def longest(self) -> int:
        """Most tokens of a text that the model takes, by its tokenizer and its positions."""
        limits = (
            getattr(self.tokenizer, "model_max_length", None),
            getattr(self.model.config, "max_position_embeddings", None),
        )
        return min((limit for limit in limits if limit), default=sys.maxsize)

    def tokenise(self, texts: Sequence[str], length: int = LENGTH) -> Texts:
        """The texts as token ids, padded on the right: of each at most `length` tokens are read.

        Warns CutTexts where a text is longer, or longer than the model takes.
        """
        texts = self.checked(texts, length)
        self.tokenizer.padding_side = "right"  # the left would shift rotary and learned positions
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        whole = np.array([len(ids) for ids in self.coded(texts)])
        most = min(length, self.longest)
        coded = self.tokenizer(texts, padding=True, truncation=True, max_length=most)
        ids, mask = np.array(coded["input_ids"]), np.array(coded["attention_mask"], bool)
        words = [[-1 if w is None else w for w in coded.word_ids(i)] for i in range(len(texts))]
        special = np.isin(ids, self.tokenizer.all_special_ids)
        read = Texts(ids, mask, np.array(words), special, self._pieces(ids), whole)
        if read.cut:
            warnings.warn(cut_in_words(read.cut, len(read), length), CutTexts, stacklevel=3)
        return read

    def coded(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, uncut; one without a token beside special ones is refused."""
        rows: list[list[int]] = self.tokenizer(list(texts), verbose=False)["input_ids"]
        special = {*self.tokenizer.all_special_ids} - {getattr(self.tokenizer, "unk_token_id", None)}
        for text, ids in zip(texts, rows, strict=True):
            if special.issuperset(ids):
                raise ValueError(
                    f"{text[:60]!r} has no token beside special ones: the tokenizer reads {ids}. "
                    "Leave this text out."
                )
        return rows

    @staticmethod
    def checked(texts: Sequence[str], length: int) -> list[str]:
        """The texts as a list, if they can be read."""
        if length < 2:
            raise ValueError(f"length is {length}. Pass the number of tokens to read of a text, at least 2.")
        if isinstance(texts, str):
            raise ValueError("texts is one string. Pass a list of strings.")
        texts = list(texts)
        for i, text in enumerate(texts):
            if not isinstance(text, str) or not text.strip():
                raise ValueError(
                    f"texts must be a list of strings, none of them empty: text {i} is {text!r}."
                )
        if not texts:
            raise ValueError("texts must be a list of strings, none of them empty: there is none.")
        return texts

    def _pieces(self, ids: NDArray[np.intp]) -> list[list[str]]:
        """Readable pieces: "##ing" continues a word, a leading space starts one."""
        words = self.vocabulary(ids)
        return readable([words[i] for i in row] for row in ids.tolist())

    def vocabulary(self, ids: NDArray[np.signedinteger]) -> dict[int, str]:
        """The tokens as the tokenizer writes them, where `pieces` can read that; else each decoded alone."""
        used = np.unique(ids).tolist()
        written = dict(zip(used, self.tokenizer.convert_ids_to_tokens(used), strict=True))
        if spelling(written.values()) is not None:
            return written
        return {i: self.tokenizer.decode([i]) for i in used}

    def __repr__(self) -> str:
        config = self.model.config
        size = f"{config.num_hidden_layers} layers of {config.num_attention_heads} heads"
        return f"Reader({self.name}: {type(self.model).__name__}, {size})"


def load(source: Any, tokenizer: Any = None) -> Reader:
    """A reader from a hub name, a folder, a `.gguf` file, or a loaded model with its tokenizer."""
    if isinstance(source, Reader):
        return source
    transformers = _transformers()
    if not isinstance(source, str | Path):
        if tokenizer is None:
            raise ValueError("a loaded model needs its tokenizer: pass load(model, tokenizer).")
        return Reader(source.eval(), tokenizer, type(source).__name__)
    place = Path(source)
    options: dict[str, Any] = {}
    quantised = place.suffix == ".gguf"
    if quantised:
        if not place.is_file():
            raise ValueError(f"there is no file {place}. Pass a hub name, a folder or a .gguf file.")
        options, where = {"gguf_file": place.name}, str(place.parent)
    else:
        where = str(source)
        if not place.is_dir() and not _hub_answers():
            options = {"local_files_only": True}
    try:
        tokenizer = tokenizer or transformers.AutoTokenizer.from_pretrained(where, **options)
        config = transformers.AutoConfig.from_pretrained(where, **options)
        kinds = getattr(config, "architectures", None) or []
        causal = quantised or any(kind.endswith(("ForCausalLM", "LMHeadModel")) for kind in kinds)
        kind = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
        with _quiet_off_terminals(transformers):
            model = kind.from_pretrained(where, **options)
    except (OSError, ValueError) as error:
        raise ValueError(_why_not(source, error, "local_files_only" in options)) from error
    # GGUF weights are dequantised to float32 on loading, and refuse to be cast again.
    model = model if quantised else model.float()
    return Reader(model.eval(), tokenizer, place.stem if quantised else "/".join(place.parts[-2:]))


def _hub_answers() -> bool:
    """Whether the hub says anything within PATIENCE: its own library would ask again for a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=PATIENCE).close()
    except HTTPError:
        return True
    except OSError as error:  # a certificate that we do not know is an answer, too
        return isinstance(getattr(error, "reason", None), SSLError)
    return True


def _why_not(source: Any, error: Exception, alone: bool) -> str:
    """One line on a model that cannot be loaded; alone: the local cache was all there is."""
    if not alone or not isinstance(error, OSError):
        reason = str(error).strip().splitlines()[0].rstrip(".:")
        return f"cannot load {source}: {reason}. Pass a hub name, a folder or a .gguf file."
    from huggingface_hub import constants

    silent = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} does not answer"
    return (
        f"cannot load {source}: {silent}, there is no such folder, and no whole model of this name in "
        f"{constants.HF_HUB_CACHE}. Pass a folder or a .gguf file, or fill that cache where there is a "
        f"network: hf download {source}."
    )


@contextmanager
def _quiet_off_terminals(transformers: Any) -> Iterator[None]:
    """Without transformers' progress bars where nobody watches; the user's setting comes back."""
    bars = transformers.utils.logging
    hidden = bars.is_progress_bar_enabled() and not sys.stderr.isatty()
    if hidden:
        bars.disable_progress_bar()
    try:
        yield
    finally:
        if hidden:
            bars.enable_progress_bar()


def _transformers() -> Any:
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError as error:
        raise missing("attsvm.heads needs torch and transformers", "hf") from error
    return transformers
