"""The Python example of the README runs, with the default model."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.real_models import model_path

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_python_example_runs(tmp_path: Path) -> None:
    model_path("smollm2-135m")  # which it takes as the default
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
