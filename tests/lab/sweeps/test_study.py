"""Studies: what they mean, and what they refuse, in words."""

import numpy as np
import pytest

from attsvm_lab.sweeps.study import entries, example, read_study

pytestmark = pytest.mark.quick


def change(study, **parts):
    return {**study, **{k: {**study[k], **v} if k in ("data", "train") else v for k, v in parts.items()}}


WRONG = [
    ({"seed": 3}, "unknown key 'seed'. Did you mean 'seeds'"),
    ({"measure": "margins"}, "no measure 'margins'. Pass kind, separable, margin_ratio"),
    ({"measure": "kind:l1"}, "kind has no norm"),
    ({"measure": "rate:l0"}, "no norm 'l0'"),
    ({"data": {"model": "cube"}}, "no data model 'cube'. Pass .*sphere"),
    ({"data": {"width": 3}}, "data.width means nothing to prompt_sphere. It takes n, T, d"),
    ({"data": {"n": 0}}, "cannot be drawn with n = 0"),
    ({"data": {"d": -1}}, "cannot be drawn with n = 2, T = 2, d = -1"),
    ({"data": {"T": 2.5}}, "cannot be drawn with .* T = 2.5"),
    ({"data": {"n": []}}, "data.n is an empty list"),
    ({"data": {"n": {"from": 3, "to": 1}}}, "from 3 to 1 in steps of 1 is empty"),
    ({"data": {"n": {"from": 1, "to": float("inf")}}}, r"Pass \{from = 2, to = 8, step = 2\}"),
    ({"data": {"n": {"from": 1, "to": 10**400}}}, r"Pass \{from = 2, to = 8, step = 2\}"),
    ({"data": {"n": {"from": 1, "to": 10**18}}}, "from 1 to 1000000000000000000 in steps of 1 is too long"),
    ({"data": {"n": {"from": 1, "to": 2, "count": 10**18}}}, r"Pass \{from = 2, to = 8, step = 2\}"),
    ({"data": {"n": {"from": 4, "to": 0, "count": 3, "spacing": "log"}}}, r"n is .* Pass \{from = 2"),
    ({"train": {x: {"from": 1, "to": 2000} for x in ("lr", "steps")}}, "train has 4,000,000 combinations"),
    ({"data": {"n": {"start": 3}}}, r"Pass \{from = 2, to = 8, step = 2\}"),
    ({"train": {"optimizer": "lion"}}, "no optimizer 'lion'. Pass steepest, gd, mirror, polyak, adam"),
    ({"train": {"nesterov": 0.9}}, "train.nesterov is unknown. Known are optimizer, norm, lr"),
    ({"train": {"momentum": 2}}, "momentum is 2"),
    ({"train": {"norm": "schatten:0.5"}}, "schatten:P with a number P ≥ 1"),
    ({"train": {"weight": "kq", "separate": 1}}, "train.separate is 1. Pass true or false"),
    ({"train": {"weight": "kq", "rank": -1}}, "train.rank is -1. Pass at least 0"),
    ({"train": {"weight": "diagonal_kq", "init": "zero"}}, "cannot start at zero"),
    ({"train": {"heads": 2, "across": "all"}}, "no across 'all'. Pass joint, apart, concatenated"),
    ({"train": {"heads": -1}}, "train.heads is -1. Pass at least 0"),
    ({"train": {"optimizer": "compositional"}}, "need K and Q of one head together. Pass the weight kq"),
    (
        {"train": {"optimizer": "compositional", "weight": "kq", "heads": 2}},
        "across apart where there are several heads",
    ),
    ({"measure": "margin_ratio:l1@2"}, "may be taken at a share of the steps: margin_ratio:l1@0.1"),
    ({"measure": "norm_growth:l1@0.1"}, "may be taken at a share of the steps"),
    ({"measure": "arrival:l1@1"}, "arrival at a ratio below 1: @0.95"),
    ({"measure": "arrival:l1@1.0"}, "arrival at a ratio below 1: @0.95"),
    ({"measure": "margin_ratio:l1@²"}, "may be taken at a share of the steps"),
    ({"train": {"init": "gaussian:²"}}, "no init 'gaussian:²'"),
    ({"data": {"steps": 3}}, "data.steps is the name of another column"),
    ({"data": {"kind": 3}}, "data.kind is the name of another column"),
    ({"along": [2]}, "along holds 2. Pass shares of the steps"),
    ({"along": "a"}, "along holds 'a'. Pass shares of the steps"),
    ({"programs": -1}, "programs is -1. Pass of how many runs they are solved, 0 for all"),
    ({"train": {"batch": 10**6}}, "train.batch is 1000000. Pass 1 to n"),
    ({"train": {"batch": -1}}, "train.batch is -1. Pass 1 to n"),
    ({"train": {"steps": 1.5}}, "train.steps is 1.5. Pass a whole number"),
    ({"train": {"steps": 0}}, "train.steps is 0. Pass at least 1"),
    ({"train": {"lr": -1}}, "lr is -1"),
    ({"train": {"init": "ones"}}, "no init 'ones'. Pass zero, uniform, gaussian"),
    ({"train": {"weight": "kq", "init": "zero"}}, "cannot start at zero"),
    ({"train": {"weight": "diagonal"}}, "needs queries as wide as the keys, got d=2, e=1"),
    ({"train": {"optimizer": "mirror", "norm": "spectral"}}, "entrywise norm, not the spectral one"),
    ({"seeds": 0}, "holds no seed"),
    ({"seeds": "9-3"}, "holds no seed"),
    ({"seeds": 10**19}, "Pass at most 100,000,000"),
    ({"seeds": {"share": "global", "width": 0.1, "most": 10**19}}, "0 < first ≤ most ≤ 100,000,000"),
    ({"seeds": {"share": "global"}}, "precision"),
    ({"data": {"model": "shpere"}}, "no data model 'shpere'. Did you mean sphere?"),
    ({"seeds": {"share": "rate", "width": 0.1}}, "which is not measured. Pass global"),
    ({"seeds": {"share": "global", "width": -1}}, "width of seeds is -1. Pass a positive number"),
    ({"seeds": {"share": "global", "width": 0.1, "max": 5}}, "unknown max; known are"),
    ({"show": {"x": "depth"}}, "show.x is 'depth'. Pass"),
    ({"scale": {"quick": {"seed": 1}}}, "scale.quick has an unknown key 'seed'"),
]


@pytest.mark.parametrize(("parts", "said"), WRONG, ids=[said[:40] for _, said in WRONG])
def test_what_a_study_cannot_mean_is_refused_with_what_it_can(study, parts, said):
    with pytest.raises(ValueError, match=said):
        read_study(change(study, **parts))


def test_a_study_without_data_and_an_unknown_scale_are_refused(study):
    with pytest.raises(ValueError, match=r"no \[data\]"):
        read_study({"seeds": 3})
    with pytest.raises(ValueError, match=r"no scale 'paper'\. This study has default"):
        read_study(study, "paper")


def test_the_errors_of_a_file_name_it(tmp_path):
    file = tmp_path / "odd.toml"
    file.write_text("measure = [")
    with pytest.raises(ValueError, match=r"odd\.toml: not TOML"):
        read_study(file)


def test_a_name_of_dots_stays_in_its_folder(study, tmp_path):
    for file, name in (("...toml", "study"), ("..hidden.toml", "hidden"), ("a.b.toml", "a.b")):
        (tmp_path / file).write_text("[data]\nn = 1\nT = 2\nd = 2\n")
        assert read_study(tmp_path / file).name == name


def test_the_example_is_a_study():
    import tomllib

    given = read_study(tomllib.loads(example()))
    assert len(given.cells) == 2 * 2 * 3
    assert len(read_study(tomllib.loads(example()), "quick").seeds.begin) == 16


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"from": 2, "to": 8, "step": 3}, [2, 5, 8]),
        ({"from": 1, "to": 3}, [1, 2, 3]),
        ({"from": 1, "to": 100, "count": 3, "spacing": "log"}, [1, 10, 100]),
        ([4, 4, 2], [4, 2]),
        ({"from": 1, "to": 9, "count": 1}, [1]),
        (np.arange(2, 4), [2, 3]),
        (np.int64(5), [5]),
    ],
)
def test_ranges_and_lists_spread_out(study, given, values):
    cells = read_study(change(study, data={"n": given, "T": 2, "d": 2})).cells
    assert [dict(cell.data)["n"] for cell in cells] == values


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"from": 0.1, "to": 0.5, "step": 0.1}, [0.1, 0.2, 0.3, 0.4, 0.5]),
        ({"from": 0.1234567, "to": 1, "count": 2}, [0.1234567, 1.0]),
        ({"from": 1_000_001, "to": 1_234_567, "count": 3}, [1_000_001, 1_117_284, 1_234_567]),
    ],
)
def test_a_range_has_the_digits_that_one_would_write(given, values):
    assert [(x, type(x)) for x in entries("x", given)] == [(x, type(x)) for x in values]


def test_several_ways_of_training_add_up_and_what_has_no_effect_is_one_cell(study):
    ways = [{"optimizer": "gd", "norm": ["l1", "linf"]}, {"optimizer": "steepest", "norm": ["l1", "linf"]}]
    cells = read_study(change(study, data={"T": 2, "d": 2}) | {"train": ways}).cells
    assert [c.words.get("norm") for c in cells] == [None, "l1", "linf"]
    polyak = {"optimizer": "polyak", "norm": ["l1", "linf"], "lr": [0.1, 0.2]}
    assert len(read_study(change(study, data={"T": 2, "d": 2}) | {"train": polyak}).cells) == 1


def test_a_norm_that_no_theory_predicts_must_be_named(study):
    way = {"weight": "kq", "norm": "l1"}
    with pytest.raises(ValueError, match=r"margin_ratio: no limit is known .* margin_ratio:frobenius"):
        read_study(change(study, train=way))
    assert read_study(change(study, train=way, measure="margin_ratio:l1")).cells


def test_options_are_told_where_they_have_an_effect(study):
    ways = [
        {"weight": "kq", "rank": 2, "separate": True, "norm": "schatten:4", "decay": 0.1},
        {"rank": 2, "separate": True, "momentum": 0.9, "optimizer": "gd"},
    ]
    data = {"model": "sphere", "n": 2, "T": 2, "d": 3}
    factors, full = read_study({**study, "measure": "kind", "data": data, "train": ways}).cells
    options = {name: factors.words.get(name) for name in ("rank", "separate", "norm", "decay", "init")}
    told = {"rank": 2, "separate": True, "norm": "schatten:4", "decay": 0.1, "init": "uniform"}
    assert options == told
    assert not {"rank", "separate", "momentum", "norm"} & set(full.words)


def test_factors_and_heads_of_diagonals_start_at_ones_but_the_last(study):
    ways = [{"weight": "diagonal", "depth": 3}, {"weight": "diagonal_kq", "heads": 2}, {"weight": "diagonal"}]
    data = {"model": "sphere", "n": 2, "T": 2, "d": 3}
    three, heads, alone = read_study({**study, "measure": "kind", "data": data, "train": ways}).cells
    assert [x.tolist() for x in three.start(range(1))] == [[1] * 3, [1] * 3, [0] * 3]
    assert [x.tolist() for x in heads.start(range(1))] == [[[1] * 3] * 2, [[0] * 3] * 2]
    assert (three.words["depth"], heads.words["heads"], alone.init) == (3, 2, "zero")
    assert not {"depth", "heads", "across"} & set(alone.words)


def test_a_scale_changes_what_it_names(study):
    study["scale"] = {"quick": {"seeds": 2, "data": {"T": 2}}}
    assert len(read_study(study).cells) == 4
    quick = read_study(study, "quick")
    assert (len(quick.cells), len(quick.seeds.begin)) == (2, 2)
