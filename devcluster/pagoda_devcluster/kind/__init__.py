"""The kind provider: the same cluster out of Docker containers. Unproven: no test has run it on an engine."""
