"""The front: everything that clients, gateways and the operator talk to."""
