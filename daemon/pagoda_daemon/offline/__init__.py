"""The engine without a server: `Engine` answers prompts of a notebook or an evaluation, by what serves them over HTTP (docs/offline.md)."""

from pagoda_daemon.offline.engine import Engine
from pagoda_daemon.offline.results import Choice, Logprob, Result
from pagoda_daemon.offline.sampling import Sampling

__all__ = ["Choice", "Engine", "Logprob", "Result", "Sampling"]
