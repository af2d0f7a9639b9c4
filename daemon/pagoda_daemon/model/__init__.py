"""The model's files and mathematics: config.json, safetensors, the forward pass. Knows tensors, nothing of requests."""
