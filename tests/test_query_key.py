"""The one place that knows the names of query and key projections."""

from types import SimpleNamespace

import numpy as np
import pytest

from attsvm.query_key import PAIRS, query_key_layers


def module(*names, axes=2):
    return SimpleNamespace(**{name: SimpleNamespace(weight=np.ones((2,) * axes)) for name in names})


@pytest.mark.parametrize("names", PAIRS, ids="/".join)
def test_both_layers_are_found_by_their_names_and_one_alone_is_not(names):
    whole = module(*names)
    assert query_key_layers(whole) == (getattr(whole, names[0]), getattr(whole, names[1]))
    assert query_key_layers(module(names[0])) == query_key_layers(module(*names, axes=1)) == ()


@pytest.mark.parametrize("names", PAIRS, ids="/".join)
def test_the_audit_and_the_monitor_find_the_same_modules(names):
    torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
    from attsvm.heads.projections import attention_modules
    from attsvm.torch.readers import reader_of

    class Attention(torch.nn.Module):
        def forward(self, hidden_states):
            return hidden_states

    found = Attention()
    for name in names:
        found.add_module(name, torch.nn.Linear(4, 4))
    assert [m for m, _ in attention_modules(found)] == [found] and reader_of(found) is not None
    delattr(found, names[1])
    assert not list(attention_modules(found)) and reader_of(found) is None
