"""A model's tokenizer.json → what llguidance matches by: the bytes of every id below the model's vocabulary, and one id more, which stands
for "the text may end". Called by `worker`.

The model's own end tokens are of no interest here: the user of the masks knows them, and whether they count (ignore_eos, stop ids).
"""

from __future__ import annotations

from llguidance import LLTokenizer, TokenizerWrapper


class _Vocabulary:
    """The shape that llguidance wants of a tokenizer."""

    def __init__(self, base: LLTokenizer, vocab_size: int) -> None:
        known = min(base.vocab_size, vocab_size)
        self._base = base
        self.tokens = [base.decode_bytes([token]) for token in range(known)] + [b""] * (vocab_size - known) + [b"<|end of text|>"]
        self.special_token_ids = [*(token for token in range(known) if base.is_special_token(token)), vocab_size]
        self.eos_token_id = vocab_size
        self.bos_token_id = None

    def __call__(self, text: bytes) -> list[int]:
        """Where bytes are forced, the mask allows the tokenizer's own way of writing them only."""
        return self._base.tokenize_bytes(text)


def read_vocabulary(tokenizer_json: str, vocab_size: int) -> LLTokenizer:
    """ValueError where llguidance does not know the tokenizer's kind."""
    base = LLTokenizer(tokenizer_json)
    return LLTokenizer(TokenizerWrapper(_Vocabulary(base, vocab_size)))
