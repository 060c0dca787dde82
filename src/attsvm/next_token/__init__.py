"""Next-token prediction: corpora and priority graphs, as `Tokens` and programs.

corpus.py: sentences as arrays and text; generators.py: random corpora. priorities.py: which token a corpus
puts above which; problems.py: a corpus as `Tokens`; programs.py: its max-margin programs. likelihood.py: its
logits. model.py: the one-layer transformer; two_stage.py: its training. The Markov chain of an attention
layer and corpora of topics are in the laboratory.
"""

from typing import TYPE_CHECKING

from attsvm._support.lazy import exports

# Modules load at first use: analysing a corpus needs neither JAX nor the solvers.
__getattr__, __dir__, __all__ = exports(__name__)

if TYPE_CHECKING:
    from attsvm.next_token.corpus import Corpus as Corpus
    from attsvm.next_token.generators import (
        log2_toy as log2_toy,
        noisy_corpus as noisy_corpus,
        random_corpus as random_corpus,
        random_embeddings as random_embeddings,
    )
    from attsvm.next_token.likelihood import (
        graph_finite_part as graph_finite_part,
        recover as recover,
    )
    from attsvm.next_token.model import (
        OneLayer as OneLayer,
        extended_pairs as extended_pairs,
        log_excess as log_excess,
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
    from attsvm.next_token.two_stage import (
        TwoStages as TwoStages,
        train_choice as train_choice,
        train_two_stages as train_two_stages,
    )
