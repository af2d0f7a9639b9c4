"""The examples' tiny model for tests: where it is, and what it must say. Trains it on first use (about half a minute on 2 cores)."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"
sys.path.insert(0, str(EXAMPLES))  # the examples are scripts, not a package: they import each other by plain name


def tiny_model() -> Path:
    """The model's directory. In a process of its own, because training sets torch's threads."""
    done = subprocess.run([sys.executable, EXAMPLES / "train_tiny.py", "--quiet"], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip())
