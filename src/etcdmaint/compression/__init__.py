"""KEP-6264, storage object compression: what a value in etcd looks like, and when it is a frame.

`frame` is the byte format, `policy` the configuration, `transformer` joins the two in front of a
delegate, `resources` and `stored_value` read what lies in etcd. Importing any of them loads neither
grpc nor kopf nor pydantic.
"""
