"""Property tests check the same examples at every run, however busy the machine is."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "same examples, any time",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("same examples, any time")
