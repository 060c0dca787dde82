"""The peer: the same attention probe, trained the usual way with Adam in torch."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

BATCH, EPOCHS = 64, 15
RATES, DECAYS = (1e-3, 1e-2), (0.0, 1e-3, 1e-2)

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass
class AdamProbe:
    """One prompt and one head on standardised tokens; mean (d,) and scale (d,) come from training."""

    mean: np.ndarray
    scale: np.ndarray
    prompt: torch.Tensor
    head: torch.Tensor
    intercept: torch.Tensor

    def batch(self, sequences: list[np.ndarray]) -> Batch:
        rows = [torch.from_numpy(((s - self.mean) / self.scale).astype(np.float32)) for s in sequences]
        lengths = torch.tensor([len(row) for row in rows])
        return pad_sequence(rows, batch_first=True), lengths

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention (n, T) and scores (n,)."""
        tokens, lengths = batch
        outside = torch.arange(tokens.shape[1]) >= lengths[:, None]
        attention = torch.softmax((tokens @ self.prompt).masked_fill(outside, -torch.inf), dim=1)
        return attention, ((tokens @ self.head) * attention).sum(1) + self.intercept

    @torch.no_grad()
    def predict(self, sequences: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Labels (n,) and the most attended token (n,)."""
        labels, selected = [], []
        for first in range(0, len(sequences), BATCH):
            attention, scores = self.forward(self.batch(sequences[first : first + BATCH]))
            labels.append((scores > 0).numpy().astype(int))
            selected.append(attention.argmax(1).numpy())
        return np.concatenate(labels), np.concatenate(selected)


def train(sequences, labels, rate: float, decay: float, epochs: int, check=None):
    """Train; with `check=(sequences, labels)` also the accuracy there after every epoch."""
    torch.manual_seed(0)
    flat = np.concatenate(sequences).astype(np.float64)
    d = flat.shape[1]
    weights = [torch.zeros(d, requires_grad=True) for _ in range(2)] + [torch.zeros(1, requires_grad=True)]
    probe = AdamProbe(flat.mean(0), flat.std(0) + 1e-12, *weights)
    with torch.no_grad():
        probe.head.normal_(0, d**-0.5)
    optimizer = torch.optim.Adam(weights, lr=rate, weight_decay=decay)
    order, accuracy = np.random.default_rng(0), []
    for _ in range(epochs):
        for part in np.array_split(order.permutation(len(labels)), max(len(labels) // BATCH, 1)):
            _, scores = probe.forward(probe.batch([sequences[i] for i in part]))
            target = torch.from_numpy(labels[part].astype(np.float32))
            loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if check is not None:
            accuracy.append(float((probe.predict(check[0])[0] == check[1]).mean()))
    return probe, accuracy


def search(sequences, labels) -> dict[str, float]:
    """Rate, decay and epochs with the best accuracy on a fifth of the training part."""
    cut = len(labels) * 4 // 5
    best: tuple[float, dict[str, float]] = (-1.0, {})
    for rate, decay in itertools.product(RATES, DECAYS):
        held_out = sequences[cut:], labels[cut:]
        _, accuracy = train(sequences[:cut], labels[:cut], rate, decay, EPOCHS, held_out)
        epochs = int(np.argmax(accuracy)) + 1
        best = max(
            best, (max(accuracy), {"rate": rate, "decay": decay, "epochs": epochs}), key=lambda b: b[0]
        )
    return best[1]
