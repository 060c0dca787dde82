"""Texts in one line, without padding, give what padded texts give."""

import pytest
import torch

from attend import Line
from models import SentimentEncoder, VisionTransformer

ROUNDING = 1e-5  # float32, logits of size 0.1 to 1
LENGTHS = (5, 9, 3)


def texts(model):
    torch.manual_seed(0)
    ids = [torch.randint(1, 30, (n,)) for n in LENGTHS]
    starts = torch.tensor([0, 5, 14, 17], dtype=torch.int32)
    line = Line(starts, torch.cat([torch.arange(n) for n in LENGTHS]), max(LENGTHS))
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    return torch.cat(ids), line, padded


@pytest.fixture(params=[False, True], ids=["plain", "selective"])
def model(request):
    torch.manual_seed(1)
    model = SentimentEncoder(2, 30, 9, width=8, hidden=16, selective=request.param).eval()
    for name, weight in model.named_parameters():
        if name.endswith(("beta", "token")):
            torch.nn.init.normal_(weight)
    return model


def test_texts_in_one_line_give_what_padded_texts_give(model):
    ids, line, padded = texts(model)
    expected = model.padded(padded, padded > 0)
    assert torch.allclose(model(ids, line), expected, atol=ROUNDING, rtol=0)
    moved = Line(torch.tensor([0, 6, 14, 17], dtype=torch.int32), line.positions, line.longest)
    assert not torch.allclose(model(ids, moved), expected, atol=100 * ROUNDING, rtol=0)


def test_their_gradients_agree_too(model):
    ids, line, padded = texts(model)
    ways = (lambda: model(ids, line), lambda: model.padded(padded, padded > 0))
    grads = [torch.autograd.grad(way().square().sum(), list(model.parameters())) for way in ways]
    assert all(torch.allclose(a, b, atol=ROUNDING, rtol=1e-3) for a, b in zip(*grads, strict=True))


def test_the_last_block_needs_the_class_token_only():
    torch.manual_seed(0)
    model, pictures = VisionTransformer(8, 2, 16, 2, 2, 16).eval(), torch.randn(3, 3, 8, 8)
    assert torch.allclose(model(pictures), model(pictures, every=True), atol=ROUNDING, rtol=0)


def test_the_encoder_has_the_published_number_of_parameters():
    with torch.device("meta"):
        model = SentimentEncoder(3)
    assert sum(w.numel() for w in model.parameters()) == 17_228_160
