"""What a claim is: a statement of a paper that can be run, and its broken twin."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from attsvm.verdict import Verdict

Check = Callable[[int], Verdict]


@dataclass(frozen=True)
class Claim:
    """A statement as a function seed → Verdict.

    check: the experiment, named by its conclusion; its docstring gives statement and hypotheses.
    twin: the same experiment with one hypothesis removed, which must not hold; removed: which one.
    reference: paper and number; mark: how sure we are that the paper says so ("text", "recalled-H", …).
    chosen_on: the seeds on which its settings were chosen; what holds on others was not looked for.
    """

    check: Check
    twin: Check
    removed: str
    reference: str
    mark: str
    chosen_on: range = range(20)

    @property
    def name(self) -> str:
        return self.check.__name__

    @property
    def statement(self) -> str:
        """The first paragraph of the check's docstring, on one line."""
        text = inspect.cleandoc(self.check.__doc__ or "")
        return " ".join(text.split("\n\n")[0].split())

    def __call__(self, seed: int) -> Verdict:
        return self.check(seed)
