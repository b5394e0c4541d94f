//! The daemon under test: started from the packed binary, asked over HTTP, and measured from `/proc`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

/// How long the daemon may take to listen, and to have sampled a GPU.
const START: Duration = Duration::from_secs(30);

/// A running daemon; killed when dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    address: SocketAddr,
    /// Where training jobs connect.
    pub(crate) job_socket: PathBuf,
}

/// One series of the exposition.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// One scrape.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page(pub(crate) Vec<Series>);

/// What the daemon took from the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Seconds of CPU since the process started.
    pub(crate) cpu: f64,
    /// Resident memory in bytes.
    pub(crate) resident: f64,
}

impl Daemon {
    /// Starts the daemon with its log and its socket in `folder`.
    ///
    /// # Errors
    /// The daemon cannot be started, or does not listen in time; the message has its log.
    pub(crate) fn start(
        binary: &Path,
        folder: &Path,
        nvml: &str,
        settings: &[String],
    ) -> anyhow::Result<Self> {
        fs::create_dir_all(folder)?;
        let log = folder.join("daemon.log");
        // The path of a socket must be short.
        let job_socket = std::env::temp_dir().join(format!("gpu-run-{}.sock", std::process::id()));
        let mut command = Command::new(binary);
        command.args(["serve", "--web.listen-address", "127.0.0.1:0"]);
        command.args(["--set", &format!("sources.training.socket={}", job_socket.display())]);
        if nvml.contains('/') {
            command.args(["--nvml-library", nvml]);
        }
        for setting in settings {
            if let Some(file) = setting.strip_prefix("file:") {
                command.args(["--config.file", file]);
            } else {
                command.args(["--set", setting]);
            }
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?).spawn();
        let child = child.with_context(|| format!("{} cannot be started", binary.display()))?;
        let mut daemon = Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)), job_socket };
        let begun = Instant::now();
        loop {
            let text = fs::read_to_string(&log).unwrap_or_default();
            if let Some(address) = address(&text) {
                daemon.address = address;
                return Ok(daemon);
            }
            let ended = daemon.child.try_wait()?;
            if ended.is_some() || begun.elapsed() > START {
                anyhow::bail!("the daemon does not listen ({ended:?}):\n{text}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The body of an answer to GET.
    ///
    /// # Errors
    /// The daemon does not answer, or not with status 200.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.address, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a head")?;
        let status = head.split(' ').nth(1).unwrap_or_default();
        anyhow::ensure!(status == "200", "{path}: status {status}");
        Ok(body.to_owned())
    }

    /// The address of its pages.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The newest frame's metrics; none before the first frame.
    pub(crate) fn page(&self) -> Page {
        self.get("/metrics").map(|text| Page::parse(&text)).unwrap_or_default()
    }

    /// Waits until the metrics are as wanted.
    ///
    /// # Errors
    /// They were not within the time.
    pub(crate) fn wait(
        &self,
        what: &str,
        limit: Duration,
        good: impl Fn(&Page) -> bool,
    ) -> anyhow::Result<Page> {
        let begun = Instant::now();
        loop {
            let page = self.page();
            if good(&page) {
                return Ok(page);
            }
            anyhow::ensure!(begun.elapsed() < limit, "waited {} s for {what}", limit.as_secs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until every one of this many GPUs has a sample.
    ///
    /// # Errors
    /// They had not in time.
    pub(crate) fn wait_gpus(&self, count: u32) -> anyhow::Result<Page> {
        self.wait("a sample of each GPU", START, |page| {
            let sampled = page.all("memwarden_gpu_sample_age_seconds").count();
            u32::try_from(sampled).is_ok_and(|sampled| sampled >= count)
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process that calls NVML.
    pub(crate) fn worker(&self) -> Option<u32> {
        let pids = fs::read_dir("/proc").ok()?.flatten();
        pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).find(|pid| {
            parent(*pid) == Some(self.pid())
                && fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| line.split(|byte| *byte == 0).any(|argument| argument == b"gpu-worker"))
        })
    }

    /// Ends the daemon.
    pub(crate) fn stop(mut self) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // A daemon that has ended is killed below, which then does nothing.
            let _ = kill_process(pid, Signal::TERM);
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail only where the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.job_socket);
    }
}

impl Page {
    /// Reads the text format.
    pub(crate) fn parse(text: &str) -> Self {
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(series).collect())
    }

    /// All series of a name.
    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &Series> {
        self.0.iter().filter(move |series| series.name == name)
    }

    /// The value of the first series of a name with these labels.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.all(name).find(|series| series.has(labels)).map(|series| series.value)
    }
}

impl Series {
    /// Whether it has these labels, among others.
    pub(crate) fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.label(name) == *value)
    }

    /// The value of a label; empty if there is none.
    pub(crate) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

/// One line of the text format: `name{label="value",…} number`.
fn series(line: &str) -> Option<Series> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.insert(label.to_owned(), value);
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = rest.strip_prefix('}')?;
    }
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Series { name: name.to_owned(), labels, value })
}

/// A value up to its closing quote, without the escapes, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut escaped) = (String::new(), false);
    for (index, letter) in text.char_indices() {
        match (escaped, letter) {
            (false, '"') => return Some((value, text.get(index + 1..)?)),
            (false, '\\') => {
                escaped = true;
                continue;
            }
            (true, 'n') => value.push('\n'),
            (_, letter) => value.push(letter),
        }
        escaped = false;
    }
    None
}

/// The address in the daemon's log.
fn address(log: &str) -> Option<SocketAddr> {
    let rest = log.split("addresses=").nth(1)?;
    let end = |letter: char| letter.is_whitespace() || letter == '"';
    rest.trim_start_matches('"').split(end).next()?.parse().ok()
}

/// The fields of `/proc/PID/stat` after the name, which can contain spaces.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

fn parent(pid: u32) -> Option<u32> {
    stat(pid)?.get(1)?.parse().ok()
}

/// CPU time and resident memory of a process.
pub(crate) fn usage(pid: u32) -> Option<Usage> {
    let fields = stat(pid)?;
    let number = |index: usize| fields.get(index)?.parse::<f64>().ok();
    // utime and stime in ticks of 10 ms, rss in pages (proc_pid_stat(5)).
    let page = f64::from(u32::try_from(rustix::param::page_size()).ok()?);
    Some(Usage { cpu: (number(11)? + number(12)?) / 100.0, resident: number(21)? * page })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_read_with_their_escapes() {
        let page =
            Page::parse("# HELP a b\na 1\nb{x=\"1\",y=\"a \\\"q\\\" \\\\\"} 2.5e3\nb{x=\"2\",y=\"\"} NaN\n");
        assert_eq!(page.value("a", &[]), Some(1.0));
        assert_eq!(page.value("b", &[("y", "a \"q\" \\")]), Some(2500.0));
        assert_eq!(page.0.len(), 3);
    }

    #[test]
    fn the_address_is_in_the_log() {
        assert_eq!(address("x addresses=127.0.0.1:80\n"), "127.0.0.1:80".parse().ok());
        assert_eq!(address("x addresses=\"127.0.0.1:80\" y"), "127.0.0.1:80".parse().ok());
        assert_eq!(address("x"), None);
    }

    #[test]
    fn the_usage_of_this_process_is_known() {
        let own = usage(std::process::id()).unwrap();
        assert!(own.resident > 1e5, "{own:?}");
        assert!(usage(4_100_000).is_none());
    }
}
