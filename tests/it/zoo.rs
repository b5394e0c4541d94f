//! The zoo: nodes as they were found in the field (`tests/zoo/`), through the sampler and the readers of the guard, and the truth of
//! each.

mod folder;
mod guard;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use memwarden::engine::{EVERYTHING, Engine, Registries};
use memwarden::events::Events;
use memwarden::host::child::WorkerCommand;
use memwarden::host::clock;
use memwarden::host::roots::Roots;
use memwarden::model::ends::EndCause;
use memwarden::model::format;
use memwarden::model::frame::Frame;
use memwarden::node_view::NodeView;
use memwarden::sources::{Context, REGISTRY, Registration};
use memwarden::{app, config, report};

use self::folder::{Node, nodes};

/// The sources that read nothing but the files of a node and the fake NVML.
const SOURCES: [&str; 11] = [
    "kmsg",
    "memory",
    "pressure",
    "vmstat",
    "buddyinfo",
    "numa",
    "huge_pages",
    "gpu",
    "process",
    "cgroup",
    "workload",
];
/// Samples of each node, one a second: forecasts take a minute.
const SECONDS: u64 = 90;
/// The time between two samples of a node that has the real clock.
const SHORT_SECOND: Duration = Duration::from_millis(100);
/// The longest wait for the values of GPUs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A node with its files in a folder, and what is said of it after [`SECONDS`].
struct Watched {
    frame: Arc<Frame>,
    ends: BTreeMap<u32, EndCause>,
    view: NodeView,
}

fn watch(node: &Node, root: &Path) -> Watched {
    let mut text = "sources: {gpu: {enabled: false}}".to_owned();
    let mut worker = None;
    if let Some(scenario) = &node.nvml {
        text = format!(
            "sources: {{gpu: {{nvml_library: {}, memory_peaks: false}}}}",
            crate::harness::fake_nvml().display()
        );
        let variable = format!("FAKE_NVML_SCENARIO={}", scenario.display());
        let arguments = vec![variable.into(), env!("CARGO_BIN_EXE_memwarden").into(), "gpu-worker".into()];
        worker = Some(WorkerCommand { program: "/usr/bin/env".into(), arguments });
    }
    let config = config::parse_str(&text, Path::new("zoo.yaml"), &app::schema(), &[]).unwrap();
    let roots = Arc::new(Roots::under(root));
    let context = Context { roots, worker, checkpoints: Arc::default(), past_runs: Arc::default() };
    let sources: Vec<&'static Registration> =
        REGISTRY.iter().copied().filter(|source| SOURCES.contains(&source.name)).collect();
    let registries = Registries { sources: &sources, analyzers: EVERYTHING.analyzers };
    node.write(root, 0);
    let mut engine = Engine::new(registries, &config, context, Arc::new(Events::new()));
    let mut frame = engine.tick(clock::now());
    let begun = clock::now();
    while node.nvml.is_some() && frame.value("memwarden_nvml_status", &[("status", "ok")]) != Some(1.0) {
        assert!(clock::now().since(begun) < PATIENCE, "{}: no values of the GPUs", node.name);
        std::thread::sleep(Duration::from_millis(50));
        frame = engine.tick(clock::now());
    }
    let mut ends = BTreeMap::new();
    let start = clock::now();
    for second in 1..SECONDS {
        node.write(root, second);
        // Workers of GPUs and readers of processes have the real clock: the seconds are shorter.
        let at = if node.is_in_real_time() {
            std::thread::sleep(SHORT_SECOND);
            clock::now()
        } else {
            start.plus(Duration::from_secs(second))
        };
        frame = engine.tick(at);
        ends.extend(frame.outlook.ends.iter().map(|end| (end.pid, end.cause)));
    }
    let view = report::sample(&frame);
    Watched { frame, ends, view }
}

/// What is wrong with what is said of the node.
fn mistakes(node: &Node, watched: &Watched) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut amount = |what: String, right: Option<u64>, found: Option<f64>| {
        #[expect(clippy::cast_precision_loss, reason = "no node has 2^53 bytes")]
        let same = right.map(|bytes| bytes as f64) == found;
        if !same {
            wrong.push(format!("{what} is {found:?}, right is {right:?}"));
        }
    };
    let value = |name: &str, labels: &[(&str, &str)]| watched.frame.value(name, labels);
    for (what, right) in &node.truth.host {
        let metric = match what.as_str() {
            "total" => "memwarden_host_memory_total_bytes",
            "available" => "memwarden_host_memory_available_bytes",
            "swap_free" => "memwarden_host_swap_free_bytes",
            other => panic!("{}: {other}", node.name),
        };
        amount(format!("{what} of the host"), *right, value(metric, &[]));
    }
    for (size, pool) in &node.truth.huge_pages {
        // The kernel writes 2MB for 2 MiB in the names of its files.
        let size = size.replace("iB", "B");
        for (what, right) in pool {
            let metric = format!("memwarden_huge_pages_{what}_bytes");
            amount(
                format!("{what} of huge pages of {size}"),
                Some(*right),
                value(&metric, &[("size", &size)]),
            );
        }
    }
    for (group, amounts) in &node.truth.groups {
        for (what, right) in amounts {
            assert_eq!(what, "room", "{}", node.name);
            let found = value("memwarden_cgroup_memory_headroom_bytes", &[("cgroup", group)]);
            amount(format!("{what} of {group}"), *right, found);
        }
    }
    if let Some(right) = node.truth.health.filter(|right| *right != watched.view.verdict.health) {
        let verdict = &watched.view.verdict;
        wrong.push(format!("{}, not {}: {}", verdict.health.label(), right.label(), verdict.sentence));
    }
    let said: Vec<String> = watched.view.problems.iter().map(|problem| problem.sentence()).collect();
    let says = |text: &str| said.iter().any(|sentence| sentence.contains(text));
    wrong.extend(
        node.truth.says.iter().filter(|text| !says(text)).map(|text| format!("no {text:?} in {said:?}")),
    );
    wrong.extend(
        node.truth.says_not.iter().filter(|text| says(text)).map(|text| format!("{text:?} in {said:?}")),
    );
    if watched.ends != node.truth.ends {
        wrong.push(format!("the ends are {:?}, right is {:?}", watched.ends, node.truth.ends));
    }
    for (source, right) in &node.truth.sources {
        let found = watched.frame.sources.iter().find(|report| report.source == source);
        let status = found.map_or("not sampled", |report| report.status.label());
        if status != right {
            let why = found.and_then(|report| report.why.as_deref()).unwrap_or_default();
            wrong.push(format!("the source {source} is {status}, not {right}: {why}"));
        }
    }
    wrong
}

/// One row of the table.
struct Row {
    cells: [String; 7],
    mistakes: Vec<String>,
}

fn row(node: &Node) -> Row {
    let root = tempfile::tempdir().unwrap();
    let watched = watch(node, root.path());
    let mut mistakes = mistakes(node, &watched);
    mistakes.extend(guard::mistakes(node, root.path()));
    let amount = |name: &str| format::shown(watched.frame.value(name, &[]), format::bytes);
    let guard = node.truth.guard.iter().map(|(of, level)| format!("{of} {level}"));
    let kinds = node.kinds().into_iter().map(|kind| format!(", {kind}")).collect::<String>();
    let cells = [
        format!("[{0}](../../tests/zoo/{0}/truth.json){kinds}", node.name),
        format!("{} ([report]({}))", node.truth.about, node.truth.source),
        amount("memwarden_host_memory_total_bytes"),
        amount("memwarden_host_memory_available_bytes"),
        watched.view.verdict.health.label().to_owned(),
        guard.collect::<Vec<_>>().join(", "),
        if mistakes.is_empty() { "ok" } else { "**FAIL**" }.to_owned(),
    ];
    Row { cells, mistakes }
}

fn all_at_once<'n>(nodes: &[&'n Node]) -> BTreeMap<&'n str, Row> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            nodes.iter().map(|node| (node.name.as_str(), scope.spawn(move || row(node)))).collect();
        threads.into_iter().map(|(name, thread)| (name, thread.join().unwrap())).collect()
    })
}

/// Where the part of the document begins that the test writes.
const GENERATED: &str = "<!-- Generated from here on: UPDATE_EXPECT=1 cargo nextest run -E 'test(zoo)' -->\n";

#[test]
fn every_node_of_the_zoo_is_told_right() {
    let nodes = nodes();
    let (with_processes, others): (Vec<&Node>, Vec<&Node>) =
        nodes.iter().partition(|node| node.is_in_real_time());
    // The threads that read files of processes are those of the whole program: no node with a clock of its own runs beside them.
    let mut rows: BTreeMap<&str, Row> = all_at_once(&others);
    rows.extend(all_at_once(&with_processes));
    let mut table =
        "\n| folder | what it is | total | available | health | guard | result |\n| --- | --- | ---: | ---: | --- | --- | --- |\n"
            .to_owned();
    let mut wrong = String::new();
    for (name, row) in &rows {
        table.push_str(&format!("| {} |\n", row.cells.join(" | ")));
        wrong.extend(row.mistakes.iter().map(|mistake| format!("{name}: {mistake}\n")));
    }
    println!("{table}");
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/measurements/zoo.md");
    let found = std::fs::read_to_string(&document).unwrap();
    let (head, _) = found.split_once(GENERATED).unwrap();
    let expected = format!("{head}{GENERATED}{table}");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&document, &expected).unwrap();
    }
    assert!(wrong.is_empty(), "{wrong}");
    let is_current = std::env::var_os("UPDATE_EXPECT").is_some() || found == expected;
    assert!(is_current, "docs/measurements/zoo.md is out of date; run the tests with UPDATE_EXPECT=1");
}
