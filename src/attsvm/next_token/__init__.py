"""Next-token prediction: corpora, priority graphs and Markov chains, as `Tokens` and programs.

corpus.py: sentences as arrays and text; generators.py and topics.py: random corpora. priorities.py: which
token a corpus puts above which; problems.py: a corpus as `Tokens`; programs.py: its max-margin programs.
markov.py: the chain of an attention layer; likelihood.py: its logits from sentences. model.py: the one-layer
transformer; two_stage.py: its training.
"""

from typing import TYPE_CHECKING

from attsvm._support.lazy import exports

# Modules load at first use: analysing a corpus needs neither JAX nor the solvers.
__getattr__, __dir__, __all__ = exports(__name__)

if TYPE_CHECKING:
    from attsvm.next_token.corpus import Corpus as Corpus, collocations as collocations
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
    from attsvm.next_token.markov import ContextChain as ContextChain, collapse_exponent as collapse_exponent
    from attsvm.next_token.model import (
        OneLayer as OneLayer,
        extended_order as extended_order,
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
    from attsvm.next_token.topics import (
        TopicChanges as TopicChanges,
        likeliest as likeliest,
        random_topic as random_topic,
        topic_changes as topic_changes,
        topic_corpus as topic_corpus,
        topic_sentences as topic_sentences,
    )
    from attsvm.next_token.two_stage import (
        TwoStages as TwoStages,
        train_choice as train_choice,
        train_two_stages as train_two_stages,
    )
