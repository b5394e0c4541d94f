//! A real Slurm of one node, from Debian's packages: munged, slurmctld and slurmd with the scripts of `deploy/slurm`.
//!
//! A job of two tasks is attributed to its workload, summarized by the epilog, and requeued by a hook.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Daemon, free_port, memwarden, on_path, program, slow_tests, wait_for};
use crate::skip::skip;

/// A loaded machine starts a job in some seconds.
const LIMIT: Duration = Duration::from_secs(90);
/// Debian's user `nobody`.
const NOBODY: u32 = 65534;
const MIB: f64 = 1024.0 * 1024.0;

/// A running Slurm of one node; ended when dropped.
struct Cluster {
    folder: tempfile::TempDir,
    node: String,
    /// Whether it has an accounting database.
    accounts: bool,
    daemons: Vec<Child>,
}

/// Why a Slurm cannot be started here.
fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can start slurmd".to_owned());
    }
    if let Some(missing) =
        ["munged", "slurmctld", "slurmd", "sbatch", "srun"].iter().find(|name| tool(name).is_none())
    {
        return Some(format!(
            "{missing} is not installed (apt-get install slurmctld slurmd slurm-client munge)"
        ));
    }
    if Path::new("/etc/slurm/slurm.conf").exists() {
        return Some("this node belongs to a Slurm cluster".to_owned());
    }
    // Without cgroups a process of a job cannot be told from others.
    let v1 = Path::new("/sys/fs/cgroup/memory");
    let probe = format!("memwarden-slurm-{}", std::process::id());
    for hierarchy in [v1, Path::new("/sys/fs/cgroup/freezer")] {
        let group = hierarchy.join(&probe);
        if std::fs::create_dir(&group).and_then(|()| std::fs::remove_dir(&group)).is_err() {
            return Some(format!("no cgroup can be made in {} (cgroup v1)", hierarchy.display()));
        }
    }
    None
}

/// Debian has the daemons in folders that a user's PATH may lack.
fn tool(name: &str) -> Option<PathBuf> {
    let at = |folder: &str| Some(Path::new(folder).join(name)).filter(|path| path.is_file());
    on_path(name).or_else(|| at("/usr/sbin")).or_else(|| at("/usr/bin"))
}

fn write(path: &Path, text: &str, mode: u32) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

impl Cluster {
    /// Starts the daemons, with the prolog, epilog and task prolog that are shipped.
    fn start(memwarden: &Daemon, gpus: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["spool", "state", "log", "jobs"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        std::fs::set_permissions(root.join("jobs"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let host = program("hostname").arg("-s").output().unwrap();
        let node = String::from_utf8(host.stdout).unwrap().trim().to_owned();
        let shown = root.display();
        // What the scripts read from /etc/default/memwarden-slurm, they get from the environment of slurmd here.
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/slurm");
        let wrapper = |name: &str, shipped: &Path| {
            let text = format!(
                "#!/bin/sh\nexport SLURM_CONF={shown}/slurm.conf PATH={shown}/bin:/usr/sbin:/usr/bin:/sbin:/bin\n\
                 export MEMWARDEN_PROGRAM={} MEMWARDEN_URL={}\n\
                 export MEMWARDEN_GPU_JOBS={} MEMWARDEN_SUMMARIES={shown}/jobs\n\
                 export MEMWARDEN_ADMIN_COMMENT=jobstats\nexec {}\n",
                env!("CARGO_BIN_EXE_memwarden"),
                memwarden.socket_url(),
                gpus.display(),
                shipped.display()
            );
            write(&root.join(name), &text, 0o755);
        };
        for name in ["prolog.sh", "epilog.sh"] {
            wrapper(name, &shipped.join(name));
        }
        std::fs::copy(shipped.join("task_prolog.sh"), root.join("task_prolog.sh")).unwrap();
        // What the epilog stores in the accounting database is written down too, and only that where there is none.
        let accounts = ["slurmdbd", "mariadbd", "mariadb-install-db"].iter().all(|name| tool(name).is_some());
        std::fs::create_dir(root.join("bin")).unwrap();
        let real = if accounts { "exec /usr/bin/sacctmgr \"$@\"" } else { "" };
        write(
            &root.join("bin/sacctmgr"),
            &format!(
                "#!/bin/sh\nprintf '%s\\n' \"$@\" >{shown}/stored.$$ && mv {shown}/stored.$$ {shown}/stored\n{real}\n"
            ),
            0o755,
        );
        std::fs::create_dir(root.join("dev")).unwrap();
        for gpu in ["gpu0", "gpu1"] {
            // A character device that is none of a GPU: /dev/null's numbers.
            let made =
                program("mknod").arg(root.join("dev").join(gpu)).args(["c", "1", "3"]).status().unwrap();
            assert!(made.success());
        }
        let (controller, slurmd, dbd) = (free_port(), free_port(), free_port());
        let accounting = if accounts {
            format!(
                "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n\
                 AccountingStoragePort={dbd}\nAccountingStoragePass={shown}/munge.sock\n"
            )
        } else {
            "AccountingStorageType=accounting_storage/none\n".to_owned()
        };
        let conf = format!(
            "ClusterName=memwarden\nSlurmctldHost={node}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n\
             AuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket={shown}/munge.sock\n\
             SlurmctldPort={controller}\nSlurmdPort={slurmd}\nStateSaveLocation={shown}/state\n\
             SlurmdSpoolDir={shown}/spool\nSlurmctldPidFile={shown}/slurmctld.pid\nSlurmdPidFile={shown}/slurmd.pid\n\
             ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup\nJobAcctGatherType=jobacct_gather/none\n\
             {accounting}MpiDefault=none\nSelectType=select/cons_tres\n\
             SelectTypeParameters=CR_CPU_Memory\nReturnToService=2\nSlurmdParameters=config_overrides\nKillWait=2\n\
             GresTypes=gpu\nPrologFlags=Alloc\nProlog={shown}/prolog.sh\nEpilog={shown}/epilog.sh\n\
             TaskProlog={shown}/task_prolog.sh\n\
             NodeName={node} NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000 Gres=gpu:2 State=UNKNOWN\n\
             PartitionName=training Nodes={node} Default=YES MaxTime=INFINITE State=UP\n"
        );
        write(&root.join("slurm.conf"), &conf, 0o644);
        let cgroup = "CgroupMountpoint=/sys/fs/cgroup\nCgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainRAMSpace=yes\n";
        write(&root.join("cgroup.conf"), cgroup, 0o644);
        write(&root.join("gres.conf"), &format!("Name=gpu File={shown}/dev/gpu[0-1]\n"), 0o644);
        write(&root.join("munge.key"), &"memwarden".repeat(50), 0o400);
        let mut cluster = Self { folder, node, accounts, daemons: Vec::new() };
        let at = |name: &str| cluster.path(name).display().to_string();
        let munged = [
            "--foreground".to_owned(),
            "--force".to_owned(),
            format!("--key-file={}", at("munge.key")),
            format!("--socket={}", at("munge.sock")),
            format!("--pid-file={}", at("munged.pid")),
            format!("--seed-file={}", at("munge.seed")),
            "--num-threads=2".to_owned(),
        ];
        cluster.spawn("munged", &munged);
        wait_for("the socket of munged", LIMIT, || cluster.path("munge.sock").exists().then_some(()));
        if accounts {
            cluster.start_accounting(dbd);
        }
        cluster.spawn("slurmctld", &["-D".to_owned()]);
        cluster.spawn("slurmd", &["-D".to_owned()]);
        wait_for("an idle node", LIMIT, || {
            let state = cluster.run("sinfo", &["-h", "-N", "-o", "%T"]);
            (state.trim() == "idle").then_some(())
        });
        cluster
    }

    /// Starts slurmdbd, which listens on this port, with a database of its own.
    fn start_accounting(&mut self, port: u16) {
        let at = |name: &str| self.path(name).display().to_string();
        let database = free_port();
        let data = format!("--datadir={}", at("data"));
        let made = self
            .command("mariadb-install-db")
            .args([
                "--no-defaults",
                "--user=root",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                &data,
            ])
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        write(
            &self.path("init.sql"),
            "CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'slurm';\nGRANT ALL ON *.* TO slurm@'127.0.0.1';\n",
            0o600,
        );
        let mariadbd = [
            "--no-defaults".to_owned(),
            "--user=root".to_owned(),
            data,
            "--bind-address=127.0.0.1".to_owned(),
            format!("--port={database}"),
            format!("--socket={}", at("mariadb.sock")),
            format!("--pid-file={}", at("mariadb.pid")),
            format!("--init-file={}", at("init.sql")),
            "--skip-name-resolve".to_owned(),
            "--innodb-buffer-pool-size=64M".to_owned(),
        ];
        let conf = format!(
            "AuthType=auth/munge\nAuthInfo=socket={}\nDbdHost=localhost\nDbdAddr=127.0.0.1\nDbdPort={port}\nSlurmUser=root\n\
             StorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\nStoragePort={database}\n\
             StorageUser=slurm\nStoragePass=slurm\nPidFile={}\n",
            at("munge.sock"),
            at("slurmdbd.pid")
        );
        write(&self.path("slurmdbd.conf"), &conf, 0o600);
        self.spawn("mariadbd", &mariadbd);
        wait_for("the database", LIMIT, || std::net::TcpStream::connect(("127.0.0.1", database)).ok());
        self.spawn("slurmdbd", &["-D".to_owned()]);
        wait_for("slurmdbd", LIMIT, || {
            self.run("sacctmgr", &["-i", "add", "cluster", "memwarden"]);
            let listed = self.run("sacctmgr", &["-n", "-P", "list", "cluster", "format=cluster"]);
            (listed.trim() == "memwarden").then_some(())
        });
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn spawn(&mut self, name: &str, arguments: &[String]) {
        let log = std::fs::File::create(self.path("log").join(name)).unwrap();
        let errors = log.try_clone().unwrap();
        let child =
            self.command(name).args(arguments).stdin(Stdio::null()).stdout(log).stderr(errors).spawn();
        self.daemons.push(child.unwrap());
    }

    fn command(&self, name: &str) -> Command {
        let mut command = program(tool(name).unwrap());
        command.env("SLURM_CONF", self.path("slurm.conf")).current_dir("/");
        command
    }

    /// What a command of Slurm prints; nothing where it fails, as before the controller answers.
    fn run(&self, name: &str, arguments: &[&str]) -> String {
        let output = self.command(name).args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Submits a script as `nobody`; gives the ID of the job.
    fn submit(&self, options: &[&str], script: &str) -> String {
        let path = self.path("jobs").join("script");
        write(&path, &format!("#!/bin/sh\n{script}\n"), 0o755);
        let output = self
            .command("sbatch")
            .args(["--parsable", "--output=/dev/null"])
            .args(options)
            .arg(&path)
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .unwrap();
        let id = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        assert!(output.status.success() && !id.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        id
    }

    /// The value of a field of `scontrol show job`.
    fn field(&self, job: &str, field: &str) -> Option<String> {
        let shown = self.run("scontrol", &["show", "job", job, "--oneliner"]);
        shown.split_whitespace().find_map(|word| word.strip_prefix(&format!("{field}="))).map(str::to_owned)
    }

    /// The logs, for a test that fails.
    fn logs(&self) -> String {
        let logs = ["slurmdbd", "slurmctld", "slurmd"].map(|name| {
            let text = std::fs::read_to_string(self.path("log").join(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("{name}:\n{}\n", lines[lines.len().saturating_sub(40)..].join("\n"))
        });
        logs.concat()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.logs());
        }
        // A job that is not cancelled would outlive slurmd.
        self.run("scancel", &["--state=PENDING"]);
        self.run("scancel", &["--state=RUNNING"]);
        for _ in 0..500 {
            let states = self.run("squeue", &["-h", "-o", "%T"]);
            if states.lines().all(|state| !["RUNNING", "COMPLETING"].contains(&state)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        for daemon in self.daemons.iter_mut().rev() {
            if let Some(pid) = i32::try_from(daemon.id()).ok().and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
            for _ in 0..500 {
                if matches!(daemon.try_wait(), Ok(Some(_))) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        for hierarchy in ["memory", "freezer"] {
            let group = Path::new("/sys/fs/cgroup").join(hierarchy).join(format!("slurm_{}", self.node));
            for user in std::fs::read_dir(&group).into_iter().flatten().flatten() {
                let _ = std::fs::remove_dir(user.path());
            }
            let _ = std::fs::remove_dir(group);
        }
    }
}

/// Two tasks that fill 60 MiB each: `tail` keeps what has no end of line. What their environment says of the job is wrong.
const TWO_TASKS: &str =
    "srun --ntasks=2 --overlap sh -c 'export SLURM_JOB_ID=999; head -c 60M /dev/zero | tail | sleep 600'";

fn started(config: &str, folder: &Path) -> Daemon {
    let file = folder.join("memwarden.yaml");
    std::fs::write(&file, config).unwrap();
    Daemon::start(&["--config.file", file.to_str().unwrap()])
}

fn summary(daemon: &Daemon, job: &str) -> Option<Value> {
    let answer = daemon.get_local(&format!("/api/v1/jobs/{job}"));
    (answer.code == 200).then(|| serde_json::from_str(&answer.body).unwrap())
}

#[test]
fn a_job_of_two_tasks_is_attributed_summarized_and_requeued() {
    if !slow_tests() {
        return;
    }
    if let Some(why) = obstacle() {
        skip(&why);
        return;
    }
    let room = tempfile::tempdir().unwrap();
    std::fs::set_permissions(room.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (gpus, hook) = (room.path().join("gpustat"), room.path().join("requeue"));
    let config = format!(
        "sampling: {{interval: 200ms}}\nsources:\n  cgroup: {{rescan_interval: 1s}}\n  \
         slurm: {{gpu_jobs: \"{}\", interval: 1s}}\nstate: {{file: \"{}\"}}\n\
         protection:\n  mode: enforce\n  targets:\n    - name: training\n      workload: slurm-*\n      \
         allow_users: [nobody]\n      mode: enforce\n      max_state: soft\n      \
         cgroup_headroom: {{soft: 50%, hard: \"\"}}\n      forecast: {{max_state: ignore}}\n      for: 100ms\n      \
         hook: {{program: \"{}\", timeout: 20s, wait: 30s}}\n",
        gpus.display(),
        room.path().join("state.json").display(),
        hook.display()
    );
    write(&hook, "#!/bin/sh\nexit 0\n", 0o755);
    let daemon = started(&config, room.path());
    let cluster = Cluster::start(&daemon, &gpus);

    // Attribution: both tasks, by the cgroup of the job.
    let forged = "--job-name=x ArrayJobId=42 ArrayTaskId=3";
    let options = ["--ntasks=2", "--mem=400M", "--gres=gpu:1", "--comment=first", forged];
    let first = cluster.submit(&options, TWO_TASKS);
    let workload = format!("slurm-{first}");
    let named = [("workload", &*workload), ("kind", "slurm"), ("slurm_job_id", &*first), ("user", "nobody")];
    let page = daemon.wait_page("the workload of the job", LIMIT, |page| {
        let filled = [("workload", &*workload)];
        let rss = page.all("memwarden_workload_rss_anon_bytes", &filled).next();
        page.all("memwarden_workload_info", &named).any(|series| {
            series.labels.get("slurm_partition").is_some_and(|partition| partition == "training")
        }) && rss.is_some_and(|series| series.value >= 120.0 * MIB)
    });
    let of_job = |series: &&crate::harness::Series| series.labels["workload"] == workload;
    let tails = page.all("memwarden_process_rss_bytes", &[("comm", "tail")]).filter(of_job).count();
    assert_eq!(tails, 2, "both tasks are members");
    assert!(page.all("memwarden_workload_info", &[("slurm_job_id", "999")]).next().is_none());

    // A GPU that the job holds without a process on it.
    let holds = [("slurm_job_id", &*first), ("gpu", "0"), ("user_id", "65534"), ("workload", &*workload)];
    daemon.wait_page("the GPU that the job holds", LIMIT, |page| {
        page.all("memwarden_slurm_gpu_job_info", &holds).next().is_some()
    });
    assert!(gpus.join("0").exists());

    // The summary at the end of the job, by the epilog.
    let leftover = Path::new("/dev/shm").join(format!("memwarden-slurm-test-{}", std::process::id()));
    write(&leftover, &"x".repeat(100_000), 0o644);
    std::os::unix::fs::chown(&leftover, Some(NOBODY), Some(NOBODY)).unwrap();
    cluster.run("scancel", &[&first]);
    let file = cluster.path("jobs").join(&first);
    let text = wait_for("the summary of the epilog", LIMIT, || std::fs::read_to_string(&file).ok());
    println!("{text}");
    std::fs::remove_file(&leftover).unwrap();
    let told = summary(&daemon, &first).unwrap();
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{told:#}"));
    let memory = &told["memory"];
    assert_eq!(number(&memory["limit_bytes"]), 400.0 * MIB);
    let peak = number(&memory["peak_bytes"]);
    assert!((120.0 * MIB..250.0 * MIB).contains(&peak), "{told:#}");
    let suggested = number(&memory["suggested_request_bytes"]);
    assert!((peak * 1.2..=peak * 1.2 + 100.0 * MIB).contains(&suggested), "{told:#}");
    assert!(number(&told["gpus"][0]["held_seconds"]) > 0.0);
    assert_eq!(number(&told["gpus"][0]["used_seconds"]), 0.0);
    let heading = format!("Job {first} of nobody on {} partition training", cluster.node);
    for part in [&*heading, "memory limit          400.0 MiB", "GPU 0                 not used", "--mem="] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&file).unwrap());
    assert_eq!(owner, NOBODY, "its user can read it");
    let name = leftover.file_name().unwrap().to_str().unwrap();
    assert!(text.contains(name), "the file in /dev/shm is reported\n{text}");
    wait_for("the end of the allocation", LIMIT, || (!gpus.join("0").exists()).then_some(()));
    let stored = wait_for("the summary for AdminComment", LIMIT, || {
        std::fs::read_to_string(cluster.path("stored")).ok()
    });
    let of_job = format!("-i\nmodify\njob\nwhere\njobid={first}\nset\nAdminComment=");
    let written = stored.strip_prefix(&of_job).unwrap_or_else(|| panic!("{stored}")).trim();
    let read = jobstats(written);
    assert_eq!(read["nodes"][&cluster.node]["total_memory"], 400 * 1024 * 1024, "{read:#}");
    assert_eq!(read["nodes"][&cluster.node]["cpus"], 2, "{read:#}");
    assert_eq!(read["gpus"], 1, "{read:#}");
    if cluster.accounts {
        let comment = wait_for("the summary in the accounting database", LIMIT, || {
            let shown = cluster.run("sacct", &["-n", "-P", "-X", "-j", &first, "-o", "AdminComment"]);
            Some(shown.trim().to_owned()).filter(|comment| !comment.is_empty())
        });
        // sacctmgr of Slurm 22.05.8 converts it to lower case.
        assert_eq!(comment.to_lowercase(), written.to_lowercase());
        println!("AdminComment is {}", if comment == written { "as written" } else { "in lower case" });
    } else {
        skip(
            "slurmdbd or MariaDB is not installed: AdminComment is not stored (apt-get install slurmdbd mariadb-server)",
        );
    }

    // One task of an array has the ID of the array: it is not stored for all tasks.
    let array = cluster.submit(&["--ntasks=1", "--mem=50M", "--array=7", forged], "sleep 1");
    let task = format!("\njobid={array}_7\n");
    wait_for("the summary of the task of an array", LIMIT, || {
        std::fs::read_to_string(cluster.path("stored")).ok().filter(|stored| stored.contains(&task))
    });

    // The epilog says why a job ended.
    let filled = cluster.submit(&["--ntasks=1", "--mem=100M"], "sleep 4; head -c 300M /dev/zero | tail");
    let file = cluster.path("jobs").join(&filled);
    let text =
        wait_for("the summary of a job that fills its limit", LIMIT, || std::fs::read_to_string(&file).ok());
    println!("{text}");
    assert!(
        text.contains("the kernel") && text.contains("Starting it again without a change cannot help."),
        "{text}"
    );

    // The hook requeues a job whose memory crosses the soft level.
    let script = format!(
        "#!/bin/sh\nexport SLURM_CONF={} PATH=/usr/bin:/bin\nexec scontrol requeue \"$MEMWARDEN_SLURM_JOB_ID\"\n",
        cluster.path("slurm.conf").display()
    );
    write(&hook, &script, 0o755);
    let second = cluster.submit(&["--ntasks=2", "--mem=200M", "--requeue"], TWO_TASKS);
    let requeued = wait_for("the requeued job", LIMIT, || {
        cluster.field(&second, "Restarts").filter(|restarts| restarts == "1")
    });
    assert_eq!(requeued, "1");
    wait_for("the job in the queue", LIMIT, || {
        cluster.field(&second, "JobState").filter(|state| state == "PENDING" || state == "RUNNING")
    });
    let memory = summary(&daemon, &second).unwrap()["memory"].clone();
    assert_eq!(memory["limit_bytes"].as_f64(), Some(200.0 * MIB), "{memory}");

    // A daemon that does not know a job says so, and the command fails.
    let output = memwarden(&["job-summary", "4711", "--url", &daemon.socket_url()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Job not found"));
}

/// Runs a shipped script with this environment; it must end well.
fn shipped(name: &str, variables: &[(&str, &str)]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/slurm").join(name);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut command = program("sh");
    command.arg(script).env_clear().env("PATH", path).envs(variables.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{name} {variables:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_prolog_records_gpus_and_the_epilog_forgets_those_of_its_job() {
    let room = tempfile::tempdir().unwrap();
    let folder = room.path().join("gpustat");
    let gpus = folder.display().to_string();
    let summaries = room.path().join("jobs").display().to_string();
    let job =
        |id: &'static str| [("SLURM_JOB_ID", id), ("SLURM_JOB_UID", "1000"), ("MEMWARDEN_GPU_JOBS", &*gpus)];
    let prolog =
        |id, list: &'static str| shipped("prolog.sh", &[&job(id)[..], &[("SLURM_JOB_GPUS", list)]].concat());
    let files = || {
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let mut told: Vec<String> = entries
            .map(|entry| {
                let text = std::fs::read_to_string(entry.path()).unwrap();
                format!("{}: {}", entry.file_name().to_str().unwrap(), text.trim())
            })
            .collect();
        told.sort();
        told.join(", ")
    };
    assert_eq!(prolog("7", "0,3"), "");
    assert_eq!(files(), "0: 7 1000, 3: 7 1000");
    prolog("8", "1,MIG-265a219d-a49f,../x,$(touch y),-1,a b");
    assert_eq!(files(), "0: 7 1000, 1: 8 1000, 3: 7 1000, MIG-265a219d-a49f: 8 1000");
    shipped("prolog.sh", &job("9"));
    // GPU 3 is another job's by now. Nothing answers at this address.
    prolog("10", "3");
    let epilog = [
        ("MEMWARDEN_PROGRAM", env!("CARGO_BIN_EXE_memwarden")),
        ("MEMWARDEN_URL", "http://127.0.0.1:1"),
        ("MEMWARDEN_SUMMARIES", &*summaries),
        ("MEMWARDEN_ADMIN_COMMENT", "jobstats"),
        ("SLURM_JOB_NUM_NODES", "1"),
    ];
    shipped("epilog.sh", &[&job("7")[..], &epilog].concat());
    assert_eq!(files(), "1: 8 1000, 3: 10 1000, MIG-265a219d-a49f: 8 1000");
    assert_eq!(std::fs::read_dir(&summaries).unwrap().count(), 0, "no summary, and no half of one");
}

#[test]
fn the_name_of_a_job_does_not_choose_whose_accounting_is_written() {
    let room = tempfile::tempdir().unwrap();
    let at = |name: &str| room.path().join(name);
    let stored = at("stored");
    write(&at("memwarden"), "#!/bin/sh\necho JS1:None\n", 0o755);
    write(&at("sacctmgr"), &format!("#!/bin/sh\necho \"$5\" >>{}\n", stored.display()), 0o755);
    let shown = "#!/bin/sh\necho 'JobId=7 JobName=x ArrayJobId=42 ArrayTaskId=3 UserId=ada(1000)'\n";
    write(&at("scontrol"), shown, 0o755);
    let summaries = at("jobs").display().to_string();
    let path = format!("{}:{}", room.path().display(), std::env::var("PATH").unwrap());
    let program = at("memwarden").display().to_string();
    // What squeue lists of the ID of an array is all of its tasks.
    for (listed, named) in [
        ("7 7 N/A", "jobid=7\n"),
        ("9 7 1\n7 7 2\n8 7 3", "jobid=7_2\n"),
        ("7 7 4-9%2", ""),
        ("", ""),
        ("8 8 N/A", ""),
    ] {
        write(&at("squeue"), &format!("#!/bin/sh\nprintf '%s\\n' '{listed}'\n"), 0o755);
        let variables = [
            ("PATH", &*path),
            ("SLURM_JOB_ID", "7"),
            ("SLURM_JOB_NUM_NODES", "1"),
            ("MEMWARDEN_PROGRAM", &*program),
            ("MEMWARDEN_SUMMARIES", &*summaries),
            ("MEMWARDEN_ADMIN_COMMENT", "jobstats"),
        ];
        shipped("epilog.sh", &variables);
        assert_eq!(std::fs::read_to_string(&stored).unwrap_or_default(), named, "{listed}");
        let _ = std::fs::remove_file(&stored);
    }
}

#[test]
fn a_script_that_cannot_do_its_work_ends_well() {
    let nowhere = [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_JOB_GPUS", "0"),
        ("MEMWARDEN_GPU_JOBS", "/proc/none"),
        ("MEMWARDEN_SUMMARIES", "/proc/none"),
    ];
    for name in ["prolog.sh", "epilog.sh", "epilog_slurmctld.sh", "health_check.sh"] {
        assert_eq!(shipped(name, &[]), "");
        assert_eq!(shipped(name, &[&nowhere[..], &[("MEMWARDEN_PROGRAM", "/nonexistent")]].concat()), "");
        assert_eq!(shipped(name, &[("SLURM_JOB_ID", "7; touch x")]), "");
    }
}

#[test]
fn the_task_prolog_instruments_unless_the_user_decided() {
    let auto =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python/memwarden/auto").display().to_string();
    let told =
        shipped("task_prolog.sh", &[("MEMWARDEN_PYTHON_AUTO", &auto), ("PYTHONPATH", "/home/ada/lib")]);
    assert_eq!(told, format!("export MEMWARDEN_AUTO=1\nexport PYTHONPATH={auto}:/home/ada/lib\n"));
    let told =
        shipped("task_prolog.sh", &[("MEMWARDEN_AUTO", "0"), ("MEMWARDEN_PYTHON_AUTO", "/nonexistent")]);
    assert_eq!(told, "");
}

/// What jobstats reads from AdminComment, with the functions that its `Jobstats.__init__` calls.
fn jobstats(comment: &str) -> Value {
    let read = "import base64, gzip, json, sys\n\
                data = sys.argv[1]\n\
                assert data.startswith('JS1:') and len(data) > 10\n\
                print(json.dumps(json.loads(gzip.decompress(base64.b64decode(data[4:])))))";
    let output = program("python3").args(["-c", read, comment]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
