"""The process: Kopf's handlers, probes, metrics, logs, and the parts put together."""
