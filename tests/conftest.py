"""What every test may use: the fixtures that start real servers."""

import signal
import threading

from hypothesis import settings

pytest_plugins = ["tests.controlplane.fixtures"]

# How long one example takes says how busy the machine is, nothing else.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

# A shell ignores SIGINT for what it starts in the background, and children inherit that: tests that
# interrupt one would wait for ever.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
