"""What every test may use: the fixtures that start real servers."""

import gc
import importlib
import os
import pkgutil
import signal
import threading
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

import etcdmaint

pytest_plugins = ["tests.controlplane.fixtures"]

# How long an example takes, or the making of one, says how busy the machine is, nothing else. Each run has
# the same examples, so that it judges the change and not its luck; whoever asks for more gets others.
settings.register_profile(
    "unhurried",
    deadline=None,
    derandomize="ETCDMAINT_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unhurried")

# Whoever runs the tests may have an etcd of their own.
for _name in [name for name in os.environ if name.startswith("ETCDCTL_")]:
    del os.environ[_name]

# A shell ignores SIGINT for what it starts in the background, and children inherit that: tests that
# interrupt one would wait for ever.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Load every module before the first property is tried: examples are drawn from their constants too.

    Otherwise a run's examples would depend on which tests its worker has happened to run before.
    """
    if any(item.get_closest_marker("hypothesis") for item in session.items):
        for found in pkgutil.walk_packages(etcdmaint.__path__, "etcdmaint."):
            importlib.import_module(found.name)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: looking through it for garbage takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
