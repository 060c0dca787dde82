"""The Python side of the explorer: what the page opens with, and the files that it saves."""

import json

import numpy as np
import pytest

import attsvm as att
from attsvm.explorer import Explorer, page, presets, state_of, state_of_path
from attsvm.numbers.archives import BadFile
from tests.commands import run


def start_of(html):
    """The state that a page opens with."""
    return json.loads(html.split('id="data">')[1].split("</script>")[0])["start"]


def test_presets_have_names_of_their_own_and_two_sentences_of_advice():
    found = presets()
    assert len({preset["id"] for preset in found}) == len(found) == 13
    assert all(preset["advice"].count(". ") == 1 and preset["advice"].endswith(".") for preset in found)


def test_presets_hold_the_published_numbers():
    tokens, _ = att.datasets.several_inputs()
    by_name = {preset["id"]: preset["state"] for preset in presets()}
    assert [each["tokens"] for each in by_name["several-inputs"]["inputs"]] == tokens.keys.tolist()
    tokens, v = att.datasets.two_fans()
    assert by_name["two-fans"]["head"] == v.tolist()
    assert [each["query"] for each in by_name["two-fans"]["inputs"]] == tokens.queries.tolist()


def test_values_of_their_own_become_scores_set_by_hand():
    state = state_of(*att.datasets.single_input(0.25))
    assert state["byHead"] is False and state["inputs"][0]["scores"] == [1.0, 0.9, 0.25]
    tokens, v = att.datasets.joint_training()
    state = state_of(tokens, v)
    assert state["byHead"] is True and state["head"] == [-1.0, 0.0]
    assert [each["label"] for each in state["inputs"]] == [1, -1, 1]


def test_masked_tokens_do_not_reach_the_page():
    tokens = att.Tokens.from_sequences([np.ones((2, 2)), np.eye(3, 2)])
    assert [len(each["tokens"]) for each in state_of(tokens, [1.0, 0.0])["inputs"]] == [2, 3]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (att.datasets.sphere(2, 3, 4)[0], "keys have width 4"),
        (att.datasets.prompt_sphere(2, 3, 2, seed=range(2))[0], "have 2 runs"),
        (att.datasets.prompt_sphere(9, 3, 2)[0], "9 examples of 3 tokens"),
    ],
)
def test_what_the_plane_cannot_show_is_refused_with_the_reason(tokens, message):
    with pytest.raises(ValueError, match=message):
        state_of(tokens)


def test_a_saved_run_opens_with_its_start_its_settings_and_its_path(tmp_path):
    tokens, v = att.datasets.several_inputs()
    np.savez(tmp_path / "problem.npz", keys=tokens.keys, values=tokens.values, v=v)
    words = ["train", f"{tmp_path}/problem.npz", "--norm", "linf", "--lr", "0.2", "--steps", "60"]
    assert run(*words, "--out", f"{tmp_path}/run.npz").exit_code == 0
    out = tmp_path / "run.html"
    assert run("explore", f"{tmp_path}/run.npz", "--out", out, "--no-open").exit_code == 0
    state = start_of(out.read_text(encoding="utf8"))
    assert (state["rule"], state["lr"], state["time"]) == ("sign", 0.2, 60)
    path = att.Path.load(tmp_path / "run.npz")
    assert state["starts"]["points"] == [[0.0, 0.0]] and state["recorded"][0][-1] == path.final[:, 0].tolist()
    assert state_of_path(path, v=v)["inputs"] == state["inputs"]


def test_a_run_in_a_norm_of_singular_values_opens_with_it_if_it_is_of_a_matrix():
    tokens, v = att.datasets.two_clouds()
    path = att.train(tokens, att.Linear(v), optimizer=att.steepest(att.spectral, 0.1), steps=1)
    rules = [
        state_of_path(path, {"optimizer": "steepest", "norm": norm}, v)
        for norm in ("spectral", "schatten:4", "linf")
    ]
    assert [(state.get("rule"), state.get("ruleP")) for state in rules] == [
        ("spectral", None),
        ("schatten", 4.0),
        ("sign", None),
    ]
    tokens, v = att.datasets.single_input()
    prompt = att.train(tokens, att.Linear(v), optimizer=att.gd(0.1), steps=1)
    assert "rule" not in state_of_path(prompt, {"optimizer": "steepest", "norm": "spectral"})


def test_explore_writes_a_page_and_says_where(tmp_path):
    out = tmp_path / "lecture.html"
    answer = run("explore", "--out", out, "--no-open", "--json")
    assert json.loads(answer.stdout) == {"page": str(out), "opened": False}
    assert start_of(out.read_text(encoding="utf8")) == {"preset": "one-input-local"}


def test_bad_input_ends_in_one_line(tmp_path):
    np.save(tmp_path / "wide.npy", np.ones((2, 3, 5)))
    for words, code in ((["wide.npy"], 1), (["missing.npz"], 1), (["--out", "page.pdf"], 64)):
        files = [tmp_path / word if "." in word else word for word in words]
        answer = run("explore", *files, "--no-open")
        assert answer.exit_code == code and answer.stderr.count("\n") == 1


def test_a_notebook_is_given_an_iframe_and_a_file_the_page(tmp_path):
    shown = att.explore(*att.datasets.single_input(), rule="sign")
    assert isinstance(shown, Explorer) and "Explorer(" in repr(shown)
    assert shown._repr_html_().startswith("<iframe srcdoc=") and "<script" not in shown._repr_html_()
    assert shown.save(tmp_path / "page.html").read_text(encoding="utf8") == shown.html
    assert start_of(shown.html)["rule"] == "sign"


def test_an_unknown_setting_is_told_the_known_ones():
    with pytest.raises(TypeError, match=r"no setting 'steps'\. Pass any of trained, rule, "):
        att.explore(*att.datasets.single_input(), steps=3)


def test_the_page_names_no_other_place_and_is_small():
    text = page()
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert len(text.encode()) < 300_000


def test_the_data_of_a_page_cannot_end_its_script():
    assert "</script><b>" not in page({"preset": "</script><b>"})


# ---------------------------------------------------------------------- JSON files


def test_json_files_are_read_as_arrays(tmp_path):
    tokens, _ = att.datasets.joint_training()
    file = tmp_path / "problem.json"
    file.write_text(
        json.dumps({"keys": tokens.keys.tolist(), "labels": [1, -1, 1], "explorer": {"any": "thing"}})
    )
    read = att.Tokens.load(file)
    assert np.array_equal(read.keys, tokens.keys) and np.array_equal(read.labels, tokens.labels)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"keys": [[[1, 2]], [[1, 2], [3, 4]]]}', "different lengths"),
        ('{"keys": [[[1, 2', "damaged"),
        ('{"kyes": [[[1, 2]]]}', "Did you mean 'keys'"),
        ('{"keys": [[["a", "b"]]]}', "real numbers"),
    ],
)
def test_bad_json_is_told_in_a_sentence(tmp_path, text, message):
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(BadFile, match=message):
        att.Tokens.load(file)


def test_keys_that_the_page_could_not_multiply_are_refused():
    keys = np.array([[[1e9, 0.0], [0.0, 1.0]]])
    assert att.explore(att.Tokens(keys))
    with pytest.raises(
        ValueError, match=r"the keys reach 2e\+09\. The explorer shows up to 1e\+09: rescale them"
    ):
        att.explore(att.Tokens(2 * keys))
    for wrong in (
        (att.Tokens(keys, 2 * keys[:, 0]), None, "queries reach"),
        (att.Tokens(keys), [2e9, 0.0], "head reaches"),
    ):
        with pytest.raises(ValueError, match=wrong[2]):
            att.explore(*wrong[:2])


def test_a_head_that_is_none_is_refused():
    tokens, _ = att.datasets.two_clouds()
    for head in ([1.0, 2.0, 3.0], [1.0, np.nan]):
        with pytest.raises(ValueError, match="the head v has"):
            att.explore(tokens, head)


def test_a_path_is_shown_with_the_tokens_asked_for_and_one_of_its_heads():
    tokens, v = att.datasets.two_clouds()
    rule, both = att.steepest(att.frobenius, 0.1), att.Linear(np.stack([v, -v]))
    path = att.train(tokens, both, weight=att.MultiHead(2), optimizer=rule, steps=3)
    with pytest.raises(ValueError, match=r"2 heads\. The explorer shows one: pass path\.head\(0\)"):
        att.explore(path, v)
    chosen = start_of(att.explore(path.head(0), v, selected=[2, 1]).html)
    assert [each["chosen"] for each in chosen["inputs"]] == [[2], [1]]
