//! The names of dcgm-exporter, compared with its list of counters and with a public dashboard.

use std::path::PathBuf;
use std::sync::Arc;

use super::table::{Conversion, TABLE};
use super::{Dcgm, Format};
use crate::catalog::{gpu, kubernetes};
use crate::config::Compatibility;
use crate::model::desc::{Desc, Kind};
use crate::model::frame::Frame;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Celsius, Count, Flag, Joules, Ratio};
use crate::serve::prometheus::negotiate::Encoding;
use crate::serve::prometheus::pages::{Form, Pages};

/// Metrics that dcgm-exporter exposes by default and memwarden does not, each with the reason.
const ABSENT: &[(&str, &str)] = &[
    (
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        "a rate in MB/s between two reads of DCGM, although its type is counter; use `rate()` of `memwarden_gpu_nvlink_sent_bytes_total` and `memwarden_gpu_nvlink_received_bytes_total`",
    ),
    ("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "memwarden does not read the state of vGPU licenses"),
];

const UUID: &str = "GPU-a";

fn labels(desc: &Desc, values: &[(&str, &str)]) -> Vec<Label> {
    let of = |label: &&str| values.iter().find(|(name, _)| name == label).map_or("", |(_, value)| value);
    desc.labels.iter().map(|label| of(label).into()).collect()
}

/// A node with one GPU of each vendor name, and one with every value of the table if `all`.
fn node(all: bool, containers: &[&str]) -> Vec<crate::model::point::Family> {
    let mut out = Batch::new();
    let pods = &kubernetes::POD_GPU.desc;
    for container in containers {
        let values = [("namespace", "ml"), ("pod", "train"), ("container", container), ("uuid", UUID)];
        out.put(&kubernetes::POD_GPU, &labels(pods, &values), Flag(true));
    }
    out.put(&gpu::DRIVER_INFO, &labels(&gpu::DRIVER_INFO.desc, &[("driver", "580.95")]), Flag(true));
    for (index, uuid, vendor) in [("0", UUID, "nvidia"), ("card1", "pci-0000:03:00.0", "amd")] {
        let values = [
            ("gpu", index),
            ("uuid", uuid),
            ("name", "H\"100"),
            ("pci", "00000000:3B:00.0"),
            ("minor", "3"),
            ("vendor", vendor),
        ];
        out.put(&gpu::INFO, &labels(&gpu::INFO.desc, &values), Flag(true));
        let both = [index.into(), uuid.into()];
        if all {
            for row in TABLE {
                let mut values = vec![("gpu", index), ("uuid", uuid)];
                values.extend(row.with);
                out.add(row.from, &labels(row.from, &values), 1.0);
            }
        } else {
            out.put(&gpu::MEMORY_USED, &both, Bytes::new((5 << 20) + 1_000_000));
            out.put_some(&gpu::UTILIZATION, &both, Ratio::new(0.29));
            out.put_some(&gpu::TEMPERATURE, &both, Celsius::new(41.0));
            out.put_some(&gpu::ENERGY, &both, Joules::new(1.2345));
            let scope = |error: &str| [both.to_vec(), vec![error.into(), "volatile".into()]].concat();
            out.put(&gpu::ECC_ERRORS, &scope("corrected"), Count(7));
            out.put(&gpu::ECC_ERRORS, &scope("uncorrected"), Count(2));
        }
    }
    out.seal().0
}

fn written(families: &[crate::model::point::Family], format: Format) -> String {
    let mut out = String::new();
    Dcgm::new(Some("node-1")).write(families, format, &mut out);
    out
}

#[test]
fn values_have_the_names_labels_and_units_of_dcgm_exporter() {
    let identity = r#"{gpu="0",UUID="GPU-a",pci_bus_id="00000000:3B:00.0",device="nvidia3",modelName="H\"100",Hostname="node-1",hostname="node-1",DCGM_FI_DRIVER_VERSION="580.95",namespace="ml",pod="train",container="main"}"#;
    let expected = [
        ("DCGM_FI_DEV_GPU_TEMP", "gauge", "41"),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "1235"),
        ("DCGM_FI_DEV_GPU_UTIL", "gauge", "29"),
        ("DCGM_FI_DEV_FB_USED", "gauge", "5"),
        ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "7"),
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "2"),
    ];
    for format in [Format::Text, Format::OpenMetrics] {
        let text = written(&node(false, &["main"]), format);
        let found: Vec<&str> = text.lines().filter(|line| !line.starts_with("# HELP")).collect();
        let expected: Vec<String> = expected
            .iter()
            .flat_map(|(name, kind, value)| {
                let kind = if format == Format::OpenMetrics && *kind == "counter" { "unknown" } else { kind };
                [format!("# TYPE {name} {kind}"), format!("{name}{identity} {value}")]
            })
            .collect();
        // What the frame does not have, such as the power, and GPUs of other vendors have no series.
        assert_eq!(found, expected);
    }
}

#[test]
fn a_gpu_of_several_containers_has_the_labels_of_none() {
    assert!(written(&node(false, &["main", "main"]), Format::Text).contains(r#"container="main""#));
    let shared = written(&node(false, &["main", "other"]), Format::Text);
    assert!(shared.contains("DCGM_FI_DEV_FB_USED{") && !shared.contains("pod="), "{shared}");
}

#[test]
fn every_name_of_the_exporter_and_of_its_dashboard_is_exposed_or_has_a_reason() {
    let text = written(&node(true, &["main"]), Format::Text);
    for row in TABLE {
        assert_eq!(text.matches(&format!("\n{}{{", row.name)).count(), 1, "{}", row.name);
        assert_eq!(&row.from.labels[..2], ["gpu", "uuid"]);
        assert_eq!(row.from.labels.len(), 2 + row.with.len(), "{}: a label has no value", row.name);
    }
    for list in [
        include_str!("../../../../tests/fixtures/dcgm/dashboard.txt"),
        include_str!("../../../../tests/fixtures/dcgm/default-counters.txt"),
    ] {
        for line in list.lines().filter(|line| !line.starts_with('#')) {
            let (what, name) = line.split_once(' ').unwrap();
            if what == "label" {
                assert!(
                    text.contains(&format!("{{{name}=\"")) || text.contains(&format!(",{name}=\"")),
                    "{name}"
                );
                continue;
            }
            let row = TABLE.iter().find(|row| row.name == name);
            let absent = ABSENT.iter().any(|(absent, _)| *absent == name);
            assert!(row.is_some() != absent, "{name}");
            let kind = row.filter(|_| what != "metric").map(|row| row.kind == Kind::Counter);
            assert_eq!(kind.unwrap_or(what == "counter"), what == "counter", "{name}");
        }
    }
}

#[tokio::test]
async fn only_the_metrics_page_has_the_names_and_only_where_they_are_enabled() {
    let (sources, findings, outlook, timeline, acknowledged) = Default::default();
    let at = Timestamp::from_secs(1);
    let families = node(true, &[]);
    let frame =
        Arc::new(Frame { sequence: 1, at, families, sources, findings, outlook, timeline, acknowledged });
    for (dcgm, form, expected) in [
        (true, Form::Metrics(Format::Text), true),
        (true, Form::Metrics(Format::OpenMetrics), true),
        (true, Form::Json, false),
        (false, Form::Metrics(Format::Text), false),
    ] {
        let pages = Pages::with_names(Compatibility { dcgm }, Some("node-1"));
        let body = pages.get(&frame, form, Encoding::Identity).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert_eq!(text.contains("DCGM_FI_DEV_FB_USED{"), expected, "{form:?}");
        let open = form == Form::Metrics(Format::OpenMetrics);
        assert_eq!(text.ends_with("# EOF\n"), open, "{form:?}");
    }
}

/// The table of `docs/serving.md`.
fn page() -> String {
    let mut out = String::from("| dcgm-exporter | from | unit |\n| --- | --- | --- |\n");
    for row in TABLE {
        let with: Vec<String> =
            row.with.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        let with = if with.is_empty() { String::new() } else { format!("{{{}}}", with.join(",")) };
        let unit = match row.conversion {
            Conversion::Mebibytes => "MiB, rounded down",
            Conversion::Percent => "percent, rounded",
            Conversion::Megahertz => "MHz, rounded",
            Conversion::Millijoules => "mJ, rounded",
            Conversion::Same => "the same",
        };
        out.push_str(&format!("| `{}` | `{}{with}` | {unit} |\n", row.name, row.from.name));
    }
    out.push_str("\n| not exposed | reason |\n| --- | --- |\n");
    for (name, reason) in ABSENT {
        out.push_str(&format!("| `{name}` | {reason} |\n"));
    }
    out
}

#[test]
fn the_documented_table_is_the_table() {
    const BEGIN: &str = "<!-- names of dcgm-exporter, written by a test -->\n";
    const END: &str = "<!-- end -->\n";
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/serving.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let expected = format!("{before}{BEGIN}\n{}\n{END}{after}", page());
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, expected).unwrap();
    } else {
        assert!(text == expected, "docs/serving.md is out of date; run the tests with UPDATE_EXPECT=1");
    }
}
