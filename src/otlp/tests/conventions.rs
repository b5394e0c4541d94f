//! What is sent under the names of the semantic conventions of what memwarden measures.

use bytes::Buf as _;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use prost::Message as _;

use super::super::body::Encoder;
use super::super::{resource, stream};
use super::world::{World, frame_of, lines};
use crate::analyzers::xid;
use crate::catalog::{self, cgroup, gpu, workload};
use crate::config::OtlpNames;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Flag};

const POD: &str = "/kubepods.slice/kubepods-pod2b9c0f4e_0d8b_4a53_8b8a_0b1d6f0c9e11.slice";
const UID: &str = "2b9c0f4e-0d8b-4a53-8b8a-0b1d6f0c9e11";

/// The id of a container.
fn id(digit: char) -> String {
    std::iter::repeat_n(digit, 64).collect()
}

/// What is pushed of a frame.
fn pushed(fill: impl FnOnce(&mut Batch)) -> String {
    let mut batch = Batch::new();
    fill(&mut batch);
    let frame = frame_of(batch);
    let encoder = Encoder::new(
        stream::streams(&catalog::all().collect::<Vec<_>>(), OtlpNames::Semconv),
        &resource::resource(&std::collections::BTreeMap::new(), "node:10636".to_owned()),
        false,
        Timestamp::from_secs(0),
    );
    let body = World::new().runtime.block_on(encoder.encode(&frame, None, Timestamp::from_secs(1)));
    let Some(mut body) = body else { return String::new() };
    let request = ExportMetricsServiceRequest::decode(body.copy_to_bytes(body.remaining())).unwrap();
    // The identity of a workload itself has no name in the conventions.
    let lines = lines(&request).into_iter().filter(|line| !line.starts_with("memwarden."));
    lines.collect::<Vec<_>>().join("\n").replace("AGGREGATION_TEMPORALITY_", "")
}

/// The identity of a workload.
fn info(labels: &[(&str, &str)]) -> Vec<Label> {
    let names = workload::INFO.desc.labels.iter();
    names
        .map(|name| labels.iter().find(|(own, _)| own == name).map_or("", |(_, value)| value).into())
        .collect()
}

#[test]
fn a_gpu_has_its_state_and_the_errors_of_its_lifetime() {
    let text = pushed(|batch| {
        for (error, scope, count) in [
            ("corrected", "volatile", 1),
            ("corrected", "aggregate", 12),
            ("uncorrected", "volatile", 3),
            ("uncorrected", "aggregate", 34),
        ] {
            batch.put(&gpu::ECC_ERRORS, &["0", "GPU-a", error, scope].map(Label::from), Count(count));
        }
        for state in ["ok", "degraded", "failed", "predicted_failure"] {
            let current = Flag(state == "predicted_failure");
            batch.put(&xid::metrics::STATE, &["0", "GPU-a", state].map(Label::from), current);
        }
    });
    expect_test::expect![[r#"
        hw.errors{error.type="corrected",gpu="0",hw.id="GPU-a",hw.type="gpu"} 12 sum(true, CUMULATIVE) {error}
        hw.errors{error.type="uncorrected",gpu="0",hw.id="GPU-a",hw.type="gpu"} 34 sum(true, CUMULATIVE) {error}
        hw.status{gpu="0",hw.id="GPU-a",hw.state="degraded",hw.type="gpu"} 0 sum(false, CUMULATIVE) 1
        hw.status{gpu="0",hw.id="GPU-a",hw.state="failed",hw.type="gpu"} 0 sum(false, CUMULATIVE) 1
        hw.status{gpu="0",hw.id="GPU-a",hw.state="ok",hw.type="gpu"} 0 sum(false, CUMULATIVE) 1
        hw.status{gpu="0",hw.id="GPU-a",hw.state="predicted_failure",hw.type="gpu"} 1 sum(false, CUMULATIVE) 1"#]]
    .assert_eq(&text);
}

#[test]
fn a_container_is_identified_as_the_kernel_and_the_kubelet_do() {
    let (train, pause, docker, forged) = (id('a'), id('b'), id('c'), id('d'));
    let text = pushed(|batch| {
        let pod = info(&[
            ("workload", "ml/llama"),
            ("kind", "pod"),
            ("cgroup", POD),
            ("namespace", "ml"),
            ("pod", "llama"),
            ("container", "train"),
            ("pod_uid", UID),
            ("container_id", &train),
        ]);
        batch.put(&workload::INFO, &pod, Flag(true));
        let path = format!("/system.slice/docker-{docker}.scope");
        let container =
            [("workload", "x"), ("kind", "container"), ("cgroup", &path), ("container_id", &docker)];
        batch.put(&workload::INFO, &info(&container), Flag(true));
        let mut used = |path: String, bytes| batch.put(&cgroup::USAGE, &[path.into()], Bytes::new(bytes));
        used(format!("{POD}/cri-containerd-{train}.scope"), 100);
        used(format!("{POD}/cri-containerd-{pause}.scope"), 1);
        used(path.clone(), 7);
        // These are the cgroup of the pod, one that a container made, one of no container, and one that a user named so.
        used(POD.to_owned(), 101);
        used(format!("{POD}/cri-containerd-{train}.scope/inner"), 50);
        used("/system.slice/sshd.service".to_owned(), 9);
        used(format!("/user.slice/user-1000.slice/user@1000.service/docker-{docker}.scope"), 9);
        used(format!("/system.slice/docker-{forged}.scope"), 9);
    });
    expect_test::expect![[r#"
        container.memory.usage{cgroup="/kubepods.slice/kubepods-pod2b9c0f4e_0d8b_4a53_8b8a_0b1d6f0c9e11.slice/cri-containerd-A.scope",container.id="A",k8s.container.name="train",k8s.namespace.name="ml",k8s.pod.name="llama",k8s.pod.uid="2b9c0f4e-0d8b-4a53-8b8a-0b1d6f0c9e11"} 100 sum(false, CUMULATIVE) By
        container.memory.usage{cgroup="/kubepods.slice/kubepods-pod2b9c0f4e_0d8b_4a53_8b8a_0b1d6f0c9e11.slice/cri-containerd-B.scope",container.id="B",k8s.namespace.name="ml",k8s.pod.name="llama",k8s.pod.uid="2b9c0f4e-0d8b-4a53-8b8a-0b1d6f0c9e11"} 1 sum(false, CUMULATIVE) By
        container.memory.usage{cgroup="/system.slice/docker-C.scope",container.id="C"} 7 sum(false, CUMULATIVE) By"#]]
        .assert_eq(&text.replace(&train, "A").replace(&pause, "B").replace(&docker, "C"));
}

/// In a cgroup namespace of its own, as a pod without privileges has, memwarden sees the processes of others at relative paths.
#[test]
fn a_container_is_identified_by_the_relative_path_of_its_processes() {
    let train = id('a');
    let text = pushed(|batch| {
        let relative = POD.replace("/kubepods.slice", "/../..");
        let pod = [("workload", "w"), ("kind", "pod"), ("cgroup", relative.as_str()), ("pod_uid", UID)];
        batch.put(&workload::INFO, &info(&pod), Flag(true));
        let path = format!("{POD}/cri-containerd-{train}.scope");
        batch.put(&cgroup::WORKING_SET, &[path.as_str().into()], Bytes::new(5));
        batch.put(&cgroup::ANON, &[path.into()], Bytes::new(4));
    });
    expect_test::expect![[r#"
        container.memory.rss{cgroup="/kubepods.slice/kubepods-pod2b9c0f4e_0d8b_4a53_8b8a_0b1d6f0c9e11.slice/cri-containerd-A.scope",container.id="A",k8s.pod.uid="2b9c0f4e-0d8b-4a53-8b8a-0b1d6f0c9e11"} 4 sum(false, CUMULATIVE) By
        container.memory.working_set{cgroup="/kubepods.slice/kubepods-pod2b9c0f4e_0d8b_4a53_8b8a_0b1d6f0c9e11.slice/cri-containerd-A.scope",container.id="A",k8s.pod.uid="2b9c0f4e-0d8b-4a53-8b8a-0b1d6f0c9e11"} 5 sum(false, CUMULATIVE) By"#]]
    .assert_eq(&text.replace(&train, "A"));
}
