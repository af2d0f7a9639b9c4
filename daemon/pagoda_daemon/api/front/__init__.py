"""The front process: all servers around one engine."""
