"""The API server: requests, answers, retries, watches."""
