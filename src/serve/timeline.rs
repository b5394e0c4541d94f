//! The timeline of training jobs as JSON, for `/api/v1/timeline`.
//!
//! The parameters `workload` and `rank` select by label, `since` (seconds since 1970) and `after` (a sequence number,
//! for repeated polling) select the newest entries. Other parameters are ignored.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use serde::Serialize;

use super::json::{SCHEMA_VERSION, write};
use crate::model::frame::Frame;
use crate::model::timeline::{Entry, Viewer};

/// The requested entries; by default all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    workload: Option<String>,
    rank: Option<String>,
    since: Option<f64>,
    after: Option<u64>,
}

impl Filter {
    /// Parses the query of a request, without its question mark.
    ///
    /// # Errors
    /// One sentence about the invalid parameter.
    pub fn parse(query: &str) -> Result<Self, String> {
        let mut filter = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value).ok_or_else(|| format!("The parameter {name} is not UTF-8."))?;
            match name {
                "workload" => filter.workload = Some(value),
                "rank" => filter.rank = Some(value),
                "since" => {
                    let seconds = value.parse().ok().filter(|seconds: &f64| seconds.is_finite());
                    filter.since =
                        Some(seconds.ok_or("The parameter since must be a number of seconds since 1970.")?);
                }
                "after" => {
                    filter.after =
                        Some(value.parse().map_err(|_| "The parameter after must be a sequence number.")?);
                }
                _ => {}
            }
        }
        Ok(filter)
    }

    fn wants(&self, entry: &Entry) -> bool {
        self.workload.as_ref().is_none_or(|wanted| entry.workload.as_str() == wanted)
            && self.rank.as_ref().is_none_or(|wanted| entry.rank.as_str() == wanted)
            && self.since.is_none_or(|since| entry.unix_seconds >= since)
            && self.after.is_none_or(|after| entry.sequence > after)
    }
}

/// Decodes a percent-encoded query value; absent where the bytes are not UTF-8.
pub(super) fn decoded(value: &str) -> Option<String> {
    let value = value.replace('+', " ");
    Some(percent_decode_str(&value).decode_utf8().ok()?.into_owned())
}

/// The requested entries of the frame's timeline as one JSON object, oldest first, as `viewer` may read them.
pub fn encode(frame: &Frame, filter: &Filter, viewer: Viewer) -> Vec<u8> {
    let entries = frame.timeline.entries.iter().filter(|entry| filter.wants(entry));
    let selected = Selected {
        schema_version: SCHEMA_VERSION,
        unix_seconds: frame.at.unix().as_secs_f64(),
        forgotten: frame.timeline.forgotten,
        entries: entries.map(|entry| entry.seen_by(viewer)).collect(),
    };
    write(Vec::new(), &selected)
}

#[derive(Serialize)]
struct Selected<'a> {
    schema_version: u32,
    unix_seconds: f64,
    forgotten: u64,
    entries: Vec<Cow<'a, Entry>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::Timestamp;
    use crate::model::timeline::{EntryKind, Timeline};
    use expect_test::expect;
    use std::sync::Arc;

    fn frame() -> Frame {
        let entry = |sequence: u32, kind, rank: &str, detail: Option<&str>| {
            Arc::new(Entry {
                sequence: sequence.into(),
                user: 1_000,
                unix_seconds: 100.5 + f64::from(sequence),
                kind,
                workload: "slurm/17".into(),
                rank: rank.into(),
                pid: 4711,
                name: "after eval".into(),
                step: detail.map(|_| 120),
                detail: detail.map(|text| serde_json::from_str(text).unwrap()),
            })
        };
        let entries = vec![
            entry(1, EntryKind::Start, "0", None),
            entry(2, EntryKind::FirstStep, "1", None),
            entry(3, EntryKind::Event, "0", Some(r#"{"note": "a"}"#)),
        ];
        Frame {
            sequence: 9,
            at: Timestamp::from_secs(200),
            families: Vec::new(),
            sources: Vec::new(),
            findings: Vec::new(),
            outlook: crate::model::outlook::Outlook::default(),
            timeline: Arc::new(Timeline { entries, forgotten: 4 }),
            acknowledged: Arc::default(),
        }
    }

    #[test]
    fn an_entry_is_an_object() {
        let filter = Filter::parse("workload=slurm%2f17&rank=0&since=103&x=%ff%").unwrap_err();
        assert_eq!(filter, "The parameter x is not UTF-8.");
        let filter = Filter::parse("workload=slurm%2F17&rank=0&since=103&x").unwrap();
        expect![[r#"{"schema_version":1,"unix_seconds":200.0,"forgotten":4,"entries":[{"sequence":3,"unix_seconds":103.5,"kind":"event","workload":"slurm/17","rank":"0","pid":4711,"name":"after eval","step":120,"detail":{"note": "a"}}]}"#]]
            .assert_eq(&String::from_utf8(encode(&frame(), &filter, Viewer::All)).unwrap());
    }

    #[test]
    fn the_words_of_a_job_are_read_by_its_owner_and_by_those_who_see_all() {
        let shown = |viewer| String::from_utf8(encode(&frame(), &Filter::default(), viewer)).unwrap();
        for (viewer, sees) in [
            (Viewer::All, true),
            (Viewer::User(1_000), true),
            (Viewer::User(1_001), false),
            (Viewer::Stranger, false),
        ] {
            let shown = shown(viewer);
            let has = [r#""name":"after eval","step":120"#, "note"].map(|text| shown.contains(text));
            assert_eq!(has, [sees, sees], "{viewer:?}: {shown}");
            assert_eq!(shown.matches("\"kind\":\"event\"").count(), 1);
        }
    }

    #[test]
    fn filters_choose_and_say_what_they_do_not_understand() {
        let sequences = |query: &str| {
            let text = encode(&frame(), &Filter::parse(query)?, Viewer::All);
            let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
            let entries = value["entries"].as_array().unwrap().iter();
            Ok::<_, String>(entries.map(|entry| entry["sequence"].as_u64().unwrap()).collect::<Vec<_>>())
        };
        assert_eq!(sequences("").unwrap(), [1, 2, 3]);
        assert_eq!(sequences("rank=1").unwrap(), [2]);
        assert_eq!(sequences("after=2&&").unwrap(), [3]);
        assert_eq!(sequences("workload=other").unwrap(), [0_u64; 0]);
        assert_eq!(
            sequences("since=nan").unwrap_err(),
            "The parameter since must be a number of seconds since 1970."
        );
        assert_eq!(sequences("after=-1").unwrap_err(), "The parameter after must be a sequence number.");
        assert_eq!(decoded("a+b%20c%2").unwrap(), "a b c%2");
    }
}
