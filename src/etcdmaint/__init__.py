"""etcdmaint keeps etcd small, fast and alive: it compacts, defragments and compresses."""

__version__ = "0.1.0"
