//! Pages of nodes in trouble, as HTML.

use super::*;
use crate::history::rings::Range;
use crate::node_view::tests::Node;
use crate::node_view::{JobEvent, Situation};
use crate::protection::types::incident::Incident;
use crate::serve::http::tests::frames;
use expect_test::expect_file;

const HOSTILE: &str = "<img src=x onerror=alert(1)>\u{202e}'\"&amp;</script>";

fn views(name: &str) -> Vec<View> {
    vec![
        View::Node,
        View::Gpu("0".to_owned()),
        View::Workloads,
        View::Workload(name.to_owned(), None),
        View::Workload(name.to_owned(), Some("0".to_owned())),
        View::Protection,
        View::Events,
    ]
}

fn rendered(frame: &crate::model::frame::Frame, view: &View) -> Page {
    let mut recorder = Recorder::default();
    recorder.record(frame);
    let node = NodeView::of(Some(frame), &Situation { stale_after: 5.0, ..Situation::default() });
    let content = Content {
        node: &node,
        recorder: &recorder,
        range: Range::Minutes,
        uptime: Duration::from_secs(90_000),
        incidents: IncidentsShown::Unasked,
    };
    page(view, &content)
}

fn trouble(name: &str, run: &str) -> crate::model::frame::Frame {
    let mut node = Node::new();
    node.gpu(0, 70, "ok");
    node.gpu(1, 0, "hung");
    node.job(name, "alice", run, 0, Some(69));
    node.leak();
    node.frame()
}

/// Every tag that opens is closed, in order.
#[track_caller]
fn is_balanced(html: &str) {
    const VOID: [&str; 3] = ["meta", "link", "!DOCTYPE"];
    let mut open: Vec<&str> = Vec::new();
    let body = html.replace(STYLE, "").replace('\n', " ");
    for tag in body.split('<').skip(1) {
        let name = tag.split([' ', '>', '/']).next().unwrap();
        if let Some(closed) = tag.strip_prefix('/') {
            let name = closed.split('>').next().unwrap();
            assert_eq!(open.pop(), Some(name), "before {closed:.60}");
        } else if !VOID.contains(&name) && !tag.split('>').next().unwrap().ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn a_node_in_trouble_is_shown() {
    let html = rendered(&trouble("slurm/4711", "llama70b"), &View::Node).html;
    expect_file!["../testdata/page.html"].assert_eq(&html.replace(STYLE, "…").replace("<tr>", "\n<tr>"));
    let verdict = html.split("id=\"verdict\"").nth(1).unwrap().split("</div>").next().unwrap();
    assert!(verdict.contains("GPU 1 does not respond"), "a fault of the node is first: {verdict}");
    assert!(html.contains("in 4 min (3 to 7)") && html.contains("alice"));
}

#[test]
fn names_of_users_stay_text_in_every_view() {
    let frame = trouble(HOSTILE, HOSTILE);
    for view in views(HOSTILE) {
        let page = rendered(&frame, &view);
        assert!(page.found, "{view:?}");
        is_balanced(&page.html);
        let html = page.html;
        assert_eq!(html.matches("<script").count(), 1, "{view:?}");
        assert!(!html.contains("<img") && !html.contains('\u{202e}'), "{view:?}");
        // Only the style sheet of the page itself: its hash allows no attribute.
        assert!(!html.contains(" style=") && html.matches("<style>").count() == 1, "{view:?}");
        assert!(!html.replace("http://www.w3.org/", "").contains("http:"), "{view:?}");
    }
    let unknown = rendered(&frame, &View::Workload(format!("{HOSTILE}x"), None));
    assert!(!unknown.found && !unknown.html.contains("<img"), "{}", unknown.html);
    is_balanced(&rendered(&frames::hostile(), &View::Node).html);
}

#[test]
fn what_does_not_exist_is_reported() {
    let frame = trouble("slurm/4711", "llama70b");
    for view in [
        View::Gpu("7".to_owned()),
        View::Workload("nobody".to_owned(), None),
        View::Workload("slurm/4711".to_owned(), Some("9".to_owned())),
    ] {
        assert!(!rendered(&frame, &view).found, "{view:?}");
    }
}

#[test]
fn paths_name_views() {
    let of = |path: &str| View::of(path, "rank=3&range=2h");
    assert_eq!(of("/"), Some(View::Node));
    assert_eq!(of("/gpus/0"), Some(View::Gpu("0".to_owned())));
    assert_eq!(
        of("/workloads/slurm%2F17"),
        Some(View::Workload("slurm/17".to_owned(), Some("3".to_owned())))
    );
    assert_eq!(of("/workloads/slurm/17"), of("/workloads/slurm%2f17"));
    assert_eq!(of("/incidents/x"), Some(View::Incident("x".to_owned())));
    for outside in ["../..", "..%2f..", "%2e%2e", "/etc/passwd", "x/../y", ".x", "x%00"] {
        assert_eq!(of(&format!("/incidents/{outside}")), None, "{outside}");
    }
    for path in ["/gpus/", "/gpus", "/workloads/%ff", "/nothing/0", "//", "/favicon.ico"] {
        assert_eq!(of(path), None, "{path}");
    }
    assert_eq!((range("x=1&range=24h"), range("range=7d")), (Range::Day, Range::Minutes));
}

#[test]
fn incidents_are_shown_to_whom_they_may_be() {
    let incident = Incident {
        id: "20261122T140000.000Z-x".to_owned(),
        summary: HOSTILE.to_owned(),
        target: HOSTILE.to_owned(),
        began_unix_seconds: 990.0,
        ended_unix_seconds: Some(995.0),
        moves: vec![crate::protection::types::incident::Move { ..Default::default() }],
        ..Incident::default()
    };
    let event = |unix_seconds, what: &str| JobEvent {
        unix_seconds,
        workload: "slurm/17".to_owned(),
        rank: "0".to_owned(),
        what: what.to_owned(),
        failed: true,
        grown: false,
    };
    let node = NodeView {
        job_events: vec![
            event(1_000.0, "ran out of memory at step 7; allocator snapshot /scratch/<img>.pickle"),
            event(900.0, "started long before"),
        ],
        ..NodeView::default()
    };
    let recorder = Recorder::default();
    let show = |view: &View, incidents| {
        let content = Content {
            node: &node,
            recorder: &recorder,
            range: Range::Minutes,
            uptime: Duration::ZERO,
            incidents,
        };
        page(view, &content)
    };
    let one = View::Incident(incident.id.clone());
    let known = show(&one, IncidentsShown::Record(Some(Box::new(incident))));
    assert!(known.found && !known.html.contains("<img") && known.html.contains("&lt;img"), "{}", known.html);
    is_balanced(&known.html);
    // What jobs reported meanwhile is shown with the snapshots that they wrote, as text.
    assert!(known.html.contains("allocator snapshot /scratch/&lt;img&gt;.pickle"), "{}", known.html);
    assert!(!known.html.contains("started long before"));
    assert!(!show(&one, IncidentsShown::Record(None)).found);
    for view in [&one, &View::Incidents] {
        let refused = show(view, IncidentsShown::Refused).html;
        assert!(refused.contains("to authenticated clients only"), "{refused}");
    }
}

#[test]
fn the_policy_allows_the_style_sheet_and_nothing_inline_besides() {
    use base64::Engine as _;
    let hash = ring::digest::digest(&ring::digest::SHA256, STYLE.as_bytes());
    let hash = base64::engine::general_purpose::STANDARD.encode(hash);
    assert!(
        CONTENT_SECURITY_POLICY.contains(&format!("style-src 'sha256-{hash}';")),
        "the style sheet changed: its hash in the policy must be {hash}"
    );
    assert!(!CONTENT_SECURITY_POLICY.contains("unsafe"));
}
