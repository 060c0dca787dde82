"""Next-token prediction: corpora, priority graphs and Markov chains → the same Tokens and programs."""

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
    "graph_program": "programs",
    "feed_forward_program": "programs",
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
}

__all__ = [*_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'attsvm.next_token' has no attribute {name!r}")
    return getattr(import_module(f"attsvm.next_token.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from attsvm.next_token.corpus import Corpus as Corpus
    from attsvm.next_token.excess import log_excess as log_excess
    from attsvm.next_token.generators import (
        log2_toy as log2_toy,
        noisy_corpus as noisy_corpus,
        random_corpus as random_corpus,
        random_embeddings as random_embeddings,
    )
    from attsvm.next_token.likelihood import (
        CoOccurrence as CoOccurrence,
        Recovery as Recovery,
        graph_finite_part as graph_finite_part,
        recover as recover,
    )
    from attsvm.next_token.markov import (
        ContextChain as ContextChain,
        collapse_exponent as collapse_exponent,
    )
    from attsvm.next_token.model import (
        OneLayer as OneLayer,
        extended_order as extended_order,
        extended_pairs as extended_pairs,
        token_logits as token_logits,
    )
    from attsvm.next_token.priorities import (
        Priorities as Priorities,
        Role as Role,
        Unrealisable as Unrealisable,
    )
    from attsvm.next_token.problems import (
        choice_tokens as choice_tokens,
        collocation_tokens as collocation_tokens,
        prediction_tokens as prediction_tokens,
        sentence_tokens as sentence_tokens,
    )
    from attsvm.next_token.programs import (
        Decoupled as Decoupled,
        attention_program as attention_program,
        feed_forward_program as feed_forward_program,
        graph_program as graph_program,
    )
    from attsvm.next_token.sequences import collocations as collocations
    from attsvm.next_token.two_stage import (
        TwoStages as TwoStages,
        train_choice as train_choice,
        train_two_stages as train_two_stages,
    )
