"""The HTTP server: application, connections, listener."""
