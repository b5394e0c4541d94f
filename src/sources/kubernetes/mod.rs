//! Names of pods and containers, and the GPUs that the kubelet assigned to them.
//!
//! A separate thread reads the names of the kubelet's log folders and queries the kubelet, so that neither a disk nor the kubelet
//! delays a sample. The names are display text: what belongs to a pod is decided by its cgroup.

mod cdi;
mod kubelet;
pub mod metrics;
mod names;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use self::kubelet::Device;
use crate::host::background::Background;
use crate::host::clock;
use crate::model::facts::PodNames;
use crate::model::lock::lock;
use crate::model::point::Batch;
use crate::model::source::{Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::{Flag, Seconds};
use crate::sources::Registration;

crate::options! {
    /// The options of the source.
    struct Options {
        /// Socket of the kubelet's pod-resources service, which is asked for the GPUs of each container.
        pod_resources_socket: PathBuf = "/var/lib/kubelet/pod-resources/kubelet.sock";
        /// Folder in which the kubelet makes a folder for the logs of each pod; the names and the UID of the pod are
        /// taken from the folder's name.
        pod_logs: PathBuf = "/var/log/pods";
        /// Folder in which the kubelet makes a link to the log of each container; the names and the ID of the container
        /// are taken from the link's name.
        container_logs: PathBuf = "/var/log/containers";
        /// Folders with CDI files, by which the UUIDs of the GPUs of resource claims (DRA) are found. Only folders and files of
        /// root that nobody else can write are read.
        cdi_folders: Vec<String> = ["/etc/cdi", "/var/run/cdi"];
        /// Time between two requests to the kubelet, and two reads of the folders.
        interval: Duration = 10s in 1s..=1h;
    }
}

/// Longest wait for the kubelet's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The source of the names of pods and containers.
pub static REGISTRATION: Registration = Registration {
    name: "kubernetes",
    about: "Names of pods and containers, and the GPUs that the kubelet assigned to them. Unavailable on a node without a kubelet.",
    options: Options::OPTIONS,
    metrics: metrics::METRICS,
    ..Registration::built_by(|settings, context| {
        let proc = context.roots.proc.clone();
        Box::new(Kubernetes { options: Options::read(settings), proc, background: None })
    })
};

/// The result of the last round.
#[derive(Clone, Debug, Default)]
struct World {
    /// Whether a round is complete.
    complete: bool,
    names: Arc<PodNames>,
    gpus: Arc<BTreeSet<Device>>,
    /// When the kubelet last answered.
    answered: Option<Timestamp>,
    /// The errors of the last round.
    troubles: Vec<SourceError>,
}

impl World {
    /// Reads everything once. Values that cannot be read are kept.
    fn turn(&mut self, options: &Options, proc: &Path, patience: Duration) {
        self.troubles.clear();
        self.complete = true;
        match names::read(&options.pod_logs, &options.container_logs) {
            Ok(names) => self.names = Arc::new(names),
            Err(error) => {
                self.troubles.push(SourceError::io_or_absent("cannot read the names of pods", &error));
            }
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let uuids = cdi::read(&options.cdi_folders, proc);
        match runtime.and_then(|runtime| {
            runtime.block_on(kubelet::gpus(&options.pod_resources_socket, patience, &uuids))
        }) {
            Ok(gpus) => (self.gpus, self.answered) = (Arc::new(gpus), Some(clock::now())),
            Err(error) => {
                let what = format!("cannot ask the kubelet at {}", options.pod_resources_socket.display());
                self.troubles.push(SourceError::io_or_absent(what, &error));
            }
        }
    }
}

struct Kubernetes {
    options: Options,
    proc: PathBuf,
    background: Option<Background<Mutex<World>>>,
}

impl Kubernetes {
    fn world(&mut self) -> Result<World, SourceError> {
        let (options, proc) = (self.options.clone(), self.proc.clone());
        let world = Background::of(&mut self.background, "queries the kubelet", |world, stopped| {
            // Not `host::apart`: a runtime duplicates a descriptor of this process, and no user can mount below these paths.
            thread::Builder::new().name("kubernetes".to_owned()).spawn(move || {
                let mut own = World::default();
                loop {
                    own.turn(&options, &proc, ANSWER_TIMEOUT);
                    (*lock(&world)).clone_from(&own);
                    if !stopped.pause(options.interval) {
                        return;
                    }
                }
            })
        })?;
        // Held only while pointers are copied.
        Ok(lock(world).clone())
    }
}

/// Puts the known values, and returns the reason for unknown ones.
fn put(world: World, interval: Duration, at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
    if !world.complete {
        return Err(SourceError::unavailable("the names of pods have not been read yet"));
    }
    let age = world.answered.map(|answered| at.since(answered));
    out.put_some(
        &metrics::AGE,
        &[],
        age.map(|age| Seconds::from_micros(u64::try_from(age.as_micros()).unwrap_or(u64::MAX))),
    );
    if age.is_some_and(|age| age <= interval.saturating_mul(3).max(ANSWER_TIMEOUT * 3)) {
        for labels in &*world.gpus {
            out.put(&metrics::POD_GPU, labels, Flag(true));
        }
    }
    out.facts.pods = world.names;
    // An error takes precedence over a missing feature of the node.
    let failed = world.troubles.iter().find(|trouble| matches!(trouble, SourceError::Failed { .. }));
    failed.or(world.troubles.first()).cloned().map_or(Ok(()), Err)
}

impl Source for Kubernetes {
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let world = self.world()?;
        put(world, self.options.interval, at, out)
    }

    fn finish(&mut self) {
        self.background = None;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const PATIENT: Duration = Duration::from_secs(60);

    fn options(root: &Path) -> Options {
        Options {
            pod_resources_socket: root.join("kubelet.sock"),
            pod_logs: root.join("pods"),
            container_logs: root.join("containers"),
            cdi_folders: Vec::new(),
            interval: Duration::from_secs(10),
        }
    }

    /// Runs a round while a kubelet serves one GPU.
    fn with_kubelet(world: &mut World, options: &Options, code: Option<&'static str>, patience: Duration) {
        let _ = fs::remove_file(&options.pod_resources_socket);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let entered = runtime.enter();
        let _serves =
            kubelet::tests::serve(options.pod_resources_socket.clone(), kubelet::tests::one_gpu(), code);
        drop(entered);
        thread::scope(|scope| {
            scope.spawn(|| world.turn(options, Path::new("/nonexistent"), patience));
        });
    }

    fn status(world: &World, at: Timestamp) -> (String, usize) {
        let mut out = Batch::new();
        let result = put(world.clone(), Duration::from_secs(10), at, &mut out);
        let families = out.families();
        let gpus = families.iter().find(|family| family.desc.name == "memwarden_pod_gpu_info");
        let text = match result {
            Ok(()) => "ok".to_owned(),
            Err(SourceError::Unavailable { why }) => format!("unavailable: {why}"),
            Err(SourceError::Failed { kind, why }) => format!("failed {kind:?}: {why}"),
        };
        (text, gpus.map_or(0, |family| family.points.len()))
    }

    #[test]
    fn the_source_is_unavailable_until_a_kubelet_runs() {
        let root = tempfile::tempdir().unwrap();
        let options = options(root.path());
        let mut world = World::default();
        world.turn(&options, Path::new("/nonexistent"), PATIENT);
        let (text, gpus) = status(&world, clock::now());
        assert!(text.starts_with("unavailable: cannot read the names of pods") && gpus == 0, "{text}");
        for folder in [&options.pod_logs, &options.container_logs] {
            fs::create_dir(folder).unwrap();
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        }
        world.turn(&options, Path::new("/nonexistent"), PATIENT);
        assert!(status(&world, clock::now()).0.starts_with("unavailable: cannot ask the kubelet"));
        with_kubelet(&mut world, &options, Some("0"), PATIENT);
        let answered = world.answered.unwrap();
        assert_eq!(status(&world, answered), ("ok".to_owned(), 1));
        // It restarts: the socket exists without a listener. The last answer is used until it is old.
        world.turn(&options, Path::new("/nonexistent"), PATIENT);
        let (text, gpus) = status(&world, answered);
        assert!(text.starts_with("failed Io: cannot ask the kubelet") && gpus == 1, "{text}");
        let later = Timestamp::from_secs(answered.monotonic().as_secs() + 60);
        assert_eq!(status(&world, later).1, 0);
        // One that hangs, and one that refuses.
        with_kubelet(&mut world, &options, None, Duration::from_millis(50));
        assert!(status(&world, answered).0.starts_with("failed Timeout: "));
        with_kubelet(&mut world, &options, Some("7"), PATIENT);
        assert!(status(&world, answered).0.ends_with("gRPC status 7"));
    }
}
