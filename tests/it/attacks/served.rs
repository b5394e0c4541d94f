//! Requests from other users and other sites.

use crate::harness::{Daemon, request};

use super::people::{MALLORY, as_user};

#[test]
fn another_user_of_the_node_reads_no_incident() {
    let state = tempfile::tempdir().unwrap();
    let file = format!("state.file={}", state.path().join("state.json").display());
    let daemon = Daemon::start(&["--set", &file]);
    let script = "import sys, urllib.request, urllib.error\n\
                  try: print(urllib.request.urlopen(sys.argv[1]).status)\n\
                  except urllib.error.HTTPError as error: print(error.code)";
    daemon.metrics();
    for (path, code) in
        [("/metrics", "200"), ("/api/v1/incidents", "403"), ("/api/v1/incidents/x/report.md", "403")]
    {
        let Some(mut client) = as_user(MALLORY, "python3") else { return };
        let url = format!("http://{}{path}", daemon.address);
        let output = client.args(["-c", script, &url]).env_remove("http_proxy").output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), code, "{path}");
    }
}

#[test]
fn a_name_that_anybody_can_point_here_is_not_answered() {
    let daemon = Daemon::start(&["--web.enable-lifecycle"]);
    let status = |method: &str, path: &str, headers: &str| {
        let text =
            format!("{method} {path} HTTP/1.1\r\n{headers}Content-Length: 0\r\nConnection: close\r\n\r\n");
        request(daemon.address, &text).code
    };
    let here = format!("Host: {}\r\n", daemon.address);
    assert_eq!(status("GET", "/-/healthy", &here), 200);
    for path in ["/", "/metrics", "/-/healthy", "/api/v1/findings"] {
        assert_eq!(status("GET", path, "Host: evil.example\r\n"), 421, "{path}");
    }
    assert_eq!(status("POST", "/-/reload", &format!("{here}Origin: http://evil.example\r\n")), 403);
    assert_eq!(status("POST", "/-/reload", &here), 200);
}
