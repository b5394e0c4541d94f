//! A job in a pod: a real cgroup with the path of a pod's container, the log folders of a kubelet, and a kubelet that
//! answers on its socket. The daemon shows the job under the names that its owner uses, and gives them to a hook.

use std::convert::Infallible;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::SOON;
use super::hooks::records_environment;
use super::job::{Job, saving};
use super::room::Room;
use crate::harness::{fake_nvml, wait_for};

/// Labels of one device: the resource, the UUID, and the driver, pool and device of a claim.
type Device<'a> = [&'a str; 5];

/// A field of the wire format: its number, its length, and its content.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = content.len();
    while length > 0x7f {
        bytes.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    bytes.push(u8::try_from(length).unwrap());
    [&bytes, content].concat()
}

/// A ListPodResourcesResponse with one container, with the field numbers of the kubelet's api.proto, as gRPC sends it.
fn answer(devices: &[Device<'_>]) -> Vec<u8> {
    let resource = |[resource, uuid, driver, pool, device]: &Device<'_>| {
        let text = |number, text: &str| field(number, text.as_bytes());
        if driver.is_empty() {
            field(2, &[text(1, resource), text(2, uuid)].concat())
        } else {
            let claim = [text(2, driver), text(3, pool), text(4, device)].concat();
            field(5, &[text(2, "claim"), text(3, "ml"), field(4, &claim)].concat())
        }
    };
    let resources: Vec<u8> = devices.iter().flat_map(resource).collect();
    let container = field(3, &[field(1, b"pytorch"), resources].concat());
    let message = field(1, &[field(1, b"train-0"), field(2, b"ml"), container].concat());
    [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), &message].concat()
}

/// A kubelet; it ends when dropped.
struct Kubelet {
    body: Arc<Mutex<Bytes>>,
    _runtime: tokio::runtime::Runtime,
}

impl Kubelet {
    fn start(socket: &Path, devices: &[Device<'_>]) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let body = Arc::new(Mutex::new(Bytes::from(answer(devices))));
        let shared = Arc::clone(&body);
        let entered = runtime.enter();
        let listener = tokio::net::UnixListener::bind(socket).unwrap();
        drop(entered);
        runtime.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let shared = Arc::clone(&shared);
                let service = service_fn(move |_: http::Request<hyper::body::Incoming>| {
                    let mut trailers = http::HeaderMap::new();
                    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
                    let body = Full::new(shared.lock().unwrap().clone());
                    let body = body.with_trailers(std::future::ready(Some(Ok(trailers))));
                    std::future::ready(Ok::<_, Infallible>(http::Response::new(body)))
                });
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { body, _runtime: runtime }
    }

    fn say(&self, devices: &[Device<'_>]) {
        *self.body.lock().unwrap() = Bytes::from(answer(devices));
    }
}

/// A folder that only its owner can write.
fn folder(path: PathBuf) -> PathBuf {
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn a_pod_is_shown_and_asked_under_the_names_of_its_owner() {
    let number = std::process::id();
    let uid = format!("1a2b3c4d-0000-1111-2222-{number:012}");
    let container = format!("{number:064x}");
    let Some(room) = Room::of_pod(&uid, &container) else { return };
    let (pods, containers) = (folder(room.path("pods")), folder(room.path("containers")));
    let log = folder(pods.join(format!("ml_train-0_{uid}")));
    let link = containers.join(format!("train-0_ml_pytorch-{container}.log"));
    symlink(log.join("pytorch/0.log"), &link).unwrap();
    let socket = room.path("kubelet.sock");
    let plugin = ["nvidia.com/gpu", "GPU-a", "", "", ""];
    let kubelet = Kubelet::start(&socket, &[plugin]);

    // No matcher names it, which would be found before its pod.
    let mut job = Job::named(&room, "unnamed", &saving(&room.path("unused"), 0.0));
    let scenario = room.path("scenario.json");
    let (total, used) = (80_u64 << 30, 3_u64 << 30);
    let device = format!(
        r#"{{"devices": [{{"uuid": "GPU-a", "memory": {{"total": {total}, "used": {used}}},
            "processes": [{{"pid": {}, "memory": {used}}}]}}]}}"#,
        job.pid()
    );
    fs::write(&scenario, device).unwrap();
    let recorded = room.path("environment");
    let program = records_environment(&room, &recorded);
    let policy = format!(
        "cgroup_headroom: {{soft: 70%}}, checkpoint: {{grace: 100ms}}, hook: {{program: \"{program}\", wait: 300ms}}"
    );
    let file = room.configure("mode: enforce", &[room.target("train", &policy)], "");
    let sources = format!(
        "sources: {{kubernetes: {{interval: 1s, pod_resources_socket: {socket:?}, pod_logs: {pods:?}, \
         container_logs: {containers:?}}}, "
    );
    let text = fs::read_to_string(&file).unwrap().replacen("sources: {", &sources, 1);
    fs::write(&file, text).unwrap();
    let daemon = room.start_with(|command| {
        command.env("FAKE_NVML_SCENARIO", scenario).arg("--nvml-library").arg(fake_nvml());
    });
    room.wait_members(&daemon, "train", 1.0);

    let workload = "ml/train-0";
    let names = [("namespace", "ml"), ("pod", "train-0"), ("container", "pytorch")];
    daemon.wait_page("the names of the pod", SOON, |page| {
        let labels = [&names[..], &[("workload", workload), ("container_id", &container)]].concat();
        page.get("memwarden_workload_info", &labels).is_some()
    });
    #[expect(clippy::cast_precision_loss, reason = "53 bits are enough")]
    let used = used as f64;
    daemon.wait_page("the GPU memory of the pod", SOON, |page| {
        let labels = [("workload", workload), ("uuid", "GPU-a")];
        page.get("memwarden_workload_gpu_memory_bytes", &labels) == Some(used)
    });
    let assigned = |device: Device<'static>| {
        daemon.wait_page(&format!("the assignment of {device:?}"), SOON, |page| {
            let keys = ["resource", "uuid", "driver", "pool", "device"];
            // A label that does not apply is empty, which is the same as absent.
            let device = keys.into_iter().zip(device).filter(|(_, value)| !value.is_empty());
            let labels: Vec<(&str, &str)> = names.into_iter().chain(device).collect();
            page.get("memwarden_pod_gpu_info", &labels) == Some(1.0)
                && page.all("memwarden_pod_gpu_info", &[]).count() == 1
        });
    };
    assigned(plugin);
    for device in
        [["nvidia.com/mig-1g.10gb", "MIG-b", "", "", ""], ["", "", "gpu.nvidia.com", "node-1", "gpu-0"]]
    {
        kubelet.say(&[device]);
        assigned(device);
    }

    // The kubelet ends, and the logs of the pod are removed while its last process still runs: the daemon still knows
    // whose job it is for the hook, from the process's cgroup, and says what it cannot read.
    drop(kubelet);
    daemon.wait_value("memwarden_source_up{source=\"kubernetes\"}", |up| up == 0.0);
    job.hold(64);
    assert!(job.wait().success());
    room.wait_move("cooldown");
    let text = wait_for("the environment", SOON, || fs::read_to_string(&recorded).ok());
    for expected in [
        "NAMESPACE=ml".to_owned(),
        "POD=train-0".to_owned(),
        "CONTAINER=pytorch".to_owned(),
        format!("WORKLOAD={workload}"),
        format!("CGROUP={}", room.group.as_ref().unwrap().path),
    ] {
        let expected = format!("MEMWARDEN_{expected}");
        assert!(
            text.split('\0').any(|line| line == expected),
            "no {expected} in {}",
            text.replace('\0', "\n")
        );
    }

    // The pod is deleted: its folder and its processes are gone, and so are its series.
    fs::remove_dir_all(&log).unwrap();
    fs::remove_file(&link).unwrap();
    daemon.wait_page("the end of the workload", SOON, |page| {
        page.get("memwarden_workload_info", &[("workload", workload)]).is_none()
    });
}
