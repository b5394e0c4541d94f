//! The rank and the run of a process, from the environment variables of its launcher.
//!
//! The variables are those of torchrun (`torch.distributed.elastic`), Open MPI, PMI (MPICH, Intel MPI, PMIx) and srun. The
//! user of a process writes its environment: what is read here names things, and protects and identifies nothing.

use crate::model::label::Label;

/// Longest name of a run that is shown, in bytes.
const LONGEST_RUN: usize = 64;
/// Largest rank or world size that is accepted.
const LARGEST: u32 = 10_000_000;

/// What the environment of one process says of its place in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankEnvironment {
    /// Its rank; absent where no launcher set one.
    pub rank: Option<EnvironmentRank>,
    /// `MEMWARDEN_RUN`.
    pub named_run: Option<Label>,
    /// `TORCHELASTIC_RUN_ID`, except `none`, which torchrun sets for static rendezvous.
    pub elastic_run: Option<Label>,
    /// `PMIX_NAMESPACE`, which differs for each `mpirun`.
    pub mpi_run: Option<Label>,
    /// `MASTER_ADDR` and `MASTER_PORT`, as `ADDRESS:PORT`.
    pub master: Option<Label>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvironmentRank {
    /// The global rank.
    pub rank: u32,
    /// The rank on its node.
    pub local_rank: Option<u32>,
    /// The number of ranks; absent where it is unknown or not above the rank.
    pub world: Option<u32>,
    /// Whether only srun set it: a task of a step can also be a launcher of ranks, such as torchrun.
    pub is_task: bool,
}

impl RankEnvironment {
    /// Reads an environment block, as `/proc/PID/environ` has it: `NAME=VALUE`, each followed by a zero byte. Invalid values are
    /// absent.
    pub fn read(block: &[u8]) -> Self {
        let value = |name: &str| {
            let mut entries = block.split(|byte| *byte == 0);
            entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
        };
        let number = |names: &[&str]| names.iter().find_map(|name| value(name)).and_then(number);
        let launched = |rank: &[&str], local: &[&str], world: &[&str], is_task| {
            let rank = number(rank)?;
            let world = number(world).filter(|world| *world > rank);
            Some(EnvironmentRank { rank, local_rank: number(local), world, is_task })
        };
        // In a batch script SLURM_PROCID is set too, but only a step has tasks.
        let in_step = value("SLURM_STEP_ID").or_else(|| value("SLURM_STEPID")).is_some();
        let rank = launched(&["RANK"], &["LOCAL_RANK"], &["WORLD_SIZE"], false)
            .or_else(|| {
                let names = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"];
                launched(&names[..1], &names[1..2], &names[2..], false)
            })
            .or_else(|| {
                let local = ["MPI_LOCALRANKID", "PMI_LOCAL_RANK"];
                launched(&["PMI_RANK", "PMIX_RANK"], &local, &["PMI_SIZE"], false)
            })
            .or_else(|| {
                let world = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"];
                launched(&["SLURM_PROCID"], &["SLURM_LOCALID"], &world, true).filter(|_| in_step)
            });
        let name = |name: &str| value(name).and_then(run_name);
        let port = value("MASTER_PORT").and_then(number_of_port);
        Self {
            rank,
            named_run: name("MEMWARDEN_RUN"),
            elastic_run: name("TORCHELASTIC_RUN_ID").filter(|run| run.as_str() != "none"),
            mpi_run: name("PMIX_NAMESPACE"),
            master: name("MASTER_ADDR").zip(port).map(|(address, port)| format!("{address}:{port}").into()),
        }
    }
}

/// The name of a run, if it is a text of at most 64 letters, digits and `_.+-@,:/[]`.
pub fn run_name(value: &[u8]) -> Option<Label> {
    Label::of_letters(value, LONGEST_RUN, b"_.+-@,:/[]")
}

/// Whether a rendezvous address is of the node itself, so that it names different runs on different nodes.
pub fn is_loopback(master: &str) -> bool {
    let address = master.rsplit_once(':').map_or(master, |(address, _)| address);
    let address = address.trim_matches(['[', ']']);
    address == "localhost" || address == "::1" || address.starts_with("127.")
}

/// The run of a pod: the object that owns it, by the names that controllers give to pods.
///
/// | controller | name of a pod | run |
/// |---|---|---|
/// | JobSet, Kubeflow Trainer v2 | `RUN-JOB-JOBINDEX-PODINDEX-SUFFIX` | `NAMESPACE/RUN` |
/// | PyTorchJob and other training jobs of Kubeflow v1 | `RUN-master-N`, `RUN-worker-N`, `RUN-launcher-SUFFIX` | `NAMESPACE/RUN` |
/// | indexed Job | `RUN-INDEX-SUFFIX` | `NAMESPACE/RUN` |
pub fn run_of_pod(namespace: &str, pod: &str) -> Option<Label> {
    // The hash in the name of a Deployment's pod has 9 or 10 letters and digits.
    let digits = |part: &str| (1..=6).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    let suffix = |part: &str| {
        part.len() == 5 && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    let parts: Vec<&str> = pod.split('-').collect();
    let owner = match *parts.as_slice() {
        [ref run @ .., _, job, index, last]
            if !run.is_empty() && digits(job) && digits(index) && suffix(last) =>
        {
            run
        }
        [ref run @ .., "master" | "worker", index] if !run.is_empty() && digits(index) => run,
        [ref run @ .., "launcher", last] if !run.is_empty() && suffix(last) => run,
        [ref run @ .., index, last] if !run.is_empty() && digits(index) && suffix(last) => run,
        _ => return None,
    };
    run_name(format!("{namespace}/{}", owner.join("-")).as_bytes())
}

fn number(value: &[u8]) -> Option<u32> {
    let text =
        std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    text.parse().ok().filter(|number| *number <= LARGEST)
}

fn number_of_port(value: &[u8]) -> Option<u16> {
    number(value).and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> RankEnvironment {
        RankEnvironment::read(text.replace(' ', "\0").as_bytes())
    }

    fn rank(
        rank: u32,
        local_rank: Option<u32>,
        world: Option<u32>,
        is_task: bool,
    ) -> Option<EnvironmentRank> {
        Some(EnvironmentRank { rank, local_rank, world, is_task })
    }

    #[test]
    fn each_launcher_is_read() {
        let torchrun = read(
            "RANK=5 LOCAL_RANK=1 WORLD_SIZE=8 MASTER_ADDR=node1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=ab-12 SLURM_PROCID=0 \
             SLURM_STEP_ID=0",
        );
        assert_eq!(torchrun.rank, rank(5, Some(1), Some(8), false));
        assert_eq!(torchrun.elastic_run.unwrap().as_str(), "ab-12");
        assert_eq!(torchrun.master.unwrap().as_str(), "node1:29500");
        let open_mpi = read(
            "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_SIZE=4 PMIX_NAMESPACE=prterun-n1-77@1",
        );
        assert_eq!(open_mpi.rank, rank(2, Some(0), Some(4), false));
        assert_eq!(open_mpi.mpi_run.unwrap().as_str(), "prterun-n1-77@1");
        assert_eq!(read("PMI_RANK=1 PMI_SIZE=2").rank, rank(1, None, Some(2), false));
        let task = read("SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_STEP_ID=0 SLURM_NTASKS=4");
        assert_eq!(task.rank, rank(3, Some(1), Some(4), true));
        assert_eq!(read("SLURM_PROCID=0 SLURM_NTASKS=4").rank, None, "a batch script is not a task");
        assert_eq!(read("PATH=/bin HOME=/root"), RankEnvironment::default());
    }

    #[test]
    fn invalid_values_are_absent() {
        for text in ["RANK=", "RANK=-1", "RANK=x", "RANK=99999999999", "XRANK=1", "RANK"] {
            assert_eq!(read(text).rank, None, "{text}");
        }
        assert_eq!(read("RANK=3 WORLD_SIZE=3").rank, rank(3, None, None, false));
        assert_eq!(read("TORCHELASTIC_RUN_ID=none").elastic_run, None);
        for text in ["MEMWARDEN_RUN=a\"b", "MEMWARDEN_RUN=", &format!("MEMWARDEN_RUN={}", "a".repeat(65))] {
            assert_eq!(read(text).named_run, None, "{text}");
        }
        assert_eq!(read("MASTER_ADDR=a MASTER_PORT=0").master, None);
        assert_eq!(read("MASTER_ADDR=a MASTER_PORT=65536").master, None);
    }

    #[test]
    fn an_address_of_the_node_itself_is_known() {
        let loopback = ["localhost:29500", "127.0.0.1:1", "127.1.2.3:1", "[::1]:29500"];
        assert!(loopback.iter().all(|master| is_loopback(master)));
        assert!(
            !["node1:29500", "10.0.0.1:1", "localhost.example:1"].iter().any(|master| is_loopback(master))
        );
    }

    #[test]
    fn pods_name_their_run() {
        let run = |pod: &str| run_of_pod("ml", pod).map(|run| run.to_string());
        let of = |name: &str| Some(format!("ml/{name}"));
        assert_eq!(run("llama-70b-node-0-3-x7k2p"), of("llama-70b"));
        assert_eq!(run("llama-worker-12"), of("llama"));
        assert_eq!(run("llama-master-0"), of("llama"));
        assert_eq!(run("llama-launcher-abcde"), of("llama"));
        assert_eq!(run("sweep-4-abcde"), of("sweep"));
        for pod in ["nginx-7d4b9c-abcde", "single", "a-b", "worker-0", "", "-0-0-abcde"] {
            assert!(run(pod).is_none_or(|run| !run.ends_with('/')), "{pod}: {:?}", run(pod));
        }
        assert_eq!(run("nginx-7d4b9cf-abcde"), None);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(block: Vec<u8>) {
            let found = RankEnvironment::read(&block);
            let names = [found.named_run, found.elastic_run, found.mpi_run];
            for name in names.into_iter().flatten() {
                proptest::prop_assert!(run_name(name.as_str().as_bytes()).is_some());
            }
        }
    }
}
