//! Users who open connections to the server, and send it what nobody asked for.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::time::Duration;

use super::people::{MALLORY, as_user};
use crate::harness::{Daemon, wait_for};

const SOON: Duration = Duration::from_secs(60);

/// Memory in KiB that the daemon may take at most because of them: of 512 connections, each of some 20 KiB without optimization, and as
/// much again for what the allocator keeps.
const MOST: u64 = 24 << 10;

/// Connects and closes, and then keeps more connections than there are places, each answered once. Prints `kept`, and ends with its
/// input.
const CONNECT: &str = "
import socket, sys
path, times, kept = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def connect():
    own = socket.socket(socket.AF_UNIX)
    own.connect(path)
    return own
for _ in range(times):
    connect().close()
held = []
for _ in range(kept):
    own = connect()
    try:
        own.sendall(b'GET /-/healthy HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n')
        own.recv(4096)
    except OSError:
        pass
    held.append(own)
print('kept', flush=True)
sys.stdin.read()
";

/// Begins messages of Alertmanager, without a password, and sends all of their bodies but the last bytes.
const UNFINISHED: &str = "
import socket, sys
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
held = []
for _ in range(count):
    own = socket.create_connection((host, port))
    own.settimeout(1)
    try:
        own.sendall(b'POST /api/v1/alerts HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Type: application/json\\r\\nContent-Length: 524288\\r\\n\\r\\n')
        own.sendall(b' ' * 523000)
    except OSError:
        pass
    held.append(own)
print('kept', flush=True)
sys.stdin.read()
";

/// The most memory that the daemon had since [`forget_peak`], in KiB.
fn peak(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

/// Sets the peak to what the daemon has now (`5` to `clear_refs`, proc_pid_clear_refs(5)).
fn forget_peak(daemon: &Daemon) {
    std::fs::write(format!("/proc/{}/clear_refs", daemon.pid()), "5").unwrap();
}

/// How much more memory, in KiB, the daemon needed at most while such a program of Mallory ran and then root asked it twice; `None`,
/// with a message, if this is not possible here.
fn taken(daemon: &Daemon, script: &str, arguments: &[&str]) -> Option<u64> {
    let mut command = as_user(MALLORY, "python3")?;
    daemon.metrics();
    wait_for("an answer", SOON, || (daemon.get_local("/metrics").code == 200).then_some(()));
    forget_peak(daemon);
    let before = peak(daemon);
    command.args(["-c", script]).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut attacker = command.spawn().unwrap();
    let mut said = [0; 4];
    std::io::Read::read_exact(attacker.stdout.as_mut().unwrap(), &mut said).unwrap();
    assert_eq!(&said, b"kept");
    for _ in 0..2 {
        assert_eq!(daemon.get_local("/metrics").code, 200, "root has a place");
    }
    let taken = peak(daemon).saturating_sub(before);
    drop(attacker.stdin.take());
    attacker.wait().unwrap();
    println!("{taken} KiB more than {before}");
    Some(taken)
}

#[test]
fn a_user_who_only_connects_takes_no_memory_and_no_place_of_root() {
    let daemon = Daemon::start(&[]);
    std::fs::set_permissions(daemon.socket_folder(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let socket = daemon.socket_folder().join("api.sock");
    let Some(taken) = taken(&daemon, CONNECT, &[socket.to_str().unwrap(), "20000", "600"]) else { return };
    assert!(taken < MOST, "{taken} KiB");
}

#[test]
fn no_byte_of_a_body_is_kept_before_its_sender_is_known() {
    let daemon = Daemon::start(&[]);
    let (host, port) = (daemon.address.ip().to_string(), daemon.address.port().to_string());
    let Some(taken) = taken(&daemon, UNFINISHED, &[&host, &port, "300"]) else { return };
    assert!(taken < MOST, "{taken} KiB");
}
