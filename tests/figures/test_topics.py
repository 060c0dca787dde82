"""The figure of topic changes."""

import numpy as np

from attsvm.figures.topics.changes import STORED, experiment


def test_the_programs_meet_both_theorems():
    agreements = {check.what: check.agreement for check in experiment.checks(experiment())}
    assert all(found == "agrees" for what, found in agreements.items() if what.startswith("programs"))


def test_trained_weights_under_the_name_of_programs_are_seen():
    arrays = experiment()
    wrong = arrays | {"lengths_program": arrays["lengths_trained"]}
    found = [check.agreement for check in experiment.checks(wrong) if check.what.startswith("programs")]
    assert set(found) == {"differs, not explained"}


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


def test_every_panel_names_its_axes():
    assert all(ax.get_title() and ax.get_xlabel() for ax in experiment.draw(experiment()).axes)
