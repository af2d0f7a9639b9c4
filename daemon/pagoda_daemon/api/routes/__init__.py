"""The HTTP routes: from a body to a submission, from deltas to an answer."""
