"""etcdmaint keeps etcd small, fast and alive: it compacts, defragments and compresses."""

import os

__version__ = "0.1.0"

# gRPC writes to stderr by itself, into JSON logs and over progress lines. It reads this once, when it is
# imported by whichever module comes first; whoever sets the variable gets it all the same.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
