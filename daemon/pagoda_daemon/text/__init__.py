"""Text ⇄ token ids: tokenizer, chat template, detokenisation, stop strings."""
