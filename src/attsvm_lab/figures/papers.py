"""The papers whose figures are in this package, in the order of the page; our own figures come last."""

from __future__ import annotations

from attsvm_lab.figures.figure import Paper

PAPERS: list[Paper] = []


def _paper(name: str, title: str, reference: str) -> Paper:
    PAPERS.append(Paper(name, title, reference))
    return PAPERS[-1]


MAX_MARGIN = _paper(
    "max_margin_selection",
    "Max-Margin Token Selection in Attention Mechanism",
    "Tarzanagh, Li, Zhang, Oymak; NeurIPS 2023",
)
TRANSFORMERS = _paper(
    "transformers_as_svms",
    "Transformers as Support Vector Machines",
    "Tarzanagh, Li, Thrampoulidis, Oymak; 2023, arXiv 2308.16898",
)
MIRROR = _paper(
    "mirror_descent",
    "Optimizing Attention with Mirror Descent",
    "Julistiono, Tarzanagh, Azizan; 2024, arXiv 2410.14581",
)
NEXT_TOKEN = _paper(
    "next_token",
    "Training Transformers for Next-token Prediction",
    "Huang, Liang, Yang 2024, arXiv 2409.17335; Li et al. 2024, arXiv 2403.08081; "
    "Ildiz et al. 2024, arXiv 2402.13512",
)
FAST_RATES = _paper(
    "fast_rates",
    "Implicit Bias and Fast Convergence Rates for Self-attention",
    "Vasudeva, Deora, Thrampoulidis; 2024, arXiv 2402.05738",
)
GRADIENT_FLOW = _paper(
    "gradient_flow",
    "Implicit Regularization of Gradient Flow on One-Layer Softmax Attention",
    "Sheen, Chen, Wang, Zhou; 2024, arXiv 2403.08699",
)
EVEN_PAIRS = _paper(
    "even_pairs",
    "How Transformers Learn Regular Language Recognition",
    "Huang, Liang, Yang; ICML 2025, arXiv 2505.00926",
)
BENIGN = _paper(
    "benign_overfitting",
    "Benign Overfitting in Attention",
    "Sakamoto, Sato; ICML 2025, arXiv 2409.17625; Magen, Shang, Xu, Frei, Hu, Vardi; NeurIPS 2025, "
    "arXiv 2410.07746",
)
MATCH_AND_COPY = _paper(
    "match_and_copy",
    "Match and copy under squared loss",
    "Gonon, Cordonnier, Boumal; 2026, arXiv 2602.07562",
)
SPARSE_SIGNALS = _paper(
    "sparse_signals",
    "A signal in few of many tokens",
    "Barnfield, Cui, Lu; ICLR 2026, arXiv 2509.25153; the capacity is ours",
)
ONE_LOCATION = _paper(
    "one_location",
    "Attention Layers Provably Solve Single-location Regression",
    "Marion, Berthier, Biau, Boyer; ICLR 2025, arXiv 2410.01537",
)
TOPICS = _paper(
    "topics",
    "Dynamics of Spontaneous Topic Changes in Next Token Prediction",
    "Jia, Diaz-Rodriguez; NeurIPS 2025, arXiv 2501.06382",
)
SINKS = _paper(
    "sinks",
    "Attention Sinks Are Provably Necessary in Softmax Transformers",
    "Ran-Milo; 2026, arXiv 2603.11487",
)
OURS = _paper("ours", "What only attsvm shows", "this package")
