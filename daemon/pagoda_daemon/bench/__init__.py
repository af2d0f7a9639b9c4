"""`pagoda-daemon bench`: load against any OpenAI endpoint, and what it measured, in the shapes of `vllm bench serve` (docs/benchmarks.md)."""
