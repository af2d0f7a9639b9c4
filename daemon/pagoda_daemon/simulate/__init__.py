"""`pagoda-daemon simulate`: the production core on a virtual clock with a device of the catalogue. No torch, no weights, no sockets."""
