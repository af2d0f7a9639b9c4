"""Anthropic's Messages API: its requests become chat requests, and answers are written in its shapes."""
