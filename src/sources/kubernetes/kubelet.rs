//! Queries the kubelet over its pod-resources socket for the devices of the containers of this node.
//!
//! The messages are those of pkg/apis/podresources/v1/api.proto of kubernetes/kubelet at 63b3249 (July 2026), without the
//! fields that are not used here: CPUs, memory, topology and shares. The answer has no pod UIDs.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixStream;

use super::cdi::Uuids;
use super::names;
use crate::model::label::Label;

/// Largest answer that is read, as kubectl's and dcgm-exporter's clients accept.
const LARGEST: usize = 16 << 20;
/// Bytes before a gRPC message: a flag for compression, and the length.
const PREFIX: usize = 5;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListPodResourcesResponse {
    #[prost(message, repeated, tag = "1")]
    pod_resources: Vec<PodResources>,
}

#[derive(Clone, PartialEq, Message)]
struct PodResources {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(message, repeated, tag = "3")]
    containers: Vec<ContainerResources>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerResources {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    devices: Vec<ContainerDevices>,
    #[prost(message, repeated, tag = "5")]
    dynamic_resources: Vec<DynamicResource>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerDevices {
    #[prost(string, tag = "1")]
    resource_name: String,
    #[prost(string, repeated, tag = "2")]
    device_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct DynamicResource {
    #[prost(message, repeated, tag = "4")]
    claim_resources: Vec<ClaimResource>,
}

#[derive(Clone, PartialEq, Message)]
struct CdiDevice {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct ClaimResource {
    #[prost(message, repeated, tag = "1")]
    cdi_devices: Vec<CdiDevice>,
    #[prost(string, tag = "2")]
    driver_name: String,
    #[prost(string, tag = "3")]
    pool_name: String,
    #[prost(string, tag = "4")]
    device_name: String,
}

/// One device of one container, as the labels of its series: namespace, pod, container, resource, uuid, driver, pool and
/// device.
pub(super) type Device = [Label; 8];

/// The GPUs of the containers on this node; `uuids` are those of claims.
pub(super) async fn gpus(socket: &Path, patience: Duration, uuids: &Uuids) -> io::Result<BTreeSet<Device>> {
    let Ok(answer) = tokio::time::timeout(patience, list(socket)).await else {
        let why = format!("no answer within {} s", patience.as_secs_f64());
        return Err(io::Error::new(ErrorKind::TimedOut, why));
    };
    answer.map(|answer| devices(&answer, uuids))
}

async fn list(socket: &Path) -> io::Result<ListPodResourcesResponse> {
    let stream = UnixStream::connect(socket).await?;
    let owner = stream.peer_cred()?.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        let why = format!("its socket belongs to user {owner}");
        return Err(io::Error::new(ErrorKind::PermissionDenied, why));
    }
    let invalid =
        |what: &str| io::Error::new(ErrorKind::InvalidData, format!("its answer is not valid: {what}"));
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // It ends with the runtime, which exists for one request.
    tokio::spawn(connection);
    let request = Request::post("http://localhost/v1.PodResourcesLister/List")
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        // ListPodResourcesRequest has no fields.
        .body(Full::new(Bytes::from_static(&[0; PREFIX])))
        .map_err(io::Error::other)?;
    let answer = sender.send_request(request).await.map_err(io::Error::other)?;
    if !answer.status().is_success() {
        return Err(io::Error::other(format!("it answers {}", answer.status())));
    }
    let early = status(answer.headers());
    let body = Limited::new(answer.into_body(), LARGEST).collect().await;
    let body = body.map_err(io::Error::other)?;
    // A call that fails at once has its status in the headers.
    match early.or_else(|| body.trailers().and_then(status)).as_deref() {
        Some("0") => {}
        Some(code) => {
            let code: String = code.chars().take(3).collect();
            return Err(io::Error::other(format!("it answers with gRPC status {code}")));
        }
        None => return Err(invalid("it has no gRPC status")),
    }
    let body = body.to_bytes();
    let (prefix, message) = body.split_at_checked(PREFIX).ok_or_else(|| invalid("it is too short"))?;
    if prefix[0] != 0
        || usize::try_from(u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]))
            != Ok(message.len())
    {
        return Err(invalid("its length is wrong, or it is compressed"));
    }
    ListPodResourcesResponse::decode(message).map_err(|_| invalid("it is not a ListPodResourcesResponse"))
}

fn status(headers: &http::HeaderMap) -> Option<String> {
    Some(headers.get("grpc-status")?.to_str().ok()?.to_owned())
}

/// The GPUs in an answer; names that Kubernetes does not permit are left out.
fn devices(answer: &ListPodResourcesResponse, uuids: &Uuids) -> BTreeSet<Device> {
    let mut found = BTreeSet::new();
    for pod in &answer.pod_resources {
        for container in &pod.containers {
            let names = [&pod.namespace, &pod.name, &container.name];
            if !names.iter().all(|name| names::is_name(name)) {
                continue;
            }
            let [namespace, name, container_name] = names.map(Label::from);
            let mut add = |[resource, uuid, driver, pool, device]: [&str; 5]| {
                let labels = [resource, uuid, driver, pool, device].map(Label::from);
                let [resource, uuid, driver, pool, device] = labels;
                let (namespace, pod, container) = (namespace.clone(), name.clone(), container_name.clone());
                found.insert([namespace, pod, container, resource, uuid, driver, pool, device]);
            };
            for devices in &container.devices {
                let resource = devices.resource_name.as_str();
                for id in devices.device_ids.iter().filter(|id| is_gpu(resource) && is_id(id)) {
                    add([resource, uuid(id, uuids), "", "", id]);
                }
            }
            let claims = container.dynamic_resources.iter().flat_map(|resource| &resource.claim_resources);
            for ClaimResource { cdi_devices, driver_name, pool_name, device_name } in claims {
                if is_gpu(driver_name) && [driver_name, pool_name, device_name].iter().all(|text| is_id(text))
                {
                    let uuid = cdi_devices.iter().find_map(|cdi| uuids.get(&cdi.name));
                    add(["", uuid.map_or("", String::as_str), driver_name, pool_name, device_name]);
                }
            }
        }
    }
    found
}

/// The UUID of the GPU that a device plugin means by an id; empty where it is not known.
fn uuid<'a>(id: &'a str, uuids: &'a Uuids) -> &'a str {
    /// Of `GPU-` or `MIG-` and 32 hexadecimal digits in five groups.
    const LENGTH: usize = 40;
    // Time-slicing and MPS append `::N` to the UUID of the shared GPU, HAMi and Volcano `-N`.
    let whole = id.split("::").next().unwrap_or(id);
    if whole.starts_with("GPU-") || whole.starts_with("MIG-") {
        let (start, share) = whole.split_at_checked(LENGTH).unwrap_or((whole, ""));
        let number = share.strip_prefix('-').unwrap_or_default();
        let is_share = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
        return if is_share { start } else { whole };
    }
    // GKE has device nodes: `nvidia0`, of a shared one `nvidia0/vgpu3`, of a MIG device `nvidia0/gi1`.
    let node = whole.split_once("/vgpu").map_or(whole, |(node, _)| node);
    uuids.get(node).map_or("", String::as_str)
}

/// Whether the name of a resource or driver is one of GPUs: `nvidia.com/gpu`, `nvidia.com/mig-1g.10gb`, `gpu.nvidia.com`.
fn is_gpu(name: &str) -> bool {
    is_id(name) && (name.contains("gpu") || name.contains("/mig-"))
}

/// Whether a text is an ID of a device, a pool or a resource, without characters that control a terminal.
fn is_id(text: &str) -> bool {
    (1..=253).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
pub(super) mod tests {
    use std::convert::Infallible;
    use std::path::PathBuf;

    use http::{HeaderMap, Response};
    use hyper::body::Incoming;
    use hyper::server::conn::http2 as server;
    use hyper::service::service_fn;

    use super::*;

    /// A field with a length, as bytes of the wire format.
    fn field(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag << 3 | 2];
        let mut length = content.len();
        while length > 0x7f {
            bytes.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
            length >>= 7;
        }
        bytes.push(u8::try_from(length).unwrap());
        [&bytes, content].concat()
    }

    /// A pod with one container, written with the field numbers of the proto.
    fn pod(namespace: &str, name: &str, container: &[u8]) -> Vec<u8> {
        let text = [field(1, name.as_bytes()), field(2, namespace.as_bytes()), field(3, container)];
        // Field 4 is cpu_ids, which is not read.
        field(1, &[text.concat(), vec![4 << 3, 7]].concat())
    }

    fn container(name: &str, resources: &[Vec<u8>]) -> Vec<u8> {
        [field(1, name.as_bytes()), resources.concat()].concat()
    }

    fn plugin(resource: &str, ids: &[&str]) -> Vec<u8> {
        let ids: Vec<u8> = ids.iter().flat_map(|id| field(2, id.as_bytes())).collect();
        // Field 3 is the topology.
        field(2, &[field(1, resource.as_bytes()), ids, field(3, &[])].concat())
    }

    fn claim(driver: &str, pool: &str, device: &str) -> Vec<u8> {
        let of = [field(1, &field(1, b"k8s.gpu.nvidia.com/claim=x")), field(2, driver.as_bytes())];
        let of = [of.concat(), field(3, pool.as_bytes()), field(4, device.as_bytes())].concat();
        field(5, &[field(2, b"claim"), field(3, b"ns"), field(4, &of)].concat())
    }

    /// The message with its prefix.
    fn framed(message: &[u8]) -> Vec<u8> {
        [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
    }

    /// The answer of a node with one pod that has a GPU.
    pub(crate) fn one_gpu() -> Vec<u8> {
        let of = container("train", &[plugin("nvidia.com/gpu", &["GPU-1"])]);
        framed(&pod("team", "llama-0", &of))
    }

    /// Serves each connection with `body` and the gRPC status `code`; without a status, it never answers.
    pub(crate) fn serve(
        socket: PathBuf,
        body: Vec<u8>,
        code: Option<&'static str>,
    ) -> tokio::task::JoinHandle<()> {
        let listener = tokio::net::UnixListener::bind(socket).unwrap();
        let body = Bytes::from(body);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let body = body.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let body = body.clone();
                    async move {
                        assert_eq!(request.uri().path(), "/v1.PodResourcesLister/List");
                        assert_eq!(request.headers()["content-type"], "application/grpc");
                        let request_body = request.into_body().collect().await.unwrap().to_bytes();
                        assert_eq!(&request_body[..], &[0; PREFIX]);
                        let Some(code) = code else { return std::future::pending().await };
                        let mut trailers = HeaderMap::new();
                        trailers.insert("grpc-status", code.parse().unwrap());
                        let answer = Full::new(body).with_trailers(std::future::ready(Some(Ok(trailers))));
                        Ok::<_, Infallible>(Response::new(answer))
                    }
                });
                tokio::spawn(
                    server::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        })
    }

    /// Queries a kubelet with this answer and returns the result.
    fn query(body: Vec<u8>, code: Option<&'static str>, patience: u64) -> Result<Vec<String>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("kubelet.sock");
        let found = runtime.block_on(async {
            let server = serve(socket.clone(), body, code);
            let uuids = [("k8s.gpu.nvidia.com/claim=x".to_owned(), "GPU-4".to_owned())].into();
            let found = gpus(&socket, Duration::from_millis(patience), &uuids).await;
            server.abort();
            found
        });
        let line = |device: &Device| device.iter().map(Label::as_str).collect::<Vec<_>>().join(",");
        found.map(|devices| devices.iter().map(line).collect()).map_err(|error| error.to_string())
    }

    const PATIENT: u64 = 60_000;

    #[test]
    fn a_gpu_is_found_by_what_its_plugin_calls_it() {
        let whole = "GPU-4e0b1c5e-1111-2222-3333-444455556666";
        let uuids: Uuids = [("nvidia0".to_owned(), "GPU-of-0".to_owned())].into();
        let share = format!("{whole}-7");
        for (id, expected) in [
            (whole, whole),
            (&share, whole),
            ("GPU-2::3", "GPU-2"),
            ("nvidia0", "GPU-of-0"),
            ("nvidia0/vgpu3", "GPU-of-0"),
            ("nvidia0/gi1", ""),
            ("nvidia1", ""),
            ("other", ""),
        ] {
            assert_eq!(uuid(id, &uuids), expected, "{id}");
        }
    }

    #[test]
    fn devices_of_plugins_and_claims_are_listed() {
        let first = container(
            "train",
            &[
                plugin("nvidia.com/gpu", &["GPU-1", "GPU-2::3"]),
                plugin("nvidia.com/mig-1g.10gb", &["MIG-9"]),
                plugin("rdma/hca", &["mlx5_0"]),
                claim("gpu.nvidia.com", "node-1", "gpu-4"),
                claim("nic.example.com", "node-1", "nic-0"),
            ],
        );
        let body = [pod("team", "llama-0", &first), pod("team", "web", &container("nginx", &[]))].concat();
        let found = query(framed(&body), Some("0"), PATIENT).unwrap();
        assert_eq!(
            found,
            [
                "team,llama-0,train,,GPU-4,gpu.nvidia.com,node-1,gpu-4",
                "team,llama-0,train,nvidia.com/gpu,GPU-1,,,GPU-1",
                "team,llama-0,train,nvidia.com/gpu,GPU-2,,,GPU-2::3",
                "team,llama-0,train,nvidia.com/mig-1g.10gb,MIG-9,,,MIG-9",
            ]
        );
    }

    #[test]
    fn names_that_kubernetes_does_not_permit_are_left_out() {
        let of = container("train", &[plugin("nvidia.com/gpu", &["GPU-1\u{1b}[2J", "", "GPU-2"])]);
        let bodies = [
            pod("te\nam", "a", &of),
            pod("team", "../a", &of),
            pod("", "a", &of),
            pod("team", "a", &container("\u{202e}", &[plugin("nvidia.com/gpu", &["GPU-1"])])),
            pod("team", "b", &of),
        ];
        let found = query(framed(&bodies.concat()), Some("0"), PATIENT).unwrap();
        assert_eq!(found, ["team,b,train,nvidia.com/gpu,GPU-2,,,GPU-2"]);
    }

    #[test]
    fn an_invalid_answer_is_an_error() {
        let error = |body: Vec<u8>, code| query(body, code, PATIENT).unwrap_err();
        assert!(error(Vec::new(), Some("0")).contains("too short"));
        assert!(error(one_gpu(), Some("12")).contains("gRPC status 12"));
        let mut longer = one_gpu();
        longer.push(0);
        assert!(error(longer, Some("0")).contains("length is wrong"));
        assert!(
            error(framed(b"\x0a\xff\xff\xff\xff\x0f"), Some("0")).contains("not a ListPodResourcesResponse")
        );
        assert!(error(framed(&pod("\u{fffd}", "a", &[0xff])), Some("0")).contains("not a ListPod"));
        assert!(error(vec![0; LARGEST + 1], Some("0")).contains("length limit"));
    }

    #[test]
    fn a_kubelet_that_does_not_answer_is_not_waited_for() {
        let error = query(Vec::new(), None, 50).unwrap_err();
        assert_eq!(error, "no answer within 0.05 s");
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            if let Ok(answer) = ListPodResourcesResponse::decode(&bytes[..]) {
                let _ = devices(&answer, &Uuids::new());
            }
        }
    }
}
