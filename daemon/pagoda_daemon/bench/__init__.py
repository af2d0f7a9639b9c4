"""`pagoda-daemon bench`: load against any OpenAI endpoint, measured and told in the shapes of `vllm bench serve` (docs/offline.md)."""
