"""An etcd v3 client for those who look after etcd: asyncio over grpcio, one channel to one member.

It is a library of its own: it knows nothing of Kubernetes, nor of what its callers do with etcd.
Import from the modules: `endpoint` (addresses), `access` (TLS, login), `types` (what etcd answers),
`client` (one member), `cluster` (all of them), `watch`, `metrics` (a member's own /metrics)::

    async with MemberClient(Endpoint.parse("127.0.0.1:2379"), Access()) as member:
        status = await member.status()

Every failure is a subclass of `etcdmaint.errors.EtcdError`, told by gRPC code *and* etcd's text,
since both differ between releases. Nothing is ever retried, but for one login when a token expired.
"""
