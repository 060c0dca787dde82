"""From a name, a folder, a GGUF file or a loaded model to a model that can read texts."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from ssl import SSLError
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

from attsvm._support.optional_dependencies import missing
from attsvm._support.token_text import piece_to_bytes, readable
from attsvm.heads.texts import LENGTH, CutTexts, Texts, cut_message

HUB_TIMEOUT = 5.0
"""Seconds to wait for an answer of the hub."""


class UnsupportedModel(ValueError):
    """The model's attention cannot be written as softmax(x_tᵀ W z)."""


@dataclass(frozen=True, eq=False, repr=False)
class Reader:
    """A Hugging Face model with its tokenizer."""

    model: Any
    tokenizer: Any
    name: str

    @property
    def body(self) -> Any:
        """The model without a language model's predictions, which are wider than its states."""
        return self.model.base_model

    @property
    def generates(self) -> bool:
        """Whether the model predicts the next token."""
        return bool(getattr(self.model, "lm_head", None) is not None)

    @property
    def longest(self) -> int:
        """The largest number of tokens that the model takes, by its tokenizer and its positions."""
        limits = (
            getattr(self.tokenizer, "model_max_length", None),
            getattr(self.model.config, "max_position_embeddings", None),
        )
        return min((limit for limit in limits if limit), default=sys.maxsize)

    def tokenise(self, texts: Sequence[str], length: int = LENGTH) -> Texts:
        """The texts as token ids, padded on the right: at most `length` tokens of each.

        Warns CutTexts where a text is longer, or longer than the model takes.
        """
        texts = self.checked(texts, length)
        self.tokenizer.padding_side = "right"  # padding on the left would shift the positions
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        full_lengths = np.array([len(ids) for ids in self.token_ids(texts)])
        limit = min(length, self.longest)
        encoding = self.tokenizer(texts, padding=True, truncation=True, max_length=limit)
        ids, mask = np.array(encoding["input_ids"]), np.array(encoding["attention_mask"], bool)
        word = [[-1 if w is None else w for w in encoding.word_ids(i)] for i in range(len(texts))]
        special = np.isin(ids, self.tokenizer.all_special_ids)
        vocabulary = self.vocabulary(ids)
        pieces = readable([vocabulary[i] for i in row] for row in ids.tolist())
        tokenised = Texts(ids, mask, np.array(word), special, pieces, full_lengths)
        if tokenised.cut:
            warnings.warn(cut_message(tokenised.cut, len(tokenised), length), CutTexts, stacklevel=3)
        return tokenised

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, uncut; a text of special tokens only is refused."""
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

    def vocabulary(self, ids: NDArray[np.signedinteger]) -> dict[int, str]:
        """The tokenizer's spelling of each token where it can be decoded, else each token decoded alone."""
        unique = np.unique(ids).tolist()
        spellings = dict(zip(unique, self.tokenizer.convert_ids_to_tokens(unique), strict=True))
        if piece_to_bytes(spellings.values()) is not None:
            return spellings
        return {i: self.tokenizer.decode([i]) for i in unique}

    def __repr__(self) -> str:
        config = self.model.config
        size = f"{config.num_hidden_layers} layers of {config.num_attention_heads} heads"
        return f"Reader({self.name}: {type(self.model).__name__}, {size})"


def load(source: Any, tokenizer: Any = None, *, trust_remote_code: bool = False) -> Reader:
    """A reader from a hub name, a folder, a `.gguf` file, or a loaded model with its tokenizer.

    trust_remote_code: run the Python files that come with the model, if there are any. They may do anything.
    """
    if isinstance(source, Reader):
        return source
    transformers = _transformers()
    if not isinstance(source, str | Path):
        if tokenizer is None:
            raise ValueError("a loaded model needs its tokenizer: pass load(model, tokenizer).")
        return Reader(source.eval(), tokenizer, type(source).__name__)
    path = Path(source)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}  # None would ask on stdin
    quantised = path.suffix == ".gguf"
    if quantised:
        if not path.is_file():
            raise ValueError(f"there is no file {path}. Pass a hub name, a folder or a .gguf file.")
        options |= {"gguf_file": path.name}
        location = str(path.parent)
    else:
        location = str(source)
        if not path.is_dir() and not _hub_answers():
            options |= {"local_files_only": True}
    try:
        config = transformers.AutoConfig.from_pretrained(location, **options)
        tokenizer = tokenizer or transformers.AutoTokenizer.from_pretrained(location, **options)
        names = getattr(config, "architectures", None) or []
        causal = quantised or any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names)
        auto_class = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
        with _no_progress_bars_in_files(transformers):
            model = auto_class.from_pretrained(location, **options)
    except (OSError, ValueError) as error:
        raise ValueError(_load_error(source, error, "local_files_only" in options)) from error
    # Loading dequantises GGUF weights to float32; such a model refuses another cast.
    model = model if quantised else model.float()
    return Reader(model.eval(), tokenizer, path.stem if quantised else "/".join(path.parts[-2:]))


def depends_on_padding(reader: Reader, ids: NDArray[Any], length: int) -> bool:
    """Whether the model's states of a text (T,) change where the text is padded to this length.

    They change where a model convolves over tokens (ConvBERT, Nyströmformer) or mixes all of them. The texts
    of such a model must be read one by one.
    """
    import torch

    if len(ids) >= length or getattr(reader.model.config, "attention_type", None) == "block_sparse":
        return False  # a short text alone would change BigBird's attention for good
    with torch.inference_mode():
        inputs = (padded_inputs(reader, [ids], padded_length) for padded_length in (len(ids), length))
        states = [reader.body(**arguments)[0][0, : len(ids)] for arguments in inputs]
    unpadded, padded = (x.double() for x in states)
    distance = (unpadded - padded).norm(dim=-1) / unpadded.norm(dim=-1).clamp_min(1e-300)
    return not bool(distance.max() <= torch.finfo(states[0].dtype).eps ** 0.5)  # rounding is far below


def padded_inputs(reader: Reader, rows: Sequence[NDArray[Any]], length: int) -> dict[str, Any]:
    """The arguments of a forward pass of texts (T,), padded on the right to this length."""
    import torch

    padded, mask = np.zeros((2, len(rows), length), np.int64)
    for row, ids in enumerate(rows):
        padded[row, : len(ids)], mask[row, : len(ids)] = ids, 1
    device = next(reader.body.parameters()).device
    arrays = {"input_ids": padded, "attention_mask": mask}
    return {name: torch.as_tensor(array, device=device) for name, array in arrays.items()}


def _hub_answers() -> bool:
    """Whether the hub answers within HUB_TIMEOUT; its own library would retry for a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=HUB_TIMEOUT).close()
    except HTTPError:
        return True
    except OSError as error:  # an unknown certificate is an answer, too
        return isinstance(getattr(error, "reason", None), SSLError)
    return True


def _load_error(source: Any, error: Exception, offline: bool) -> str:
    """One line on a model that cannot be loaded; offline: only the local cache was searched."""
    if "trust_remote_code" in str(error):
        remedy = "if you trust it, pass trust_remote_code=True (--trust-remote-code)"
        return f"cannot load {source}: it has Python code of its own, which is not run. Read it; {remedy}."
    if not offline or not isinstance(error, OSError):
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
def _no_progress_bars_in_files(transformers: Any) -> Iterator[None]:
    """Inside, transformers draws progress bars on a terminal only."""
    bars = transformers.utils.logging
    hidden = bars.is_progress_bar_enabled() and not sys.stderr.isatty()
    gguf: Any = import_module("transformers.modeling_gguf_pytorch_utils")
    of_gguf = getattr(gguf, "tqdm", None)  # a bar that the switch does not reach
    if hidden:
        bars.disable_progress_bar()
        if of_gguf is not None:
            gguf.tqdm = partial(of_gguf, disable=True)
    try:
        yield
    finally:
        if hidden:
            bars.enable_progress_bar()
            if of_gguf is not None:
                gguf.tqdm = of_gguf


def _transformers() -> Any:
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError as error:
        raise missing("attsvm.heads needs torch and transformers", "hf") from error
    return transformers
