//! One user who keeps hundreds of connections to the job socket full.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use super::people::{ALICE, MALLORY, as_user};
use crate::harness::{Daemon, wait_for};
use crate::skip::skip;

const SOON: Duration = Duration::from_secs(30);

/// Connections of the first user.
const CONNECTIONS: u32 = 400;
/// Maximum amount of its messages that may be read before another user's, as the kernel counts the memory of both: one
/// round of the reader reads at most 1 MiB, which is counted as less than 4 MiB. All connections hold some 80 MiB.
const READ_BEFORE: u64 = 16 << 20;

/// Connects many times as one user and once as another. On `fill` it sends on each connection of the first user until
/// it is full, then one message of the other, and prints how much is unread; on `wait` it waits until that message was
/// read, and prints how much less of the first user's is unread.
const FLOOD: &str = r#"
import fcntl, os, resource, socket, struct, sys, termios
path, many, one, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

def connect(user, rank):
    job = socket.socket(socket.AF_UNIX)
    os.seteuid(user)
    job.connect(path)
    os.seteuid(0)
    job.sendall(b'{"type":"hello","v":1,"rank":%d,"world":100000}\n' % rank)
    job.setblocking(False)
    return job

def unread(job):
    return struct.unpack("i", fcntl.ioctl(job, termios.TIOCOUTQ, bytes(4)))[0]

flood = [connect(many, rank) for rank in range(count)]
other = connect(one, count)
text = (b'{"type":"step","step":1' + b' ' * 104 + b'}\n') * 64
at = [0] * count
step = 0

def fill():
    for place, job in enumerate(flood):
        try:
            while True:
                at[place] = (at[place] + job.send(text[at[place]:])) % len(text)
        except BlockingIOError:
            pass

print("connected", flush=True)
for line in sys.stdin:
    if line.strip() == "fill":
        fill()
        step += 1
        other.sendall(b'{"type":"step","step":%d}\n' % step)
        before = sum(map(unread, flood))
        print(before, flush=True)
    else:
        while unread(other):
            pass
        print(before - sum(map(unread, flood)), flush=True)
"#;

/// The process of both users.
struct Flood {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Flood {
    /// Starts it and waits until all connections are made; `None`, with a message, if this is not possible here.
    fn start(daemon: &Daemon) -> Option<Self> {
        let mut command = as_user(0, "python3")?;
        let socket = daemon.job_socket();
        command.arg("-c").arg(FLOOD).arg(&socket);
        command.args([MALLORY, ALICE, CONNECTIONS].map(|number| number.to_string()));
        let Ok(mut process) = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
            skip("python3 is needed");
            return None;
        };
        let (to, from) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let mut flood = Self { process, to, from: BufReader::new(from) };
        assert_eq!(flood.line(), "connected");
        Some(flood)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Its answer, in bytes.
    fn ask(&mut self, what: &str) -> u64 {
        writeln!(self.to, "{what}").unwrap();
        // More may have been sent than was read meanwhile, if the daemon had not stopped yet.
        self.line().parse::<i64>().unwrap().max(0).unsigned_abs()
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_user_who_keeps_hundreds_of_connections_full_delays_anothers_message_by_a_round() {
    let settings = ["sampling.interval=200ms", "sources.training.messages_per_second=1000000"];
    let daemon = Daemon::start(&["--set", settings[0], "--set", settings[1]]);
    let socket = daemon.job_socket();
    wait_for("the job socket", SOON, || {
        std::fs::metadata(&socket)
            .is_ok_and(|status| status.permissions().mode() & 0o777 == 0o666)
            .then_some(())
    });
    let all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(socket.parent().unwrap(), all).unwrap();
    let Some(mut flood) = Flood::start(&daemon) else { return };
    let connected = f64::from(CONNECTIONS + 1);
    daemon.wait_value("memwarden_training_clients", |clients| clients >= connected);
    // The reader continues while this machine is too busy to check; this cannot happen each time.
    let mut least = u64::MAX;
    let mut rounds = 0_u32;
    while least > READ_BEFORE && rounds < 30 {
        daemon.signal("STOP");
        let unread = flood.ask("fill");
        assert!(unread > 2 * READ_BEFORE, "{unread} bytes in all connections");
        daemon.signal("CONT");
        least = least.min(flood.ask("wait"));
        rounds += 1;
    }
    assert!(least <= READ_BEFORE, "{least} bytes were read before another user's message at best");
    daemon.wait_page("the other user's message", SOON, |page| {
        let rank = CONNECTIONS.to_string();
        page.get("memwarden_training_step", &[("rank", &rank)]) == Some(f64::from(rounds))
    });
}
