//! The ways of finding the other nodes of a run, and nodes that cannot be reached, with `drill --run` as the asking node.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};

use super::SOON;
use super::job::{Job, witness};
use super::room::Room;
use super::runs::{Node, SCOPE, configure_peers};
use crate::database::Database;
use crate::harness::{free_port, memwarden, program, tool, wait_for};
use crate::skip::skip;

/// A node that asks, with these keys of `peers` beside the token.
fn asking(peers: &str) -> Room {
    let room = Room::staged();
    configure_peers(&room, "enforce", peers, SCOPE);
    room
}

/// The exit code and the table of `drill --run alpha`.
fn drill(room: &Room, more: &[&str]) -> (Option<i32>, String) {
    let file = room.path("memwarden.yaml");
    let args = ["drill", "--config.file", file.to_str().unwrap(), "--run", "alpha"];
    let output = memwarden(&[&args, more].concat()).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (output.status.code(), text)
}

/// The same with these lines as `/etc/hosts`; absent where no mount namespace can be made.
fn drill_with_hosts(room: &Room, hosts: &str, more: &[&str]) -> Option<(Option<i32>, String)> {
    let own = room.path("hosts");
    std::fs::write(&own, hosts).unwrap();
    let enter = |command: &[&str]| {
        let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
        program("unshare").args(["--mount", "sh", "-c", script]).arg(&own).args(command).output()
    };
    if !enter(&["true"]).is_ok_and(|output| output.status.success()) {
        skip("no mount namespace can be made here");
        return None;
    }
    let file = room.path("memwarden.yaml");
    let command = [env!("CARGO_BIN_EXE_memwarden"), "drill", "--run", "alpha", "--config.file"];
    let output = enter(&[&command, &[file.to_str().unwrap()][..], more].concat()).unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    Some((output.status.code(), text))
}

/// The result of a node in the table.
fn result<'t>(table: &'t str, node: &str) -> &'t str {
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(node));
    let line = line.unwrap_or_else(|| panic!("no {node} in {table}"));
    let known = ["would_ask", "no_answer", "no_job", "refused"];
    line.split_whitespace().find(|word| known.contains(word)).unwrap_or_else(|| panic!("{line}"))
}

#[test]
fn all_addresses_of_a_name_are_asked() {
    let node = Node::start("enforce", &["127.0.0.1:1".to_owned()], SCOPE);
    let port = node.daemon.address.port();
    let room = asking(&format!("from: dns, name: peers.test, port: {port}, timeout: 5s"));
    let hosts = "127.0.0.1 localhost\n127.0.0.1 peers.test\n127.0.0.2 peers.test\n127.0.0.3 peers.test\n";
    let Some((code, table)) = drill_with_hosts(&room, hosts, &[]) else { return };
    assert_eq!(code, Some(1), "{table}");
    assert_eq!(result(&table, &format!("127.0.0.1:{port}")), "would_ask");
    for down in ["127.0.0.2", "127.0.0.3"] {
        assert_eq!(result(&table, &format!("{down}:{port}")), "no_answer");
    }
    // A name without an address is an error, not a run without other nodes.
    let (code, table) = drill_with_hosts(&room, "127.0.0.1 localhost\n", &[]).unwrap();
    assert!(code != Some(0) && table.contains("cannot find the other nodes of the run"), "{table}");
}

#[test]
fn the_nodes_of_the_slurm_job_are_asked() {
    let node = Node::start("enforce", &["127.0.0.1:1".to_owned()], SCOPE);
    let port = node.daemon.address.port();
    let folder = tempfile::tempdir().unwrap();
    let squeue = folder.path().join("squeue");
    let script = "#!/bin/sh\n[ \"$*\" = '--noheader --jobs=42 --format=%N' ] || exit 1\necho 'node[01-03,7],localhost'\n";
    std::fs::write(&squeue, script).unwrap();
    std::fs::set_permissions(&squeue, PermissionsExt::from_mode(0o755)).unwrap();
    let room = asking(&format!("from: slurm, squeue: {}, port: {port}, timeout: 5s", squeue.display()));
    let hosts = "127.0.0.1 localhost\n127.0.0.2 node01 node02 node03 node7\n";
    let Some((code, table)) = drill_with_hosts(&room, hosts, &["--slurm-job-id", "42"]) else { return };
    assert_eq!(code, Some(1), "{table}");
    assert_eq!(result(&table, "localhost"), "would_ask");
    for down in ["node01", "node02", "node03", "node7"] {
        assert_eq!(result(&table, down), "no_answer");
    }
    for wrong in [&["--slurm-job-id", "43"][..], &["--slurm-job-id", "4 2"], &[]] {
        let (code, text) = drill(&room, wrong);
        assert!(code != Some(0) && text.contains("cannot find the other nodes of the run"), "{text}");
    }
}

#[test]
fn the_instances_that_prometheus_scrapes_are_asked() {
    let node = Node::start("enforce", &["127.0.0.1:1".to_owned()], SCOPE);
    let Some(binary) = tool("prometheus") else { return };
    // The last one is down, and no instance of the run.
    let scrapes = format!(
        "scrape_configs: [{{job_name: memwarden, static_configs: [{{targets: ['{}', '127.0.0.1:{}']}}]}}]\n",
        node.daemon.address,
        free_port()
    );
    let prometheus = Database::prometheus(&binary, &scrapes, &[]);
    let room = asking(&format!("from: prometheus, url: 'http://{}/', timeout: 5s", prometheus.address));
    let table = wait_for("the run's instance", SOON, || {
        let (code, table) = drill(&room, &[]);
        (code == Some(0)).then_some(table)
    });
    assert_eq!(result(&table, &node.daemon.address.to_string()), "would_ask");
    assert_eq!(table.matches("127.0.0.1:").count(), 1, "{table}");
    let room = asking(&format!("from: prometheus, url: 'http://127.0.0.1:{}', timeout: 5s", free_port()));
    let (code, text) = drill(&room, &[]);
    assert!(code != Some(0) && text.contains("cannot find the other nodes of the run"), "{text}");
}

#[test]
fn nodes_that_cannot_be_reached_delay_no_other() {
    // 32 nodes that answer, 16 that refuse the connection, and 16 that take it and are silent.
    let answering = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = answering.local_addr().unwrap().port();
    let silent = TcpListener::bind("0.0.0.0:0").unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    let hosts: Vec<String> = (1..=32)
        .map(|node| format!("'127.0.1.{node}:{port}'"))
        .chain((1..=16).map(|node| format!("'127.0.2.{node}:{}'", free_port())))
        .chain((1..=16).map(|node| format!("'127.0.3.{node}:{silent_port}'")))
        .collect();
    let answered = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&answered);
    std::thread::spawn(move || {
        for stream in answering.incoming() {
            let (mut stream, count) = (stream.unwrap(), Arc::clone(&count));
            std::thread::spawn(move || {
                let mut request = Vec::new();
                let mut part = [0; 4096];
                // The body is one JSON object.
                while !request.ends_with(b"}") {
                    match stream.read(&mut part) {
                        Ok(read) if read > 0 => request.extend_from_slice(&part[..read]),
                        _ => return,
                    }
                }
                let body = r#"{"outcome":"would_ask","host":"node","processes":8}"#;
                let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                count.fetch_add(1, Ordering::SeqCst);
            });
        }
    });
    // Nobody is waited for: a node that was asked after a silent one would be asked after a minute.
    let room = asking(&format!("from: static, hosts: [{}], timeout: 60s", hosts.join(", ")));
    let file = room.path("memwarden.yaml");
    let args = ["drill", "--config.file", file.to_str().unwrap(), "--run", "alpha"];
    let drill = memwarden(&args).stdout(Stdio::piped()).spawn().unwrap();
    wait_for("all answers", SOON, || (answered.load(Ordering::SeqCst) == 32).then_some(()));
    // The silent connections end.
    drop(silent);
    let output = drill.wait_with_output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{table}");
    assert_eq!((table.matches("would_ask").count(), table.matches("no_answer").count()), (32, 32), "{table}");
}

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(folder: &Path, name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(folder.join(format!("{name}.pem")), authority.pem()).unwrap();
    authority
}

/// Writes a certificate for 127.0.0.1 as `NAME-cert.pem`, and its key as `NAME-key.pem`.
fn issue(folder: &Path, authority: &Authority, name: &str) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap().pem();
    std::fs::write(folder.join(format!("{name}-cert.pem")), certificate).unwrap();
    std::fs::write(folder.join(format!("{name}-key.pem")), key.serialize_pem()).unwrap();
}

#[test]
fn a_client_certificate_of_the_trusted_authority_authorizes_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (trusted, wrong) = (authority(folder.path(), "trusted"), authority(folder.path(), "wrong"));
    issue(folder.path(), &trusted, "node");
    issue(folder.path(), &wrong, "stranger");
    let web = format!(
        "tls_server_config: {{cert_file: {}, key_file: {}, client_auth_type: VerifyClientCertIfGiven, client_ca_file: {}}}\n",
        at("node-cert.pem"),
        at("node-key.pem"),
        at("trusted.pem")
    );
    std::fs::write(folder.path().join("web.yml"), web).unwrap();
    let certificate = |name: &str| {
        format!(
            "tls: true, client_certificate: {}, client_key: {}",
            at(&format!("{name}-cert.pem")),
            at(&format!("{name}-key.pem"))
        )
    };
    let own = format!(
        "peers: {{from: static, hosts: ['127.0.0.1:1'], accept_client_certificates: true, {}}}",
        certificate("node")
    );
    let receiver = Room::staged();
    let job = Job::start(&receiver, &witness());
    let target = receiver.target("train", &format!("host: {{soft: 20%}}, {SCOPE}"));
    let more = format!("web: {{config_file: {}}}", at("web.yml"));
    let file = receiver.configure(&format!("mode: enforce, {own}"), &[target], &more);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("{name: train, command", "{name: train, run: alpha, command"))
        .unwrap();
    let daemon = receiver.start();
    let ask = |authority: &str, identity: &str| {
        let authority = at(&format!("{authority}.pem"));
        asking(&format!(
            "from: static, hosts: ['{}'], certificate_authority: {authority}, timeout: 5s, {identity}",
            daemon.address
        ))
    };
    let node = daemon.address.to_string();
    let room = ask("trusted", &certificate("node"));
    let table = wait_for("an accepted request", SOON, || {
        let (code, table) = drill(&room, &[]);
        (code == Some(0)).then_some(table)
    });
    assert_eq!(result(&table, &node), "would_ask");
    for (authority, identity, expected) in [
        // A certificate of another authority, none (the receiver has no token), and a receiver that is not trusted.
        ("trusted", certificate("stranger"), "no_answer"),
        ("trusted", "tls: true".to_owned(), "refused"),
        ("wrong", certificate("node"), "no_answer"),
    ] {
        let (code, table) = drill(&ask(authority, &identity), &[]);
        assert_eq!((code, result(&table, &node)), (Some(1), expected), "{table}");
    }
    assert_eq!(job.said(), ["up"]);
}
