"""Next-token prediction: corpora, priority graphs and Markov chains → the same Tokens and programs."""
# ruff: noqa: F401 (the static twin of the lazy names)

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Modules load at first use: analysing a corpus needs neither JAX nor the solvers.
_HOME = {
    "Corpus": "corpus",
    "collocations": "sequences",
    "random_corpus": "generators",
    "noisy_corpus": "generators",
    "log2_toy": "generators",
    "random_embeddings": "generators",
    "Priorities": "priorities",
    "Role": "priorities",
    "Unrealisable": "priorities",
    "sentence_tokens": "problems",
    "choice_tokens": "problems",
    "prediction_tokens": "problems",
    "collocation_tokens": "problems",
    "Decoupled": "programs",
    "attention_program": "programs",
    "attention_program_by_query": "programs",
    "graph_program": "programs",
    "graph_program_by_query": "programs",
    "feed_forward_program": "programs",
    "feed_forward_program_by_token": "programs",
    "TwoStages": "two_stage",
    "train_two_stages": "two_stage",
    "train_choice": "two_stage",
    "log_excess": "excess",
    "OneLayer": "model",
    "token_logits": "model",
    "extended_order": "model",
    "extended_pairs": "model",
    "ContextChain": "markov",
    "collapse_exponent": "markov",
    "CoOccurrence": "likelihood",
    "Recovery": "likelihood",
    "recover": "likelihood",
    "graph_finite_part": "likelihood",
    "graph_finite_part_by_query": "likelihood",
}

__all__ = [*_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'attsvm.next_token' has no attribute {name!r}")
    return getattr(import_module(f"attsvm.next_token.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from attsvm.next_token.corpus import Corpus
    from attsvm.next_token.excess import log_excess
    from attsvm.next_token.generators import log2_toy, noisy_corpus, random_corpus, random_embeddings
    from attsvm.next_token.likelihood import (
        CoOccurrence,
        Recovery,
        graph_finite_part,
        graph_finite_part_by_query,
        recover,
    )
    from attsvm.next_token.markov import ContextChain, collapse_exponent
    from attsvm.next_token.model import OneLayer, extended_order, extended_pairs, token_logits
    from attsvm.next_token.priorities import Priorities, Role, Unrealisable
    from attsvm.next_token.problems import (
        choice_tokens,
        collocation_tokens,
        prediction_tokens,
        sentence_tokens,
    )
    from attsvm.next_token.programs import (
        Decoupled,
        attention_program,
        attention_program_by_query,
        feed_forward_program,
        feed_forward_program_by_token,
        graph_program,
        graph_program_by_query,
    )
    from attsvm.next_token.sequences import collocations
    from attsvm.next_token.two_stage import TwoStages, train_choice, train_two_stages
