"""The objects of a revision, and the types of writes."""
