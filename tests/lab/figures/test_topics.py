"""The figure of topic changes."""

import numpy as np

from attsvm_lab.figures.topics.changes import STORED, experiment


def test_every_text_is_kept_ambiguous_or_changed():
    arrays = experiment()
    for name in ("lengths", "arrows"):
        for reading in ("trained", "unit", "published", "program"):
            counts = arrays[f"{name}_{reading}"]
            assert (counts[:, :3].sum(1) == 100).all()
            np.testing.assert_array_equal(counts[:, 3:].sum(1), counts[:, 2])


def test_stored_cases_are_parts_of_the_stored_changes():
    stored = STORED["lengths"]
    changed, parts = stored["changed"], zip(stored["top"], stored["outnumbered"], strict=True)
    assert all(sum(part) <= all_ for part, all_ in zip(parts, changed, strict=True))
