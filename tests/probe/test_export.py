"""A probe as one Python file: it needs torch alone, and scores requests as the probe does."""

import ast
import importlib.util
import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.numpy import save_file  # noqa: E402

from attsvm.probe import AttentionProbe  # noqa: E402

WIDTH = 6
ALLOWED = {"__future__", "base64", "collections.abc", "functools", "json", "pathlib", "sys", "typing"} | {
    "torch",
    "fcntl",
}


def data(classes=2):
    rng = np.random.default_rng(0)
    sequences = [rng.standard_normal((rng.integers(3, 9), WIDTH)) for _ in range(90)]
    return sequences, [int(np.digitize(x[:, 0].max(), [0.6, 1.4][: classes - 1])) for x in sequences]


def fitted(classes=2, **options):
    return AttentionProbe(head_ridge=0.1, prompt_ridge=0.1, **options).fit(*data(classes))


def plugin_of(probe, tmp_path, skip=1, **options):
    file = probe.export(tmp_path / "refusal.py", skip=skip, **options)
    spec = importlib.util.spec_from_file_location("refusal", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROBES = {
    "tokens": lambda: fitted(),
    "heads": lambda: fitted(features=["linear", "last"]),
    "classes": lambda: fitted(3),
    "rbf": lambda: fitted(features="rbf"),
}


@pytest.mark.parametrize("name", PROBES)
def test_the_file_scores_requests_as_the_probe_does(name, tmp_path):
    probe = PROBES[name]()
    plugin = plugin_of(probe, tmp_path, layer=1)
    states = np.random.default_rng(1).standard_normal((7, 3, WIDTH))
    expected = np.atleast_1d(probe.decision_function([states[1:, 1]])[0])
    assert np.atleast_1d(plugin.score(torch.tensor(states))) == pytest.approx(expected, abs=1e-9)
    assert np.atleast_1d(plugin.score(torch.tensor(states[:, 0]))) != pytest.approx(expected, abs=1e-3)
    running, scores = plugin.Running(), []
    for part in (states[:1], states[1:2], states[2:6], states[6:]):
        scores.append(running.read(torch.tensor(part)))
    assert scores[0] is None
    assert np.atleast_1d(scores[1]) == pytest.approx(
        np.atleast_1d(probe.decision_function([states[1:2, 1]])[0]), abs=1e-9
    )
    assert np.atleast_1d(scores[-1]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", PROBES)
def test_the_file_is_the_module_in_float64_to_the_last_bit(name, tmp_path):
    probe = PROBES[name]()
    running, states = plugin_of(probe, tmp_path, skip=0).Running(), torch.randn(7, WIDTH)
    in_file = torch.tensor(
        [running.read(part) for part in states.double().split([1, 2, 4])], dtype=torch.float64
    )

    def of_module(dtype):
        module, scores = probe.to_torch(dtype), []
        state = module.start()
        for part in states.to(dtype)[None].split([1, 2, 4], 1):
            state, after = module.step(state, part)
            scores.append(after[0].detach())
        return torch.stack(scores)

    assert torch.equal(of_module(torch.float64), in_file)
    assert not torch.equal(of_module(torch.float32).double(), in_file)


def test_the_file_needs_torch_alone_and_reads_what_a_server_wrote(tmp_path):
    probe = fitted()
    file = probe.export(tmp_path / "refusal.py", layer=2, skip=0)
    tree = ast.walk(ast.parse(file.read_text(encoding="utf8")))
    names = {alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names}
    tree = ast.walk(ast.parse(file.read_text(encoding="utf8")))
    names |= {node.module for node in tree if isinstance(node, ast.ImportFrom)}
    assert names <= ALLOWED
    states = np.random.default_rng(2).standard_normal((5, 3, WIDTH)).astype(ml_dtypes.bfloat16)
    save_file({"hidden_states": states, "token_ids": np.arange(5)}, tmp_path / "a.safetensors")
    run = subprocess.run(
        [sys.executable, "-I", file, tmp_path / "a.safetensors"], capture_output=True, text=True, check=True
    )
    line = json.loads(run.stdout)
    assert line["request"] == "a" and line["tokens"] == 5
    assert line["score"] == pytest.approx(
        probe.decision_function([states[:, 2].astype(np.float64)])[0], abs=1e-9
    )


def test_what_the_file_cannot_score_is_refused_in_words(tmp_path):
    probe = fitted()
    plugin = plugin_of(probe, tmp_path, layer=4)
    with pytest.raises(ValueError, match="have 3 layers, none at position 4"):
        plugin.score(torch.zeros(5, 3, WIDTH))
    with pytest.raises(ValueError, match=r"shape \(5, 7\). Pass \(T, 6\)"):
        plugin.score(torch.zeros(5, 7))
    assert plugin.score(torch.zeros(1, WIDTH)) is None
    with pytest.raises(ValueError, match="state is NaN or infinite"):
        plugin.score(torch.full((3, 5, WIDTH), torch.nan))
    for options, reason in (({"layer": -1, "skip": 0}, "layer is -1"), ({"skip": 0.5}, "skip is 0.5")):
        with pytest.raises(ValueError, match=reason):
            probe.export(tmp_path / "a.py", **options)
    with pytest.raises(ValueError, match=r"ends in \.py"):
        probe.export(tmp_path / "probe.pt", skip=0)


def test_the_file_is_told_how_many_first_tokens_the_fit_left_out(tmp_path):
    """No default is right for every probe: one that was fitted with first tokens wants skip=0."""
    probe, states = fitted(), torch.tensor(data()[0][0])
    with pytest.raises(TypeError, match="skip"):
        probe.export(tmp_path / "untold.py")
    for skip in (0, 1):
        expected, folder = probe.decision_function([states[skip:].numpy()])[0], tmp_path / str(skip)
        folder.mkdir()
        assert plugin_of(probe, folder, skip=skip).score(states) == pytest.approx(expected, abs=1e-9)


def test_a_file_without_a_score_has_a_line_with_its_error_and_stops_no_other(tmp_path, capsys):
    plugin, states = plugin_of(fitted(), tmp_path, layer=1), np.ones((5, 3, WIDTH), np.float32)
    contents = {"nan": np.nan * states, "wide": np.ones((5, 3, WIDTH + 1)), "int": states.astype(int)}
    contents |= {"good": states, "short": states[:1], "empty": states[:0]}
    for name, array in contents.items():
        save_file({"hidden_states": array}, tmp_path / f"{name}.safetensors")
    whole = (tmp_path / "good.safetensors").read_bytes()
    pieces = {"cut": whole[:-9], "header": whole[:30], "nothing": b"", "other": b"\x02" + bytes(7) + b"{}"}
    for name, content in pieces.items():
        (tmp_path / f"{name}.safetensors").write_bytes(content)
    names = [*contents, *pieces, "absent"]
    assert plugin.main([str(tmp_path / f"{name}.safetensors") for name in names]) == 1
    lines = {line["request"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert [name for name in names if "error" not in lines[name]] == ["good", "short", "empty"]
    assert lines["good"]["score"] == pytest.approx(plugin.score(states)) and lines["short"]["score"] is None
    said = {
        "nan": "NaN or infinite",
        "wide": "(5, 7)",
        "int": "no hidden_states of F16",
        "cut": "ends before",
    }
    said |= dict.fromkeys(("header", "nothing", "other"), "damaged") | {"absent": "No such file"}
    assert all(part in lines[name]["error"] for name, part in said.items())
    assert plugin.main([str(tmp_path / "good.safetensors")]) == 0


def test_a_state_that_is_refused_leaves_the_running_score_as_it_was(tmp_path):
    plugin, states = plugin_of(fitted(), tmp_path, skip=2), torch.randn(6, WIDTH)
    running = plugin.Running()
    with pytest.raises(ValueError, match="Leave its token out"):
        running.read(torch.full((3, WIDTH), torch.inf))
    assert [running.read(states[:2]), running.read(states[2:])][-1] == pytest.approx(plugin.score(states))
