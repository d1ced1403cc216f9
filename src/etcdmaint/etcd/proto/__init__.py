"""etcd's wire messages: `etcd.proto` is written by hand, `etcd_pb2` is generated from it."""
