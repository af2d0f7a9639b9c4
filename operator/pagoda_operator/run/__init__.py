"""One run for one service, and the queue that starts it."""
