# Messages stay inside this package, and `messages` turns them into typed data.
from typing import Any

def __getattr__(name: str) -> Any: ...
