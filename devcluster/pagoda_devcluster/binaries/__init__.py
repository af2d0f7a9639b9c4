"""Which binaries a cluster needs, and how they are compiled."""
