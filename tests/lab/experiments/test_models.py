"""Texts in one line, without padding, give what padded texts give."""

import functools

import pytest
import torch
import torch.nn.functional as F

import fused
from attend import Line
from data import packed
from models import SentimentEncoder, VisionTransformer
from tasks import Sentiment

ROUNDING = 1e-5  # float32, logits of size 0.1 to 1
HALF = 0.05  # bfloat16, through four blocks and back
LENGTHS = (5, 9, 3)
TINY = {"vocabulary": 30, "length": 12, "width": 8, "hidden": 16}


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


def published(model, ids, open_padding=False, mean=False):
    """The encoder as the authors compute it: every token of padded texts, padding masked as query and as key.

    Only the first column is open to all, so that no row is empty. open_padding: padding is attended to. mean:
    all places are read, not the first.
    """
    there = ids > 0
    allowed = there[:, None, :] & there[:, :, None]
    allowed[:, :, 0] = True
    allowed |= torch.tensor(open_padding)
    x = model.words.weight[ids] + model.places.weight[: ids.shape[1]]
    for block in model.blocks:
        layer, width = block.attention, x.shape[-1]
        heads = (len(x), -1, layer.heads, width // layer.heads)
        q, k, v = ((x @ w.weight.T).view(heads) for w in (layer.query, layer.key, layer.value))
        logits = torch.einsum("nqhw,nkhw->nhqk", q, k) / (width // layer.heads) ** 0.5
        logits = logits.masked_fill(~allowed[:, None], -torch.inf)
        mixed = torch.einsum("nhqk,nkhw->nqhw", logits.softmax(-1), v).flatten(2)
        x = F.layer_norm(x + mixed @ layer.out.weight.T, (width,), block.norm1.weight)
        change = F.gelu(x @ block.up.weight.T) @ block.down.weight.T
        x = F.layer_norm(x + change, (width,), block.norm2.weight)
    return ((x.mean(1) if mean else x[:, 0]) @ model.head.weight.T)[:, 0]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "training without dropout"])
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-5), (torch.float64, 1e-13)], ids=str)
def test_our_lines_give_the_logits_and_gradients_of_the_published_padding(training, dtype, rounding):
    """Also that the last block's other tokens matter to no gradient. rounding: a hundred units, relative."""
    torch.manual_seed(1)
    model = SentimentEncoder(3, 30, 9, width=12, hidden=16, dropout=0.0).to(dtype).train(training)
    model.dtype = dtype
    ids, line, padded = texts(model)
    weights, signs = list(model.parameters()), torch.tensor([1.0, -2.0, 4.0], dtype=dtype)
    found = []
    for logits in (model(ids, line), published(model, padded), published(model, padded, open_padding=True)):
        found.append([logits.to(dtype), *torch.autograd.grad((logits * signs).sum(), weights)])
    ours, theirs, wrong = found
    logits = 1e-6  # ours are given out in float32
    assert torch.allclose(ours[0], theirs[0], atol=max(rounding, logits), rtol=0)
    for a, b, c in zip(ours[1:], theirs[1:], wrong[1:], strict=True):
        assert (a - b).norm() <= rounding * b.norm()
        assert (c - b).norm() > 1e-3 * b.norm()


def test_the_unmasked_net_reads_the_mean_of_texts_and_padding():
    """What the authors' notebook prints as size 6."""
    torch.manual_seed(2)
    texts = [torch.randint(1, 30, (n,)) for n in LENGTHS]
    task = Sentiment((packed(texts, [0, 1, 1]),) * 2, 2, "cpu", unmasked=True, **TINY)
    task.fill = 5  # texts of one length are not filled up
    model = task.make().eval()
    (ids, positions, starts, labels), *_ = task.tests()
    padded = F.pad(torch.nn.utils.rnn.pad_sequence(texts, batch_first=True), (0, 12 - max(LENGTHS)))
    logits = model(ids, Line(starts, positions, task.longest))
    expected = published(model, padded, open_padding=True, mean=True)
    assert torch.equal(labels, torch.tensor([0.0, 1.0, 1.0])) and len(logits) == 3
    assert torch.allclose(logits, expected, atol=ROUNDING, rtol=0)
    for other in (published(model, padded, mean=True), published(model, padded, open_padding=True)):
        assert not torch.allclose(logits, other, atol=100 * ROUNDING, rtol=0)
    assert len(next(task.batches(0, 1))[0]) == 3 * 12
    assert torch.allclose(model.padded(padded, padded > 0), expected, atol=ROUNDING, rtol=0)


def test_the_last_block_needs_the_class_token_only():
    torch.manual_seed(0)
    model, pictures = VisionTransformer(8, 2, 16, 2, 2, 16).eval(), torch.randn(3, 3, 8, 8)
    logits = [model(pictures, every=every) for every in (False, True)]
    assert torch.allclose(*logits, atol=ROUNDING, rtol=0)
    grads = [torch.autograd.grad(x.square().sum(), list(model.parameters())) for x in logits]
    assert all(torch.allclose(a, b, atol=ROUNDING, rtol=1e-3) for a, b in zip(*grads, strict=True))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a processor without bfloat16 goes another way
def test_compiled_blocks_give_the_same_in_half_precision_and_are_compiled_once_for_all(monkeypatch):
    graphs = []
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=traced(graphs)))
    fused._fused.cache_clear()
    plain, fast, other = (picture_net(seed) for seed in (0, 0, 1))
    pictures = torch.randn(3, 3, 8, 8)
    fused.fuse(fast)
    answers = [gradients(model, pictures) for model in (plain, fast, other)]
    apart = [
        max(float((a - b).norm() / b.norm()) for a, b in zip(x, answers[0], strict=True)) for x in answers
    ]
    assert apart[1] < HALF and apart[2] > 10 * HALF
    assert len(graphs) == 2  # of four blocks: the last one asks for the first token only
    fast.dtype = torch.float32  # looks take the plain way
    gradients(fast, pictures)
    assert len(graphs) == 2
    fused._fused.cache_clear()


def traced(graphs):
    """A compiler that counts what it is given and computes it as it stands."""
    return lambda graph, _, options: graphs.append(graph) or graph.forward


def picture_net(seed):
    torch.manual_seed(seed)
    model = VisionTransformer(8, 2, 16, 4, 2, 16, dropout=0.0)
    model.dtype = torch.bfloat16
    return model


def gradients(model, pictures):
    out = model(pictures)
    return [out.detach(), *torch.autograd.grad(out.float().square().sum(), list(model.parameters()))]


def test_the_encoder_has_the_published_number_of_parameters():
    with torch.device("meta"):
        model = SentimentEncoder(3)
    assert sum(w.numel() for w in model.parameters()) == 17_228_160
