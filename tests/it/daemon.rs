//! The daemon as a user runs it: start, scrape, signals, end.

use std::io::Write as _;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use crate::harness::{Daemon, memwarden, now, program, request, tool, try_get, wait_for};

const SOON: Duration = Duration::from_secs(20);

#[test]
fn it_serves_this_host_without_a_configuration() {
    let daemon = Daemon::start(&[]);
    let total = daemon.wait_value("memwarden_host_memory_total_bytes", |bytes| bytes > 0.0);
    let available = daemon.wait_value("memwarden_host_memory_available_bytes", |bytes| bytes > 0.0);
    assert!(available < total, "{available} of {total}");
    let first = daemon.wait_value("memwarden_frames_total", |frames| frames >= 1.0);
    daemon.wait_value("memwarden_frames_total", |frames| frames > first);
    assert_eq!(daemon.get("/-/healthy").code, 200);
    assert_eq!(daemon.get("/-/ready").code, 200);
}

#[test]
fn term_ends_it_within_five_seconds() {
    let mut daemon = Daemon::start(&[]);
    daemon.metrics();
    let idle = std::net::TcpStream::connect(daemon.address).unwrap();
    let begun = now();
    daemon.signal("TERM");
    let status = daemon.wait(Duration::from_secs(5));
    assert!(status.success(), "{status}");
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop(idle);
    daemon.logs_once(&["memwarden is ending"]);
}

#[test]
fn promtool_finds_nothing_to_complain_about() {
    let Some(promtool) = tool("promtool") else { return };
    let daemon = Daemon::start(&[]);
    let text = daemon.metrics();
    let mut check = program(promtool)
        .args(["check", "metrics"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.trim().is_empty(), "{said}");
}

#[test]
fn a_bad_reload_keeps_the_old_configuration_and_reports_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("memwarden.yaml");
    std::fs::write(&file, "sources: {pressure: {enabled: true}}\n").unwrap();
    let daemon = Daemon::start(&["--config.file", file.to_str().unwrap(), "--web.enable-lifecycle"]);
    daemon.wait_value("memwarden_config_last_reload_successful", |flag| flag == 1.0);
    std::fs::write(&file, "sources: {memory: {enabled: false}}\nsampling: {interval: 5}\n").unwrap();
    daemon.signal("HUP");
    daemon.wait_value("memwarden_config_last_reload_successful", |flag| flag == 0.0);
    assert!(daemon.value("memwarden_source_up{source=\"memory\"}").is_some());
    wait_for("the reason in the log", SOON, || {
        daemon.log().contains("sampling.interval: `5` has no unit").then_some(())
    });
    let post = format!("POST /-/reload HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", daemon.address);
    let refused = request(daemon.address, &post);
    assert_eq!(refused.code, 500);
    assert!(refused.body.contains("has no unit"), "{}", refused.body);
    // A file that is being written would drop every target.
    for empty in ["", "# nothing yet\n"] {
        std::fs::write(&file, empty).unwrap();
        let refused = request(daemon.address, &post);
        assert_eq!(refused.code, 500, "{empty:?}");
        assert!(refused.body.contains("the file has no key"), "{}", refused.body);
    }
    std::fs::write(&file, "sources: {memory: {enabled: false}}\n").unwrap();
    assert_eq!(request(daemon.address, &post).code, 200);
    daemon.wait_value("memwarden_config_last_reload_successful", |flag| flag == 1.0);
    wait_for("the source to go", SOON, || {
        daemon.value("memwarden_source_up{source=\"memory\"}").is_none().then_some(())
    });
}

#[test]
fn reload_by_http_is_off_unless_enabled() {
    let daemon = Daemon::start(&[]);
    let answer =
        request(daemon.address, "POST /-/reload HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!(answer.code, 403, "{}", answer.head);
}

#[test]
fn a_taken_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let own = ["--set", "sources.training.enabled=false"];
    let output = memwarden(&["serve", "--web.listen-address", &address]).args(own).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(said.contains(&address) && said.contains("in use"), "{said}");
}

#[test]
fn a_bad_file_at_the_start_is_refused_with_every_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.yaml");
    std::fs::write(&file, "log: {level: loud}\nsampling: {interval: 5}\n").unwrap();
    for args in [vec!["serve", "--config.file"], vec!["check-config"]] {
        let output = memwarden(&args).arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("bad.yaml:1: log.level") && said.contains("bad.yaml:2: sampling.interval"),
            "{said}"
        );
    }
}

#[test]
fn a_log_that_is_not_read_stops_nothing() {
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else {
        crate::skip::skip("this host has no /dev/full");
        return;
    };
    let port = crate::harness::free_port();
    let address = format!("127.0.0.1:{port}");
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("sources.training.socket={}", folder.path().join("job.sock").display());
    let mut child = memwarden(&["serve", "--web.listen-address", &address, "--set", &socket])
        .stderr(full)
        .spawn()
        .unwrap();
    let body =
        wait_for("a frame", SOON, || try_get(address.parse().unwrap(), "/metrics").map(|answer| answer.body));
    assert!(body.contains("memwarden_host_memory_total_bytes"));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn systemd_is_notified_of_every_state() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let mut daemon = Daemon::start_with(&[], |command| {
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000");
    });
    let next = |wanted: &str| {
        let begun = now();
        let mut buffer = [0; 512];
        loop {
            let length = socket.recv(&mut buffer).unwrap();
            let said = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if said.contains(wanted) {
                return said;
            }
            assert!(begun.elapsed() < SOON, "no {wanted}, but {said}");
        }
    };
    next("READY=1");
    next("WATCHDOG=1");
    daemon.signal("HUP");
    let said = next("RELOADING=1");
    assert!(said.contains("MONOTONIC_USEC="), "{said}");
    next("READY=1");
    daemon.signal("TERM");
    next("STOPPING=1");
    daemon.wait(SOON);
}

#[test]
fn a_command_makes_it_let_go_of_the_driver() {
    let library = crate::harness::fake_nvml();
    let daemon = Daemon::start(&["--nvml-library", library.to_str().unwrap()]);
    daemon.wait_value("memwarden_gpu_status{", |flag| flag == 1.0);
    let pid = daemon.pid().to_string();
    let output = memwarden(&["gpu", "release", "--pid", &pid]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mapped = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).any(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // One that has ended and waits to be reaped holds no driver.
        let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').take(2).collect::<Vec<_>>());
        fields.is_some_and(|fields| fields[0] != "Z" && fields.get(1) == Some(&pid.as_str()))
    });
    assert!(!mapped, "the worker is still there");
    daemon.wait_value("memwarden_nvml_status{status=\"released\"}", |flag| flag == 1.0);
    assert_eq!(daemon.value("memwarden_gpu_memory_total_bytes"), None);
    assert!(memwarden(&["gpu", "acquire", "--pid", &pid]).status().unwrap().success());
    daemon.wait_value("memwarden_gpu_memory_total_bytes", |bytes| bytes > 0.0);
}

#[test]
fn a_reload_that_cannot_push_is_refused_whole() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("memwarden.yaml");
    let push = "otlp: {enabled: true, endpoint: 'https://127.0.0.1:1', interval: 100ms";
    std::fs::write(&file, format!("{}}}\n", push.replace("https", "http"))).unwrap();
    let daemon = Daemon::start(&["--config.file", file.to_str().unwrap(), "--web.enable-lifecycle"]);
    daemon.wait_value("memwarden_otlp_export_failures_total", |count| count > 0.0);
    let broken = format!("{push}, certificate: missing.pem}}\nsources: {{memory: {{enabled: false}}}}\n");
    std::fs::write(&file, broken).unwrap();
    let post = format!("POST /-/reload HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", daemon.address);
    for _ in 0..2 {
        let refused = request(daemon.address, &post);
        assert_eq!(refused.code, 500, "{}", refused.body);
        assert!(refused.body.contains("missing.pem"), "{}", refused.body);
    }
    daemon.wait_value("memwarden_config_last_reload_successful", |flag| flag == 0.0);
    let before = daemon.value("memwarden_otlp_export_failures_total").unwrap();
    daemon.wait_value("memwarden_otlp_export_failures_total", |count| count > before);
    assert!(
        daemon.value("memwarden_source_up{source=\"memory\"}").is_some(),
        "half of the file was taken over"
    );
}

#[test]
fn a_shorter_interval_counts_at_once_and_a_pipe_is_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("memwarden.yaml");
    std::fs::write(&file, "sampling: {interval: 60s}\n").unwrap();
    let mut daemon = Daemon::start(&["--config.file", file.to_str().unwrap()]);
    daemon.wait_value("memwarden_frames_total", |frames| frames >= 1.0);
    std::fs::write(&file, "sampling: {interval: 100ms}\n").unwrap();
    daemon.signal("HUP");
    daemon.wait_value("memwarden_frames_total", |frames| frames > 3.0);
    std::fs::remove_file(&file).unwrap();
    assert!(program("mkfifo").arg(&file).status().unwrap().success());
    daemon.signal("HUP");
    daemon.wait_value("memwarden_config_last_reload_successful", |flag| flag == 0.0);
    daemon.signal("TERM");
    assert!(daemon.wait(Duration::from_secs(5)).success());
}

#[test]
fn check_config_looks_into_the_files_that_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    write("web.yaml", "tls_server_config: {cert_file: missing.pem}\n");
    let bad = write(
        "bad.yaml",
        "web: {config_file: web.yaml}\notlp: {enabled: true, endpoint: 'https://c:1', certificate: gone.pem}\n",
    );
    let output = memwarden(&["check-config"]).arg(&bad).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("web.config_file") && said.contains("gone.pem"), "{said}");
    let good = write("good.yaml", "otlp: {enabled: true, endpoint: 'http://c:1'}\n");
    assert!(memwarden(&["check-config"]).arg(&good).status().unwrap().success());
}

#[test]
fn a_daemon_that_was_stopped_keeps_its_worker() {
    let library = crate::harness::fake_nvml();
    let daemon = Daemon::start(&["--nvml-library", library.to_str().unwrap()]);
    daemon.wait_value("memwarden_gpu_memory_total_bytes", |bytes| bytes > 0.0);
    daemon.signal("STOP");
    std::thread::sleep(Duration::from_secs(7));
    daemon.signal("CONT");
    let frames = daemon.value("memwarden_frames_total").unwrap();
    daemon.wait_value("memwarden_frames_total", |now| now > frames + 2.0);
    daemon.wait_value("memwarden_gpu_worker_up", |up| up == 1.0);
    assert_eq!(daemon.value("memwarden_gpu_worker_restarts_total"), Some(0.0));
    assert!(!daemon.log().contains("is killed"), "{}", daemon.log());
}
