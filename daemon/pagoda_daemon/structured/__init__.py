"""Structured output: grammars are compiled, and turned into token masks, by processes that may be killed (`pool`, `worker`)."""
