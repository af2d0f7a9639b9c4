"""KV accounts: which blocks are free, shared and whose. Pure; the bytes are the runner's."""
