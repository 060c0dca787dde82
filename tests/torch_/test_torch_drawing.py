"""The monitor's figure: lines can be told apart, and the legend names them."""

import pytest

pytest.importorskip("torch", reason="needs attsvm[torch]")

from matplotlib.colors import to_hex

from attsvm.torch.monitor import HeadRecord, draw, line_names, short_names


def records(modules, heads, steps=3):
    places = [(step, module, head) for step in range(steps) for module in modules for head in range(heads)]
    return [HeadRecord(*place, 1.0 + place[0], 0.5, 0.5, 0.1, 0.2) for place in places]


def layers(count):
    return [f"encoder.layer.{k}.attention.self" for k in range(count)]


@pytest.mark.parametrize(
    ("modules", "heads", "names"),
    [
        (["attention"], 3, ["head 0", "head 1", "head 2"]),
        (layers(2), 2, ["layer.0, head 0", "layer.0, head 1", "layer.1, head 0", "layer.1, head 1"]),
        (layers(12), 12, [f"layer.{k}" for k in range(12)]),
    ],
    ids=["one module", "few heads", "many heads"],
)
def test_every_colour_is_named_by_the_legend(modules, heads, names):
    figure = draw(records(modules, heads))
    legend = figure.legends[0]
    named = {to_hex(line.get_color()): text.get_text() for line, text in zip(*parts(legend), strict=True)}
    assert list(named.values()) == names
    for ax in figure.axes:
        assert {to_hex(line.get_color()) for line in ax.lines if line.get_xdata().size} == {*named}


def parts(legend):
    return legend.get_lines(), legend.get_texts()


def test_only_heads_of_one_module_share_a_colour():
    names = line_names([(module, head) for module in layers(3) for head in range(4)])
    assert len({*names.values()}) == 3 and all(names[layers(3)[1], head] == "layer.1" for head in range(4))
    few = line_names([(module, head) for module in layers(2) for head in range(4)])
    assert len({*few.values()}) == 8


def test_names_keep_what_differs():
    mixed = ["encoder.0.self_attn", "decoder.0.self_attn", "decoder.0.encoder_attn"]
    assert list(short_names(mixed).values()) == mixed
    assert list(short_names(["a.attention", "b.attention"]).values()) == ["a", "b"]
    assert list(short_names(["h.0", "h.1"]).values()) == ["h.0", "h.1"]
    assert list(short_names(["attention", "attention.inner"]).values()) == ["attention", "inner"]


def test_a_single_record_is_a_point():
    lines = [draw(records(["attention"], 1, steps)).axes[0].lines[0] for steps in (1, 2)]
    assert [line.get_marker() for line in lines] == ["o", "None"]
