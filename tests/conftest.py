"""What every test may use: the fixtures that start real servers."""

pytest_plugins = ["tests.controlplane.fixtures"]
