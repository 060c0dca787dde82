"""The examples of the README and of the first pages, judged by `mypy --strict` as a user's own code would be.

python .ci/check_examples.py
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("README", "docs/index", "docs/start/implicit_bias", "docs/start/teach", "docs/choosing")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for page in PAGES:
            blocks = re.findall(
                r"^```python\n(.*?)^```", (ROOT / f"{page}.md").read_text(encoding="utf8"), re.M | re.S
            )
            file = Path(folder, f"{page.replace('/', '_')}.py")
            file.write_text("\n".join(blocks), encoding="utf8")
            files.append(str(file))
        command = [sys.executable, "-m", "mypy", "--strict", *files]
        return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
