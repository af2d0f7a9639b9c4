"""The inference daemon: one front process (HTTP, gRPC, probes) and one engine process (core and worker) per replica."""
