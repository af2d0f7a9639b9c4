"""The engine process: its messages, its loop, its heartbeat. The core inside it imports no torch."""
