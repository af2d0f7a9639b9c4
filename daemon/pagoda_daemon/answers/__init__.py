"""How models write answers: reasoning, content and calls in one text. Pure; `api/openai/reading.py` chooses among the parsers."""
