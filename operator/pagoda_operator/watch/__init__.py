"""What the watches showed: caches of objects, and what keeps them right."""
