"""A monitor in the loops of others: Lightning's interface and a notebook's, played by stand-ins or real."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs attsvm[torch]")

from attsvm.torch import AttentionPooling, MarginMonitor  # noqa: E402


class Shown:
    """What IPython's display keeps of a figure."""

    def __init__(self):
        self.shown = []

    def update(self, what):
        self.shown.append(what)


@pytest.fixture
def pooling():
    return AttentionPooling(3, heads=2)


def test_lightning_records_before_every_second_step_once_for_all_its_optimizers(pooling, monkeypatch):
    stand_in = ModuleType("lightning.pytorch")
    stand_in.Callback = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "lightning.pytorch", stand_in)
    with MarginMonitor(pooling) as monitor:
        callback = monitor.lightning(every=2)
        assert isinstance(callback, stand_in.Callback)
        for step in range(5):
            pooling(torch.randn(4, 5, 3))
            for optimizer in range(2):
                callback.on_before_optimizer_step(SimpleNamespace(global_step=step), None, optimizer)
    assert [record.step for record in monitor.records] == [0, 0, 2, 2, 4, 4]  # two heads, steps 0, 2, 4


def test_a_trainer_of_lightning_calls_it(pooling, tmp_path):
    lightning = pytest.importorskip("lightning.pytorch", reason="needs the package lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.pooling = pooling

        def training_step(self, batch, index):
            return self.pooling(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 5, 3)), 2)
    monitor = MarginMonitor(pooling)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        max_steps=4, accelerator="cpu", callbacks=[monitor.lightning(2)], default_root_dir=tmp_path, **quiet
    )
    trainer.fit(Module(), data)
    assert [record.step for record in monitor.records] == [0, 0, 2, 2]


def test_a_notebook_redraws_the_figure_when_time_has_passed(pooling, monkeypatch):
    place, played = Shown(), ModuleType("IPython.display")
    played.HTML, played.Image = str, lambda data: data
    played.display = lambda what, display_id: place
    parent = ModuleType("IPython")
    parent.version_info = (9, 0)  # matplotlib asks
    monkeypatch.setitem(sys.modules, "IPython", parent)
    monkeypatch.setitem(sys.modules, "IPython.display", played)
    with MarginMonitor(pooling) as monitor:
        monitor.live(seconds=0)
        for step in range(2):
            pooling(torch.randn(4, 5, 3))
            monitor.record(step)
        assert [png[:4] for png in place.shown] == 2 * [b"\x89PNG"]
        assert place.shown[0] != place.shown[1]
        monitor.live(seconds=1e6)
        for step in range(2, 4):
            monitor.record(step)
    assert len(place.shown) == 2 + 2 + 1  # the first figure twice more, the patient one once


def test_what_is_missing_is_said(pooling, monkeypatch):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning", "IPython", "IPython.display"):
        monkeypatch.setitem(sys.modules, name, None)
    monitor = MarginMonitor(pooling)
    with pytest.raises(ModuleNotFoundError, match="pip install lightning"):
        monitor.lightning()
    with pytest.raises(ModuleNotFoundError, match="notebook"):
        monitor.live()
    monitor.close()
