"""Defragmentation of an etcd cluster: one member at a time, never at the cost of quorum or data."""
