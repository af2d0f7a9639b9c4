"""What each tenant holds and may hold."""
