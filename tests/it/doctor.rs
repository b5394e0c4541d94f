//! `memwarden doctor`: what is missing on a machine, with the command that repairs it.

use serde_json::Value;

use crate::harness::memwarden;

#[test]
fn what_is_missing_is_named_with_its_repair_and_what_is_there_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("memwarden.yaml");
    let paths = format!("{{kmsg: /nonexistent/kmsg, sys: {:?}}}", folder.path());
    std::fs::write(&config, format!("paths: {paths}\nsources: {{pressure: {{enabled: false}}}}\n")).unwrap();
    let run = |format: &str| {
        memwarden(&["doctor", "--format", format, "--config.file"]).arg(&config).output().unwrap()
    };
    let done = run("json");
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    let all: Vec<Value> = serde_json::from_slice(&done.stdout).unwrap();
    let one = |what: &str| {
        let found = all.iter().find(|examined| examined["what"] == what);
        found.unwrap_or_else(|| panic!("{what} is not in {all:#?}"))
    };
    for (what, repair) in [("kmsg", "--device=/dev/kmsg"), ("senders of signals", "mount -t tracefs")] {
        let examined = one(what);
        assert_eq!(examined["health"], "warning", "{examined}");
        assert!(examined["repair"].as_str().unwrap().contains(repair), "{examined}");
    }
    assert!(
        one("kmsg")["found"]
            .as_str()
            .unwrap()
            .contains("/nonexistent/kmsg does not exist; without it: OOM kills")
    );
    for what in ["memory", "process", "vmstat", "slurm", "logs"] {
        assert_eq!(
            (&one(what)["health"], &one(what)["repair"]),
            (&"ok".into(), &Value::Null),
            "{}",
            one(what)
        );
    }
    assert!(all.iter().all(|examined| examined["what"] != "pressure"), "it is disabled");
    let text = String::from_utf8(run("text").stdout).unwrap();
    assert!(
        text.contains("\nsenders of signals: sudo mount -t tracefs none /sys/kernel/tracing\n"),
        "{text}"
    );
}
