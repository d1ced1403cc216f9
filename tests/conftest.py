"""What every test may use: the fixtures that start real servers."""

from hypothesis import settings

pytest_plugins = ["tests.controlplane.fixtures"]

# How long one example takes says how busy the machine is, nothing else.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
