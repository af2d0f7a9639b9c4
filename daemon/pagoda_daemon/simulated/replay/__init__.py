"""`pagoda-daemon simulate`: a trace through the real scheduler, on a virtual clock."""
