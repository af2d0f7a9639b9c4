"""What each child of a service should be."""
