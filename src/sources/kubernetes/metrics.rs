//! Metrics of the `kubernetes` source.

use crate::model::units::{Flag, Seconds};

crate::metrics! {
    /// GPU that the kubelet assigned to a container: of a device plugin, resource is the resource's name and device the device's ID, of which uuid is the GPU or MIG device; of a resource claim (DRA), driver, pool and device identify the device, and uuid is that of a whole GPU whose device node a CDI file names. Always 1; a label is empty where it does not apply, and there are no series while the kubelet's last answer is older than three intervals.
    pub POD_GPU: Gauge<Flag> = "memwarden_pod_gpu_info" {namespace, pod, container, resource, uuid, driver, pool, device}.budget(4_000);
    /// Time since the kubelet last answered which devices the containers of this node have; absent before its first answer.
    pub AGE: Gauge<Seconds> = "memwarden_kubernetes_answer_age_seconds" {};
}
