//! A node with 2,000 processes, as files: 40 jobs that work, services that do not, kernel threads.

use std::fs;
use std::path::Path;

use memwarden::host::roots::Roots;
use tempfile::TempDir;

/// Number of processes of all kinds.
pub(crate) const PROCESSES: u32 = 2_000;
/// The first pids are kernel threads.
const KERNEL_THREADS: u32 = 400;
/// The next pids are services.
const IN_SERVICES: u32 = 600;
const SERVICES: u32 = 60;
/// The other processes are in jobs and use the CPU all the time.
const JOBS: u32 = 40;

/// The folder of the fixture, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Node(TempDir);

impl Node {
    /// Writes all files.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn new() -> std::io::Result<Self> {
        let node = Self(TempDir::new()?);
        let Roots { proc, cgroup, kmsg, passwd, .. } = node.roots();
        let host = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/host/6.18/proc");
        for name in ["meminfo", "vmstat", "buddyinfo", "pressure/cpu", "pressure/io", "pressure/memory"] {
            write(&proc.join(name), &fs::read(host.join(name))?)?;
        }
        write(&proc.join("stat"), b"cpu 1 2\nbtime 1700000000\nprocesses 4321\n")?;
        write(&proc.join("self/stat"), stat(9_999, 0).as_bytes())?;
        write(&proc.join("self/statm"), b"62000 2600 1700 900 0 1800 0\n")?;
        write(&proc.join("self/fd/0"), b"")?;
        write(&kmsg, b"")?;
        let uid = rustix::process::getuid().as_raw();
        write(&passwd, format!("owner:x:{uid}:0::/:/bin/sh\n").as_bytes())?;
        write(&cgroup.join("cgroup.controllers"), b"cpu io memory\n")?;
        for pid in 1..=PROCESSES {
            let folder = proc.join(pid.to_string());
            let group = group(pid);
            write(&folder.join("stat"), stat(pid, 0).as_bytes())?;
            write(&folder.join("status"), status(pid).as_bytes())?;
            write(&folder.join("io"), IO)?;
            write(&folder.join("cgroup"), format!("0::{group}\n").as_bytes())?;
            write(&folder.join("fd/0"), b"")?;
            for part in Path::new(&group).ancestors().filter(|_| pid > KERNEL_THREADS) {
                charge(&cgroup.join(part.strip_prefix("/").unwrap_or(part)))?;
            }
        }
        Ok(node)
    }

    /// The path of the fixture.
    pub(crate) fn roots(&self) -> Roots {
        Roots::under(self.0.path())
    }

    /// Advances the processes of jobs to this second.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn work(&self, second: u64) -> std::io::Result<()> {
        let proc = self.roots().proc;
        (KERNEL_THREADS + IN_SERVICES + 1..=PROCESSES)
            .try_for_each(|pid| fs::write(proc.join(format!("{pid}/stat")), stat(pid, second * 100)))
    }
}

const IO: &[u8] = b"rchar: 323934931\nwchar: 323929600\nsyscr: 632687\nsyscw: 632675\nread_bytes: 4096\n\
    write_bytes: 323932160\ncancelled_write_bytes: 0\n";

/// The controller's files of one cgroup, as of Linux 6.18.
const CGROUP: &[(&str, &str)] = &[
    ("memory.current", "717758464\n"),
    ("memory.max", "8589934592\n"),
    ("memory.high", "max\n"),
    ("memory.peak", "817758464\n"),
    ("memory.swap.current", "0\n"),
    ("memory.swap.max", "max\n"),
    ("memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n"),
    (
        "memory.stat",
        "anon 268435456\nfile 33554432\nkernel 5242880\nkernel_stack 98304\npagetables 1048576\nsec_pagetables 0\n\
         percpu 0\nsock 0\nvmalloc 0\nshmem 9068544\nzswap 0\nzswapped 0\nfile_mapped 8192\nfile_dirty 0\n\
         file_writeback 0\nswapcached 0\nanon_thp 0\nfile_thp 0\nshmem_thp 0\ninactive_anon 9068544\n\
         active_anon 268435456\ninactive_file 8192\nactive_file 24477696\nunevictable 0\nslab_reclaimable 3145728\n\
         slab_unreclaimable 1048576\nslab 4194304\nworkingset_refault_anon 0\nworkingset_refault_file 0\npgfault 91842\n\
         pgmajfault 12\n",
    ),
    (
        "memory.pressure",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=900\n",
    ),
];

fn charge(folder: &Path) -> std::io::Result<()> {
    if folder.join("memory.current").exists() {
        return Ok(());
    }
    CGROUP.iter().try_for_each(|(name, text)| write(&folder.join(name), text.as_bytes()))
}

fn group(pid: u32) -> String {
    match pid {
        ..=KERNEL_THREADS => "/".to_owned(),
        _ if pid <= KERNEL_THREADS + IN_SERVICES => {
            format!("/system.slice/worker-{:02}.service", pid % SERVICES)
        }
        _ => format!("/system.slice/slurmstepd.scope/job_{}/step_0/user/task_0", 1_000 + pid % JOBS),
    }
}

/// The first process is the parent of all others except kernel threads.
fn stat(pid: u32, cpu: u64) -> String {
    let (comm, flags, pages) = match pid {
        1 => ("systemd", 0x40_0100, 3_000),
        ..=KERNEL_THREADS => ("kworker/3:1-events", 0x420_8060, 0),
        _ => ("python3", 0x40_4000, 10_000 + pid),
    };
    format!(
        "{pid} ({comm}) S {} {pid} {pid} 0 -1 {flags} 91842 0 12 0 {cpu} 320 0 0 20 0 4 0 {} 8081408000 {pages} \
         18446744073709551615 1 1 0 0 0 0 0 16781312 16386 0 0 0 17 5 0 0 0 0 0 0 0 0 0 0 0 0 0\n",
        u32::from(pid != 1),
        99_200 + pid,
    )
}

fn status(pid: u32) -> String {
    let file = 4 * (1_000 + pid);
    format!(
        "Name:\tpython3\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t{pid}\nNgid:\t0\nPid:\t{pid}\nPPid:\t1\n\
         TracerPid:\t0\nUid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nFDSize:\t64\nGroups:\t1000\n\
         NStgid:\t{pid}\nNSpid:\t{pid}\nNSpgid:\t{pid}\nNSsid:\t{pid}\nKthread:\t0\nVmPeak:\t 9000000 kB\n\
         VmSize:\t 8000000 kB\nVmLck:\t       0 kB\nVmPin:\t       0 kB\nVmHWM:\t  512000 kB\nVmRSS:\t   {file} kB\n\
         RssAnon:\t   36000 kB\nRssFile:\t   {file} kB\nRssShmem:\t       0 kB\nVmData:\t  300000 kB\n\
         VmStk:\t     132 kB\nVmExe:\t    2000 kB\nVmLib:\t  150000 kB\nVmPTE:\t    1200 kB\nVmSwap:\t       0 kB\n\
         HugetlbPages:\t       0 kB\nCoreDumping:\t0\nTHP_enabled:\t1\nThreads:\t4\nSigQ:\t0/127000\n\
         SigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\nSigBlk:\t0000000000000000\n"
    )
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, bytes)
}
