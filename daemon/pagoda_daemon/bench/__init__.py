"""`pagoda-daemon bench`: load against any OpenAI endpoint, measured and reported in the shapes of `vllm bench serve` (docs/offline.md)."""
