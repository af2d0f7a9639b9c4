"""The model directory of a simulated replica, under the name that tests know it by, and its text."""

import functools
import tempfile
from pathlib import Path

from pagoda_daemon.simulated.replicas.text import BOS, EOS, IM_END, IM_START, TEMPLATE, VOCAB, byte_characters, tiny_model_dir, vocabulary
from pagoda_daemon.text.tokens import ModelText

__all__ = ["BOS", "EOS", "IM_END", "IM_START", "TEMPLATE", "VOCAB", "byte_characters", "tiny_model_dir", "toy_text", "vocabulary"]


@functools.cache
def toy_text() -> ModelText:
    """One for all: it keeps nothing of a request, and each of its own would start processes that render its template."""
    with tempfile.TemporaryDirectory(prefix="pagoda-test-") as folder:
        return ModelText(tiny_model_dir(Path(folder)))
