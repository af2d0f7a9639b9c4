"""The model's volume: files in the making, finished models, and locks."""
