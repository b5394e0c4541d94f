//! Screens as text, and what keys and clicks do.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use expect_test::expect_file;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier};

use super::*;
use crate::cluster::{Answers, Cluster, Sample};
use crate::model::outlook::{LeakState, Rate};
use crate::node_view::events::Event;
use crate::node_view::forecast::{Forecast, Growth};
use crate::node_view::tests::Node;
use crate::node_view::{Allocator, Health, NodeView, Process, Rank, Situation, Target, Workload};

mod picture;

const NOW: f64 = 1_795_391_700.0;
const GIB: f64 = 1_073_741_824.0;
const LOOK: Look = Look { has_colors: true, is_unicode: true };

fn view_of(node: Node) -> NodeView {
    NodeView::of(Some(&node.frame()), &Situation { stale_after: 10.0, ..Situation::default() })
}

fn state_of(views: impl IntoIterator<Item = NodeView>) -> State {
    let mut state = State::new(Kind::Node, "http://127.0.0.1:10636", "The daemon");
    for view in views {
        let events = vec![Event {
            unix_seconds: NOW - 600.0,
            health: Health::Warning,
            text: "Memory of GPU 0 is leaking.".to_owned(),
            gpu: "0".to_owned(),
            workload: String::new(),
        }];
        let data = Data::Node(Box::new(NodeData { view, events }));
        state.take(Update::Data(data, Vec::new()), NOW);
    }
    state
}

/// Ten minutes in which GPU 0 fills.
fn leaking() -> State {
    let view = || {
        let mut node = Node::new();
        node.gpu(0, 70, "ok");
        node.gpu(1, 20, "ok");
        node.job("slurm/4711", "alice", "llama70b", 0, Some(69));
        node.job("slurm/4712", "bob", "", 1, Some(19));
        node.leak();
        view_of(node)
    };
    let newest = view();
    state_of((0_u32..=60).map(|step| {
        let mut view = newest.clone();
        let before = 600.0 - f64::from(step) * 10.0;
        view.unix_seconds = NOW - before;
        view.gpus[0].used = view.gpus[0].used.map(|used| used - before * 0.09 * GIB);
        if step == 60 { newest.clone() } else { view }
    }))
}

fn hung() -> State {
    let mut node = Node::new();
    node.gpu(0, 70, "hung");
    node.job("slurm/4711", "alice", "llama70b", 0, None);
    state_of([view_of(node)])
}

/// 8 GPUs, 300 workloads and 64 ranks.
fn busy() -> State {
    let mut node = Node::new();
    for index in 0..8 {
        node.gpu(index, u64::from(30 + index * 5), "ok");
    }
    let mut view = view_of(node);
    let number = |place: u32| f64::from(place);
    for place in 0..300_u32 {
        let ranks = if place < 8 { 8 } else { 0 };
        let rank = |rank: u32| Rank {
            rank: rank.to_string(),
            gpu: rank.to_string(),
            step: Some(1_200.0 + number(place)),
            step_seconds: Some(0.5),
            allocators: vec![Allocator { allocated: Some(number(rank + 1) * GIB), ..Allocator::default() }],
            ..Rank::default()
        };
        view.workloads.push(Workload {
            name: format!("slurm/{}", 5_000 + place),
            kind: "slurm".to_owned(),
            user: if place % 2 == 0 { "alice" } else { "bob" }.to_owned(),
            health: if place == 2 { Health::Warning } else { Health::Ok },
            rss: Some(number(300 - place) * 0.1 * GIB),
            gpu_memory: (place < 8).then(|| number(place) * GIB),
            growth: Some(Growth {
                state: LeakState::Steady,
                rate: Some(Rate::default()),
                ..Growth::default()
            }),
            process_count: Some(number(place % 7 + 1)),
            ranks: (0..ranks).map(rank).collect(),
            processes: vec![Process {
                pid: place.to_string(),
                name: "python3".to_owned(),
                rss: Some(GIB),
                ..Process::default()
            }],
            ..Workload::default()
        });
    }
    view.protection.targets.push(Target {
        target: "train".to_owned(),
        mode: "enforce".to_owned(),
        workload: "slurm/5002".to_owned(),
        state: "warn".to_owned(),
        health: Health::Warning,
        why: vec!["Exhaustion is predicted within warn_within.".to_owned()],
        ..Target::default()
    });
    state_of([view])
}

fn cluster() -> State {
    let sample = |labels: &[(&str, &str)], value: f64| Sample {
        labels: labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        value,
    };
    let mut answers = Answers::default();
    answers[0] =
        [("good", 0.0), ("leaks", 0.0), ("lost", 4.0)].map(|(i, v)| sample(&[("instance", i)], v)).to_vec();
    answers[1] = [("good", 0.0), ("leaks", 3.0)].map(|(i, v)| sample(&[("instance", i)], v)).to_vec();
    answers[2] = vec![sample(&[("instance", "leaks")], 240.0)];
    answers[6] = vec![sample(&[("run", "llama70b")], 3.0)];
    answers[7] = vec![sample(&[("run", "llama70b")], 4.0)];
    let mut state = State::new(Kind::Cluster, "http://prometheus:9090", "The server");
    let cluster = Cluster::new(&answers, None);
    state.take(Update::Data(Data::Cluster(Box::new(cluster)), Vec::new()), NOW);
    state
}

fn cells(state: &mut State, look: Look, width: u16, height: u16) -> Buffer {
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    draw(state, &mut buffer, look, NOW);
    buffer
}

fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width);
    let line = |row: &[ratatui_core::buffer::Cell]| {
        row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned() + "\n"
    };
    buffer.content.chunks(width).map(line).collect()
}

fn screen(state: &mut State, width: u16, height: u16) -> String {
    text(&cells(state, LOOK, width, height))
}

fn key(state: &mut State, code: KeyCode) -> bool {
    state.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn typed(state: &mut State, text: &str) {
    for letter in text.chars() {
        assert!(!key(state, KeyCode::Char(letter)));
    }
}

#[test]
fn a_short_table_leaves_its_rows_to_the_problems() {
    let mut node = Node::new();
    for index in 0..4 {
        node.gpu(index, 70, "ok");
    }
    node.job("slurm/4711", "alice", "llama70b", 0, Some(69));
    node.leak();
    let view = view_of(node);
    let shown = screen(&mut state_of([view.clone()]), 80, 24);
    assert!(shown.contains("slurm/4711") && shown.contains("Problems (1)"), "{shown}");
    // A long table needs them itself.
    let mut long = view;
    let one = long.workloads[0].clone();
    long.workloads.extend((0..20).map(|place| Workload { name: format!("other{place}"), ..one.clone() }));
    let shown = screen(&mut state_of([long]), 80, 24);
    assert!(shown.contains("other5") && !shown.contains("Problems (1)"), "{shown}");
}

/// The pictures in the documents are these screens: `docs/images/make` writes them again.
#[test]
fn the_pictures_of_the_documents_are_these_screens() {
    let picture = |state: &mut State, title: &str| picture::svg(&cells(state, LOOK, 100, 24), title);
    expect_file!["../../docs/images/top.svg"]
        .assert_eq(&picture(&mut leaking(), "memwarden top: GPU 0 of a node leaks"));
    let mut without_events = hung();
    let Some(Data::Node(node)) = &mut without_events.data else { panic!("it shows a node") };
    node.events.clear();
    expect_file!["../../docs/images/top-hung.svg"]
        .assert_eq(&picture(&mut without_events, "memwarden top: GPU 0 of a node does not answer"));
    expect_file!["../../docs/images/top-cluster.svg"]
        .assert_eq(&picture(&mut cluster(), "memwarden top: the nodes of a cluster"));
}

#[test]
fn screens_are_as_recorded() {
    expect_file!["../../tests/fixtures/top/leaking-80x24.txt"].assert_eq(&screen(&mut leaking(), 80, 24));
    expect_file!["../../tests/fixtures/top/leaking-120x40.txt"].assert_eq(&screen(&mut leaking(), 120, 40));
    expect_file!["../../tests/fixtures/top/leaking-200x60.txt"].assert_eq(&screen(&mut leaking(), 200, 60));
    expect_file!["../../tests/fixtures/top/hung-80x24.txt"].assert_eq(&screen(&mut hung(), 80, 24));
    expect_file!["../../tests/fixtures/top/busy-80x24.txt"].assert_eq(&screen(&mut busy(), 80, 24));
    expect_file!["../../tests/fixtures/top/busy-120x40.txt"].assert_eq(&screen(&mut busy(), 120, 40));
    expect_file!["../../tests/fixtures/top/busy-200x60.txt"].assert_eq(&screen(&mut busy(), 200, 60));
    expect_file!["../../tests/fixtures/top/cluster-80x24.txt"].assert_eq(&screen(&mut cluster(), 80, 24));
    let mut nothing = State::new(Kind::Node, "http://127.0.0.1:10636", "The daemon");
    expect_file!["../../tests/fixtures/top/nothing-80x24.txt"].assert_eq(&screen(&mut nothing, 80, 24));
    let mut help = leaking();
    key(&mut help, KeyCode::Char('?'));
    expect_file!["../../tests/fixtures/top/help-80x24.txt"].assert_eq(&screen(&mut help, 80, 24));
    let mut gpu = leaking();
    typed(&mut gpu, "3");
    key(&mut gpu, KeyCode::Enter);
    expect_file!["../../tests/fixtures/top/gpu-80x24.txt"].assert_eq(&screen(&mut gpu, 80, 24));
    let mut workload = leaking();
    key(&mut workload, KeyCode::Enter);
    expect_file!["../../tests/fixtures/top/workload-120x40.txt"].assert_eq(&screen(&mut workload, 120, 40));
    let plain = text(&cells(&mut leaking(), Look { is_unicode: false, ..LOOK }, 80, 24));
    assert!(plain.is_ascii(), "{plain}");
}

#[test]
fn the_verdict_is_whole_on_a_small_screen() {
    for mut state in [leaking(), hung()] {
        let (_, sentence, _) = state.verdict(NOW);
        let shown = screen(&mut state, 80, 24);
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert!(words(&shown).contains(&words(&sentence)), "{sentence}\n{shown}");
    }
}

#[test]
fn what_is_not_current_is_never_healthy() {
    let is_green = |buffer: &Buffer| buffer.content.iter().any(|cell| cell.fg == Color::Green);
    let mut state = busy();
    assert!(is_green(&cells(&mut state, LOOK, 120, 40)));
    state.take(Update::Failed("connection refused\x1b[2J".to_owned()), NOW - 60.0);
    state.take(Update::Failed("connection refused\x1b[2J".to_owned()), NOW);
    for (place, keys) in ["", "2", "3", "4", "6", "7", "1\n", "3\n"].into_iter().enumerate() {
        for letter in keys.chars() {
            key(&mut state, if letter == '\n' { KeyCode::Enter } else { KeyCode::Char(letter) });
        }
        let buffer = cells(&mut state, LOOK, 120, 40);
        assert!(!is_green(&buffer), "{keys}: {}", text(&buffer));
        assert!(!text(&buffer).lines().any(|line| line.starts_with("ok")), "{place}");
    }
    let shown = screen(&mut state, 80, 24);
    assert!(
        shown.contains("The daemon does not answer since") && shown.contains("refused\\x1b[2J"),
        "{shown}"
    );
    // A daemon that does not sample is not current either.
    let mut view = view_of(Node::new());
    (view.is_stalled, view.verdict.health) = (true, Health::Unknown);
    assert!(!is_green(&cells(&mut state_of([view]), LOOK, 120, 40)));
    // It answers again.
    let mut state = busy();
    state.fail("no answer".to_owned(), NOW);
    let Some(Data::Node(node)) = state.data.clone() else { panic!("it shows a node") };
    state.take(Update::Data(Data::Node(node), Vec::new()), NOW);
    assert!(is_green(&cells(&mut state, LOOK, 120, 40)));
}

#[test]
fn times_are_those_of_the_node() {
    let mut view = view_of(Node::new());
    (view.unix_seconds, view.age_seconds) = (NOW + 3_600.0, Some(0.5));
    view.host.used = Some(9.0 * GIB);
    let mut state = state_of([view]);
    let clock = |ahead: f64| crate::model::format::timestamp(NOW + ahead)[11..19].to_owned();
    let shown = screen(&mut state, 80, 24);
    assert!(shown.contains(&clock(3_600.5)), "{shown}");
    // The newest sample is at the end of the ten minutes, not after them.
    let columns = state.trails.columns(&crate::history::recent::Subject::Host, 10, state.node_time(NOW));
    assert_eq!(columns.last().copied().flatten(), Some(9.0 * GIB), "{columns:?}");
    state.take(Update::Failed("refused".to_owned()), NOW);
    let shown = screen(&mut state, 80, 24);
    assert!(shown.contains(&format!("since {} UTC", &clock(3_600.5)[..5])), "{shown}");
}

#[test]
fn a_gpu_that_hangs_is_not_green() {
    let buffer = cells(&mut hung(), LOOK, 80, 24);
    let shown = text(&buffer);
    let row = shown.lines().position(|line| line.contains("GPU 0  ")).unwrap();
    assert!(shown.contains("hung"), "{shown}");
    let cells = &buffer.content[row * 80..(row + 1) * 80];
    assert!(cells.iter().all(|cell| cell.fg != Color::Green), "{shown}");
}

#[test]
fn without_colors_symbols_remain() {
    for mut state in [leaking(), hung(), busy(), cluster()] {
        let buffer = cells(&mut state, Look { has_colors: false, ..LOOK }, 120, 40);
        let plain = |cell: &ratatui_core::buffer::Cell| cell.fg == Color::Reset && cell.bg == Color::Reset;
        assert!(buffer.content.iter().all(plain));
        let shown = text(&buffer);
        let word = shown.lines().nth(1).unwrap();
        assert!(
            ["!! critical", "? unknown", "ok:", "! warning"].iter().any(|part| word.starts_with(part)),
            "{word}"
        );
    }
    let buffer = cells(&mut leaking(), Look { has_colors: false, ..LOOK }, 80, 24);
    assert!(buffer.content[80].modifier.contains(Modifier::REVERSED), "a critical verdict stands out");
}

#[test]
fn hostile_names_are_shown_escaped() {
    let name = "a\x1b[2Jb\u{202e}c\r\nd\u{200b}";
    let mut node = Node::new();
    node.gpu(0, 70, "ok");
    node.job(name, name, name, 0, Some(69));
    let mut state = state_of([view_of(node)]);
    for keys in ["", "\n", "2", "\n", "3", "\n", "4", "5", "6", "7"] {
        for letter in keys.chars() {
            key(&mut state, if letter == '\n' { KeyCode::Enter } else { KeyCode::Char(letter) });
        }
        for (width, height) in [(80, 24), (200, 60)] {
            let buffer = cells(&mut state, LOOK, width, height);
            let is_hidden = |cell: &ratatui_core::buffer::Cell| {
                cell.symbol().chars().any(crate::model::printable::is_hidden)
            };
            assert!(!buffer.content.iter().any(is_hidden), "{}", text(&buffer));
        }
    }
    typed(&mut state, "1/");
    typed(&mut state, "\u{202e}\x1b");
    assert!(screen(&mut state, 80, 24).contains("filter: \\u"), "{}", screen(&mut state, 80, 24));
}

#[test]
fn every_size_is_drawn() {
    for mut state in [leaking(), busy(), cluster(), hung()] {
        for (width, height) in
            [(1, 1), (5, 40), (19, 5), (20, 5), (40, 8), (60, 12), (80, 10), (149, 18), (150, 9), (400, 100)]
        {
            for keys in ["1", "2", "3", "?", "x"] {
                typed(&mut state, keys);
                cells(&mut state, LOOK, width, height);
                key(&mut state, KeyCode::Enter);
                cells(&mut state, LOOK, width, height);
            }
        }
    }
}

#[test]
fn rows_are_filtered_sorted_and_opened() {
    let mut state = busy();
    typed(&mut state, "/5012");
    assert!(state.is_typing);
    key(&mut state, KeyCode::Enter);
    let shown = screen(&mut state, 80, 24);
    assert!(shown.contains("slurm/5012") && !shown.contains("slurm/5013"), "{shown}");
    key(&mut state, KeyCode::Enter);
    assert!(screen(&mut state, 80, 24).contains("Workload slurm/5012"));
    key(&mut state, KeyCode::Esc);
    key(&mut state, KeyCode::Esc);
    assert_eq!(state.table().unwrap().rows.len(), 300, "the second Esc clears the filter");
    // By name, then in the other direction.
    typed(&mut state, "s");
    assert_eq!(state.table().unwrap().rows[0].cells[0].text, "slurm/5000");
    typed(&mut state, "r");
    assert_eq!(state.table().unwrap().rows[0].cells[0].text, "slurm/5299");
    key(&mut state, KeyCode::End);
    assert!(screen(&mut state, 80, 24).contains("slurm/5000"), "the selection is in sight");
    // From a workload to its ranks, and to one rank.
    key(&mut state, KeyCode::Enter);
    key(&mut state, KeyCode::Enter);
    assert_eq!(state.table().unwrap().rows.len(), 8);
    key(&mut state, KeyCode::Down);
    key(&mut state, KeyCode::Enter);
    let shown = screen(&mut state, 80, 24);
    assert!(shown.contains("Rank 1 of slurm/5000") && shown.contains("2.0 GiB"), "{shown}");
}

#[test]
fn a_selection_stays_on_its_row_when_rows_move() {
    let mut state = busy();
    key(&mut state, KeyCode::Down);
    key(&mut state, KeyCode::Down);
    let Some(Data::Node(mut node)) = state.data.clone() else { panic!("it shows a node") };
    let name = node.view.workloads[2].name.clone();
    node.view.workloads.reverse();
    state.take(Update::Data(Data::Node(node), Vec::new()), NOW);
    let table = state.table().unwrap();
    assert_eq!(table.rows[state.selected(&table).unwrap()].id, name);
}

#[test]
fn a_pause_holds_the_data_and_not_the_failure() {
    let mut state = leaking();
    typed(&mut state, " ");
    let Some(Data::Node(mut node)) = state.data.clone() else { panic!("it shows a node") };
    node.view.node = "another".to_owned();
    state.take(Update::Data(Data::Node(node), Vec::new()), NOW);
    let shown = screen(&mut state, 80, 24);
    assert!(shown.contains("node17") && shown.contains("PAUSED"), "{shown}");
    state.fail("connection refused".to_owned(), NOW);
    assert!(screen(&mut state, 80, 24).contains("does not answer"));
    typed(&mut state, " ");
    assert!(screen(&mut state, 80, 24).starts_with("another"));
}

#[test]
fn clicks_select_open_and_sort() {
    let mut state = busy();
    let click = |state: &mut State, what: &str| {
        let shown = screen(state, 80, 24);
        let (row, line) = shown.lines().enumerate().find(|(_, line)| line.contains(what)).expect(what);
        let column = line.split(what).next().unwrap().chars().count();
        let at = |place: usize| u16::try_from(place).unwrap();
        let kind = MouseEventKind::Down(MouseButton::Left);
        state.mouse(MouseEvent { kind, column: at(column), row: at(row), modifiers: KeyModifiers::NONE })
    };
    assert!(click(&mut state, "RSS"));
    assert_eq!(state.table().unwrap().rows[0].id, "slurm/5000", "the largest comes first");
    assert!(click(&mut state, "slurm/5003"));
    assert!(click(&mut state, "slurm/5003"), "a second click opens it");
    assert!(screen(&mut state, 80, 24).contains("Workload slurm/5003"));
    key(&mut state, KeyCode::Esc);
    assert!(click(&mut state, "2 R"));
    assert_eq!(state.table().unwrap().rows.len(), 64);
    let scroll =
        MouseEvent { kind: MouseEventKind::ScrollDown, column: 0, row: 20, modifiers: KeyModifiers::NONE };
    assert!(state.mouse(scroll));
    let table = state.table().unwrap();
    assert_eq!(state.selected(&table), Some(3));
    assert!(!click(&mut state, "host"), "nothing happens there");
}

#[test]
fn a_node_of_a_cluster_that_is_not_seen_is_not_ok() {
    let mut state = cluster();
    let table = state.table().unwrap();
    let health: Vec<_> = table.rows.iter().map(|row| (row.cells[0].text.as_str(), row.health)).collect();
    assert_eq!(health, [("lost", Health::Unknown), ("leaks", Health::Critical), ("good", Health::Ok)]);
    key(&mut state, KeyCode::Enter);
    assert!(screen(&mut state, 80, 24).contains("Node lost"));
    assert_eq!(state.verdict(NOW).0, Health::Critical);
}

#[test]
fn only_q_and_ctrl_c_end_it() {
    let mut state = leaking();
    assert!(state.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    typed(&mut state, "/q");
    assert_eq!(state.place().filter, "q");
    assert!(state.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), "also while typing");
    key(&mut state, KeyCode::Esc);
    assert!(key(&mut state, KeyCode::Char('q')));
}

#[test]
fn an_unknown_forecast_is_not_ok() {
    let mut view = view_of(Node::new());
    let rank = Rank { rank: "0".to_owned(), forecast: Some(Forecast::default()), ..Rank::default() };
    view.workloads.push(Workload { name: "w".to_owned(), ranks: vec![rank], ..Workload::default() });
    let mut state = state_of([view]);
    typed(&mut state, "2");
    assert_eq!(state.table().unwrap().rows[0].health, Health::Unknown);
}
