"""How a model is asked for the text between a prefix and a suffix, by the special tokens that it was trained with. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple


class Infill(NamedTuple):
    """`before` prefix `between` suffix `after`, and the model answers with the middle."""

    before: str
    between: str
    after: str

    def written(self, prefix: str, suffix: str) -> str:
        """The whole prompt."""
        return f"{self.before}{prefix}{self.between}{suffix}{self.after}"


# Each from the model's published card: Qwen2.5-Coder and CodeGemma, StarCoder 1 and 2, Granite code, DeepSeek-Coder, Code Llama.
FORMS: Final = (
    Infill("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    Infill("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    Infill("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    Infill("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    Infill("▁<PRE>", "▁<SUF>", "▁<MID>"),
)


def infill_of(is_token: Callable[[str], bool]) -> Infill | None:
    """The first form whose three tokens the tokenizer has; None if the model was not trained for it."""
    return next((form for form in FORMS if all(map(is_token, form))), None)
