"""Every name by which the Kubernetes API knows us, once.

Groups, versions, plurals, annotations, the finalizer. No imports: the command line may read it
without paying for the models.
"""

from __future__ import annotations

from typing import Final

COZYSTACK_GROUP: Final = "etcd-operator.cozystack.io"
COZYSTACK_VERSION: Final = "v1alpha2"
ETCDMAINT_GROUP: Final = "etcdmaint.io"
ETCDMAINT_VERSION: Final = "v1alpha1"

DEFRAG_KIND: Final = "EtcdDefrag"
DEFRAG_PLURAL: Final = "etcddefrags"
CONNECTION_KIND: Final = "EtcdConnection"
CONNECTION_PLURAL: Final = "etcdconnections"
COMPRESSION_KIND: Final = "StorageCompressionConfiguration"
COMPRESSION_PLURAL: Final = "storagecompressionconfigurations"
CLUSTER_KIND: Final = "EtcdCluster"
CLUSTER_PLURAL: Final = "etcdclusters"
MEMBER_KIND: Final = "EtcdMember"
MEMBER_PLURAL: Final = "etcdmembers"
SNAPSHOT_PLURAL: Final = "etcdsnapshots"

DEFRAG_CRD: Final = f"{DEFRAG_PLURAL}.{COZYSTACK_GROUP}"
CONNECTION_CRD: Final = f"{CONNECTION_PLURAL}.{ETCDMAINT_GROUP}"
COMPRESSION_CRD: Final = f"{COMPRESSION_PLURAL}.{ETCDMAINT_GROUP}"

FINALIZER: Final = "etcdmaint.io/operator"
"""On EtcdDefrags only."""

DRY_RUN_ANNOTATION: Final = "etcdmaint.io/dry-run"
PAUSED_ANNOTATION: Final = "etcdmaint.io/paused"
ALLOW_UNSAFE_VERSION_ANNOTATION: Final = "etcdmaint.io/allow-unsafe-version"
COMPACTION_INTERVAL_ANNOTATION: Final = "etcdmaint.io/compaction-interval"

POLICY_HASH_ANNOTATION: Final = "etcdmaint.io/storage-compression-hash"
"""On the ConfigMap of a StorageCompressionConfiguration: what its file hashes to."""

OTHER_CONTROLLER_LEASE: Final = "aa20b3a9.etcd-operator.cozystack.io"
"""While a Lease of this name is fresh, another controller acts on EtcdDefrags of EtcdClusters."""
