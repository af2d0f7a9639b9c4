"""What runs in a pod: settings, the gRPC service, the sidecar and its probes."""
