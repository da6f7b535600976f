"""Removes a cluster in any state; needs only its record."""

import hashlib
import shutil
import time
from pathlib import Path

from localcluster import cgroups, controlplane, host, node, processes
from localcluster.addresses import Addresses
from localcluster.errors import ClusterError
from localcluster.record import Record


def config_file(cluster: Record) -> Path:
    """The file whose path in a process's command line identifies the cluster's supervisors."""
    return cluster.data / (controlplane.CONFIG_FILE if cluster.network is None else node.CONFIG_FILE)


def cgroup_name(cluster: Record) -> str:
    """The cgroup folder of the cluster's pods; a hash of the data folder distinguishes clusters of one name."""
    return f"octavo-{cluster.name}-{hashlib.sha256(str(cluster.data).encode()).hexdigest()[:8]}"


def tear_down(cluster: Record) -> None:
    """Removes processes, link, cgroups, data, record, in this order; raises ClusterError with what remains.

    Mounts, pods, bridges and packet filter rules are removed with the namespaces, and these with their first process.
    """
    if not processes.kill(config_file(cluster)):
        raise ClusterError(f"processes of cluster {cluster.name} still exist 30 s after SIGKILL; run down again")
    if cluster.network is not None:
        host.delete_link(Addresses(cluster.network).link, str(cluster.data))
        if left := cgroups.remove(cgroup_name(cluster)):
            raise ClusterError(f"cgroups that cannot be removed: {', '.join(map(str, left))}; run down again")
    _remove_folder(cluster.data)
    cluster.forget()


def _remove_folder(folder: Path) -> None:
    # The namespace's mounts of the folder may be released shortly after its processes.
    for attempt in range(50):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            if attempt == 49:
                raise ClusterError(f"cannot remove {folder}: {error}; run down again") from error
            time.sleep(0.1)
        else:
            return
