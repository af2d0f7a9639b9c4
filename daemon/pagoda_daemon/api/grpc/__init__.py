"""The gRPC services: control, state, generation, health."""
