"""Settings for all tests: examples are the same in every run, and no example is judged by the wall clock of a busy machine."""

from hypothesis import HealthCheck, settings

settings.register_profile("pagoda", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pagoda")
