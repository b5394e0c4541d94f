//! Starts the binary as a user would, and talks to it.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Each daemon has its own sockets.
fn sockets(folder: &tempfile::TempDir) -> [String; 4] {
    let at = |key, name| format!("{key}={}", folder.path().join(name).display());
    let set = || "--set".to_owned();
    [set(), at("sources.training.socket", "job.sock"), set(), at("web.socket", "api.sock")]
}

/// A running memwarden; killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) address: SocketAddr,
    log: Arc<Mutex<String>>,
    /// Where its sockets are: each daemon has its own.
    jobs: tempfile::TempDir,
}

/// An HTTP answer.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// The binary under test, without the environment's OTLP settings.
#[expect(clippy::disallowed_methods, reason = "tests start the binary under test")]
pub(crate) fn memwarden(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memwarden"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    without_otel(&mut command);
    command
}

/// The program of the commands that read files, which the one under test executes, as the daemon starts it.
#[expect(clippy::disallowed_methods, reason = "tests start it")]
pub(crate) fn lab() -> Command {
    let mut command =
        Command::new(Path::new(env!("CARGO_BIN_EXE_memwarden")).with_file_name("memwarden-lab"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn without_otel(command: &mut Command) {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("OTEL_")) {
        command.env_remove(name);
    }
}

#[expect(clippy::disallowed_methods, reason = "tests start other programs beside the binary")]
pub(crate) fn program(name: impl AsRef<std::ffi::OsStr>) -> Command {
    Command::new(name)
}

#[expect(clippy::disallowed_methods, reason = "tests wait for real processes")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits until `check` gives something.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, limit: Duration, mut check: impl FnMut() -> Option<T>) -> T {
    let begun = now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(begun.elapsed() < limit, "waited {limit:?} for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Daemon {
    /// Starts `memwarden serve` on a free port of loopback.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(args, |_| {})
    }

    /// The same, with more to say of the command.
    pub(crate) fn start_with(args: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        let mut all = vec!["serve", "--web.listen-address", "127.0.0.1:0"];
        let jobs = tempfile::tempdir().unwrap();
        let sockets = sockets(&jobs);
        all.extend(sockets.iter().map(String::as_str));
        all.extend_from_slice(args);
        let mut command = memwarden(&all);
        prepare(&mut command);
        Self::of(command, jobs)
    }

    /// Where training jobs connect.
    pub(crate) fn job_socket(&self) -> PathBuf {
        self.jobs.path().join("job.sock")
    }

    /// The folder of the sockets.
    pub(crate) fn socket_folder(&self) -> &Path {
        self.jobs.path()
    }

    /// The URL of its socket for commands.
    pub(crate) fn socket_url(&self) -> String {
        format!("unix:{}", self.jobs.path().join("api.sock").display())
    }

    /// `memwarden serve`, started by `starter` with the binary and its arguments at the end.
    pub(crate) fn start_by(starter: &[&str], binary: &Path, args: &[&str]) -> Self {
        Self::start_by_with(starter, binary, args, |_| {})
    }

    /// The same, with more to say of the command.
    pub(crate) fn start_by_with(
        starter: &[&str],
        binary: &Path,
        args: &[&str],
        prepare: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = program(starter[0]);
        command.args(&starter[1..]).arg(binary);
        let jobs = tempfile::tempdir().unwrap();
        command.args(["serve", "--web.listen-address", "127.0.0.1:0"]).args(sockets(&jobs)).args(args);
        without_otel(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        prepare(&mut command);
        Self::of(command, jobs)
    }

    fn of(mut command: Command, jobs: tempfile::TempDir) -> Self {
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let shared = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut log = shared.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        let address = wait_for("the address in the log", Duration::from_secs(20), || {
            let ended = child.try_wait().unwrap();
            let log = log.lock().unwrap();
            assert!(ended.is_none(), "the daemon ended at once, {ended:?}:\n{log}");
            let rest = log.split("addresses=").nth(1)?;
            let text: String = rest
                .trim_start_matches('"')
                .chars()
                .take_while(|c| !c.is_whitespace() && *c != '"')
                .collect();
            text.parse().ok()
        });
        Self { child, address, log, jobs }
    }

    /// Everything logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits for the end.
    pub(crate) fn wait(&mut self, limit: Duration) -> ExitStatus {
        wait_for("the daemon's end", limit, || self.child.try_wait().unwrap())
    }

    /// `GET path`.
    pub(crate) fn get(&self, path: &str) -> Answer {
        request(self.address, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    }

    /// `GET path` over the socket for commands.
    pub(crate) fn get_local(&self, path: &str) -> Answer {
        let stream = UnixStream::connect(self.socket_folder().join("api.sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        exchange(stream, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    }

    /// The exposition, once a frame is there.
    pub(crate) fn metrics(&self) -> String {
        wait_for("a frame", Duration::from_secs(20), || {
            Some(self.get("/metrics")).filter(|answer| answer.code == 200).map(|answer| answer.body)
        })
    }

    /// The exposition, taken apart.
    pub(crate) fn page(&self) -> Page {
        Page::parse(&self.metrics())
    }

    /// Waits until a page is as `good` wants it.
    #[track_caller]
    pub(crate) fn wait_page(&self, what: &str, limit: Duration, good: impl Fn(&Page) -> bool) -> Page {
        let begun = now();
        loop {
            let page = self.page();
            if good(&page) {
                return page;
            }
            if begun.elapsed() >= limit {
                let shown = self.metrics();
                let lines: Vec<_> = shown.lines().filter(|line| line.contains("_info{")).collect();
                panic!("waited {limit:?} for {what}\n{}\nthe log:\n{}", lines.join("\n"), self.log());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The lines logged so far that have all of `parts`.
    pub(crate) fn logged(&self, parts: &[&str]) -> Vec<String> {
        let log = self.log();
        let has = |line: &&str| parts.iter().all(|part| line.contains(part));
        log.lines().filter(has).map(str::to_owned).collect()
    }

    /// Waits until a line has all of `parts`, which a thread may write after the daemon has answered; it is the only one.
    #[track_caller]
    pub(crate) fn logs_once(&self, parts: &[&str]) {
        wait_for("a line in the log", Duration::from_secs(20), || {
            (!self.logged(parts).is_empty()).then_some(())
        });
        assert_eq!(self.logged(parts).len(), 1, "{}", self.log());
    }

    /// Waits until `more` frames have come since now.
    #[track_caller]
    pub(crate) fn wait_frames(&self, more: f64) {
        let first = self.value("memwarden_frames_total").unwrap();
        self.wait_value("memwarden_frames_total", |frames| frames >= first + more);
    }

    /// The value of the first series that starts with `series`, such as `up{gpu="0"`.
    pub(crate) fn value(&self, series: &str) -> Option<f64> {
        value(&self.metrics(), series)
    }

    /// Waits until a series has a value that `good` accepts.
    #[track_caller]
    pub(crate) fn wait_value(&self, series: &str, good: impl Fn(f64) -> bool) -> f64 {
        wait_for(series, Duration::from_secs(20), || self.value(series).filter(|value| good(*value)))
    }
}

/// One series of a page.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// An exposition in the text format, taken apart.
pub(crate) struct Page(pub(crate) Vec<Series>);

impl Page {
    /// Takes the text apart.
    pub(crate) fn parse(text: &str) -> Self {
        let series = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            Series { name: name.to_owned(), labels: labels_of(labels), value: value.parse().unwrap() }
        });
        Self(series.collect())
    }

    /// Every series of a metric that has these labels.
    pub(crate) fn all<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = &'a Series> {
        self.0.iter().filter(move |series| {
            let has = |(key, value): &(&str, &str)| series.labels.get(*key).is_some_and(|is| is == value);
            series.name == name && labels.iter().all(has)
        })
    }

    /// The value of the only series of a metric that has these labels.
    #[track_caller]
    pub(crate) fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut found = self.all(name, labels);
        let value = found.next().map(|series| series.value);
        assert!(found.next().is_none(), "more than one {name} has {labels:?}");
        value
    }

    /// The sum over a metric's series that have these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.all(name, labels).map(|series| series.value).sum()
    }
}

/// The labels of one series, from behind its opening brace.
fn labels_of(mut text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    while let Some((key, rest)) = text.split_once("=\"") {
        let (mut value, mut chars) = (String::new(), rest.chars());
        loop {
            match chars.next().unwrap() {
                '"' => break,
                '\\' => value.push(match chars.next().unwrap() {
                    'n' => '\n',
                    escaped => escaped,
                }),
                plain => value.push(plain),
            }
        }
        found.insert(key.to_owned(), value);
        text = chars.as_str().trim_start_matches(',');
    }
    assert_eq!(text, "}");
    found
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already, which is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("the daemon's log:\n{}", self.log());
        }
    }
}

/// The value of the first series in `text` that starts with `series`.
pub(crate) fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(series))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Sends a signal by name, through the shell's own `kill`.
pub(crate) fn signal(pid: u32, name: &str) {
    let status = program("kill").args(["-s", name, &pid.to_string()]).status().unwrap();
    assert!(status.success(), "kill -s {name} {pid}");
}

/// One request on a connection of its own, read to the end.
pub(crate) fn request(address: SocketAddr, text: &str) -> Answer {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    exchange(stream, text)
}

/// `GET path`, answered with 200; None for any other answer, while nothing listens, and where a listener that is about to end
/// does not answer.
pub(crate) fn try_get(address: SocketAddr, path: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let text = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).ok()?;
    Some(answer(stream)).filter(|answer| answer.code == 200)
}

fn exchange(mut stream: impl Read + Write, text: &str) -> Answer {
    stream.write_all(text.as_bytes()).unwrap();
    answer(stream)
}

fn answer(mut stream: impl Read) -> Answer {
    let mut bytes = Vec::new();
    // A reset after the answer is no failure.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    Answer { code, head: head.to_owned(), body: body.to_owned() }
}

/// A program on the path.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Whether the test that calls this is left to `tests/real`, because it needs programs that are installed or takes minutes: its name is
/// then added to the file that `MEMWARDEN_LEFT` names, which only `tests/run` sets.
pub(crate) fn is_left() -> bool {
    let Some(path) = std::env::var_os("MEMWARDEN_LEFT") else { return false };
    let thread = std::thread::current();
    let line = format!("{}\n", thread.name().expect("the thread of a test has its name"));
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(line.as_bytes()).unwrap();
    true
}

/// A program on PATH, or a line that says what is skipped for want of it.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    if is_left() {
        return None;
    }
    let found = on_path(name);
    if found.is_none() {
        crate::skip::skip(&format!("{name} is not installed (tests/real installs it)"));
    }
    found
}

/// The Python of the tests, if it has a module, or a line that says what is skipped for want of it.
pub(crate) fn python_with(module: &str) -> Option<PathBuf> {
    if is_left() {
        return None;
    }
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/bin/python");
    let python = std::env::var_os("MEMWARDEN_TEST_PYTHON").map_or_else(own, PathBuf::from);
    let imports = program(&python).args(["-c", &format!("import {module}")]).output();
    if imports.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    crate::skip::skip(&format!("{} cannot import {module} (tests/real installs it)", python.display()));
    None
}

/// The fake NVML library, which cargo builds as a dependency of the tests.
pub(crate) fn fake_nvml() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_memwarden")).with_file_name("deps").join("libfake_nvml.so");
    assert!(built.is_file(), "{} is not built", built.display());
    built
}

/// The children of a process.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent_of = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name before may have spaces and brackets.
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<u32>().ok()
    };
    pids.filter(|pid| parent_of(pid) == Some(parent)).collect()
}

/// Whether slow tests are wanted; says so where they are not.
pub(crate) fn slow_tests() -> bool {
    if is_left() {
        return false;
    }
    let wanted = std::env::var_os("RUN_SLOW_TESTS").is_some();
    if !wanted {
        crate::skip::skip("RUN_SLOW_TESTS is not set (tests/real sets it)");
    }
    wanted
}

/// A port of loopback that was free a moment ago, below those that the kernel gives to connections, and usually another one
/// in each process and call.
pub(crate) fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(16);
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let mut tries =
        std::iter::repeat_with(|| first.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed)) % 12_000);
    tries.find_map(|place| Some(20_000 + u16::try_from(place).ok()?).filter(is_free)).unwrap()
}
