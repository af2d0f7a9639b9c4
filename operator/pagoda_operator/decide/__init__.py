"""What to write and what to say. Pure: no client, no clock, no chance."""
