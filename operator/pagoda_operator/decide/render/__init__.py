"""The objects of a revision, the types of writes, and how a model's shape is learned."""
