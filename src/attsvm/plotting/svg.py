"""SVG files whose bytes are the same from run to run."""

from __future__ import annotations

import re
from pathlib import Path as File
from typing import Any


def write_svg(canvas: Any, file: File) -> None:
    """Write a drawing to an SVG file; the same drawing gives the same bytes.

    Matplotlib's ids are random, so that two files of one figure would differ. They are replaced by numbers.
    """
    canvas.savefig(file, metadata={"Date": None})
    text = file.read_text(encoding="utf8")
    numbered = {name: f"{file.stem}-{k}" for k, name in enumerate(re.findall(r'\bid="([^"]+)"', text))}
    uses = re.compile(r'(?<=\bid=")[^"]+|(?<=#)[\w.-]+(?=["\)])')
    file.write_text(uses.sub(lambda match: numbered.get(match[0], match[0]), text), encoding="utf8")
