"""What OpenAI's API reads and writes: types of requests and replies, and their checks. Pure."""
