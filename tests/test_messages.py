"""Wrong arguments end in a sentence that says what came and what to do; results are told in a line."""

import numpy as np
import pytest

import attsvm as att

KEYS = np.zeros((3, 2, 3))


def of_torch(name, *shapes, library="torch"):
    """A function of attsvm.torch on arrays of ones."""

    def call():
        torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
        import attsvm.torch

        make = torch.ones if library == "torch" else np.ones
        return getattr(attsvm.torch, name)(
            *(make(shape) if isinstance(shape, tuple) else shape for shape in shapes)
        )

    return call


def opened(name):
    def call():
        pytest.importorskip("sklearn", reason="needs attsvm[sklearn]")
        from attsvm.probe import TokenStore

        return TokenStore.open(name)

    return call


MESSAGES = {
    "a data set": (lambda: att.datasets.shpere, AttributeError, "'shpere'. Did you mean sphere?"),
    "a name": (lambda: att.max_magrin, AttributeError, "'max_magrin'. Did you mean max_margin?"),
    "a norm": (
        lambda: att.max_margin(att.Tokens(KEYS), [0] * 3, "nuclaer"),
        ValueError,
        "Did you mean nuclear?",
    ),
    "no near name": (lambda: att.datasets.xyz, AttributeError, r"has no attribute 'xyz'\.$"),
    "complex keys": (
        lambda: att.Tokens(KEYS + 1j),
        ValueError,
        r"keys holds complex numbers \(dtype complex128\). Pass real numbers \(n, T, d\)",
    ),
    "keys of text": (
        lambda: att.Tokens(KEYS.astype(str)),
        ValueError,
        r"keys holds text .*Pass real numbers",
    ),
    "classes": (
        lambda: att.Tokens(KEYS, labels=[0, 1, 2]),
        ValueError,
        r"labels must be −1 or \+1, got 0.0, 1.0, 2.0. Of several.*np.where\(labels == 2, 1, -1\)",
    ),
    "a head for its vector": (
        lambda: att.scores(att.Tokens(KEYS), att.Linear(np.ones(KEYS.shape[-1]))),
        TypeError,
        r"the head v is of type Linear. Pass its vector of numbers, such as Linear\(v\)\.v",
    ),
    "arrays of numpy": (
        of_torch("attention_statistics", (1, 2, 3, 4), (1, 2, 3, 4), library="numpy"),
        TypeError,
        r"query is numpy.ndarray. Pass a tensor of torch: torch.as_tensor\(query\)",
    ),
    "heads on groups": (
        of_torch("attention_statistics", (1, 3, 5, 4), (1, 2, 5, 4)),
        ValueError,
        "3 heads cannot share 2 groups of keys evenly. Pass so many",
    ),
    "no key": (
        of_torch("attention_statistics", (1, 2, 5, 4), (1, 2, 0, 4)),
        ValueError,
        "no key. Pass at least one",
    ),
    "no folder": (
        opened("nope"),
        FileNotFoundError,
        "nope does not exist. Pass .*folder of .safetensors shards",
    ),
}


@pytest.mark.parametrize("what", MESSAGES)
def test_an_error_says_what_came_and_what_to_do(what):
    call, error, said = MESSAGES[what]
    with pytest.raises(error, match=said) as raised:
        call()
    assert "\n" not in str(raised.value)


def monitor():
    torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
    from attsvm.torch import MarginMonitor

    return MarginMonitor(torch.nn.MultiheadAttention(8, 2))


LINES = {
    "AttentionStatistics(largest, where, margin, logsumexp, entropy, soft_sparsity, first of 2 heads and 5 "
    "queries of each of 1 sequences)": of_torch("attention_statistics", (1, 2, 5, 4), (1, 2, 6, 4)),
    "MarginMonitor(MultiheadAttention, 1 attention modules: 0 records)": monitor,
}


@pytest.mark.parametrize("line", LINES)
def test_a_result_is_told_in_a_line(line):
    assert repr(LINES[line]()) == line
