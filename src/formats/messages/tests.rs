//! Every example of the protocol, and messages that must be refused.

use expect_test::{Expect, expect};

use super::*;

const PROTOCOL: &str = include_str!("../../../clients/PROTOCOL.md");

/// The lines of the document's JSON blocks.
fn examples() -> Vec<&'static str> {
    let blocks = PROTOCOL.split("```json\n").skip(1);
    blocks.flat_map(|rest| rest.split("```").next().unwrap_or_default().lines()).collect()
}

#[test]
fn every_example_of_the_document_is_parsed() {
    let mut kinds = std::collections::BTreeSet::new();
    for line in examples() {
        let message = parse(line.as_bytes()).unwrap_or_else(|problem| panic!("{problem}: {line}"));
        assert_ne!(message.body, Body::Unknown, "{line}");
        kinds.insert(message.body.kind());
        // The order of keys has no meaning.
        let mut value: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
        let kind = value.remove("type").unwrap();
        value.insert("type".to_owned(), kind);
        let turned = serde_json::to_string(&value).unwrap();
        let again = parse(turned.as_bytes()).unwrap();
        if !matches!(message.body, Body::Event(_) | Body::Hello(_) | Body::Params(_)) {
            assert_eq!(again, message, "{turned}");
        }
        // A truncated line is not a message.
        for cut in 0..line.len() {
            let _ = parse(&line.as_bytes()[..cut]).unwrap_err();
        }
    }
    assert_eq!(kinds.len() + 1, Body::TYPES.len(), "{kinds:?}");
}

/// Replaces each value of an example by text or an object: the key is reported.
#[test]
fn every_key_of_the_document_is_read() {
    for line in examples() {
        let value: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
        for (key, was) in &value {
            let mut wrong = value.clone();
            let other = if was.is_boolean() || was.is_number() {
                serde_json::json!({"a": 1})
            } else {
                serde_json::json!(-5)
            };
            wrong.insert(key.clone(), other);
            let text = serde_json::to_string(&wrong).unwrap();
            match parse(text.as_bytes()) {
                Err(Problem::Key { key: named, .. }) => assert_eq!(&named, key),
                other => panic!("{key} of {line} was read as {other:?}"),
            }
        }
    }
}

fn check(line: &str, expected: Expect) {
    let shown = match parse(line.as_bytes()) {
        Ok(message) => format!("{:?}", message.body),
        Err(problem) => format!("{}: {problem}", problem.kind()),
    };
    expected.assert_eq(&shown);
}

#[test]
fn keys_of_a_step_are_optional() {
    check(
        r#"{"type":"step","step":7,"loss":"nan","tokens":null,"grad_norm":"-inf","color":{"a":[1,{}]}}"#,
        expect![
            "Step(Step { step: Some(7), seconds: None, tokens: None, samples: None, largest_batch: None, first_pass_left: None, loss: Some(NotFinite), learning_rate: None, grad_norm: Some(NotFinite), skipped: None, nan: None })"
        ],
    );
    check(r#"{"type":"later","step":"x"}"#, expect!["Unknown"]);
    check(
        r#"{"type":"hello","v":9,"rank":2.0}"#,
        expect![
            "Hello(Hello { v: Some(9), client: None, rank: Some(2), local_rank: None, world: None, run: None, framework: None, framework_version: None, data_parallel: None, sequence_length: None, global_batch: None, precision: None, recompute: None, verdicts: None, devices: None, model: None, saves: None, saves_reason: None })"
        ],
    );
}

#[test]
fn errors_name_the_key() {
    check(
        r#"{"type":"step","step":-1}"#,
        expect!["key: `step` invalid value: floating point `-1.0`, expected a whole number, at least 0"],
    );
    check(
        r#"{"type":"step","step":1.5}"#,
        expect!["key: `step` invalid value: floating point `1.5`, expected a whole number, at least 0"],
    );
    check(r#"{"type":"step"}"#, expect!["key: `step` is missing"]);
    check(
        r#"{"type":"step","step":1,"seconds":-0.5}"#,
        expect!["key: `seconds` invalid value: floating point `-0.5`, expected a number, at least 0"],
    );
    check(
        r#"{"type":"step","step":1,"loss":"high"}"#,
        expect![[r#"key: `loss` invalid value: string "high", expected a number, "nan", "inf" or "-inf""#]],
    );
    check(
        r#"{"type":"step","step":1,"loss":1e999}"#,
        expect!["json: the line is not a JSON object: number out of range"],
    );
    check(r#"{"step":1}"#, expect!["key: `type` is missing"]);
    check(
        r#"{"step":[],"type":"step"}"#,
        expect!["key: `step` invalid type: sequence, expected a whole number, at least 0"],
    );
    check(r#"{"type":3}"#, expect!["key: `type` invalid type: integer `3`, expected a string"]);
    check(
        r#"{"type":"mem","devices":{"0":{"allocated":"5"}}}"#,
        expect![[
            r#"key: `devices.0.allocated` invalid value: string "5", expected a whole number, at least 0"#
        ]],
    );
    check(
        r#"{"devices":{"0":{"allocated":"5"}},"type":"mem"}"#,
        expect![[
            r#"key: `devices.0.allocated` invalid value: string "5", expected a whole number, at least 0"#
        ]],
    );
    check(
        r#"{"type":"mem","devices":{"cuda":{}}}"#,
        expect!["key: `devices` has a key that is not a device ordinal"],
    );
    check(
        r#"{"type":"phase","name":"forward","state":"middle"}"#,
        expect![[r#"key: `state` invalid value: string "middle", expected one of `begin` `end`"#]],
    );
    check(r#"{"type":"event","name":"x","detail":[1]}"#, expect!["key: `detail` is not an object"]);
    check("[1]", expect!["json: the line is not a JSON object: invalid type: sequence, expected an object"]);
    check("", expect!["json: the line is not a JSON object: EOF while parsing a value"]);
    check(
        r#"{"type":"step","step":1}{"#,
        expect!["json: the line is not a JSON object: trailing characters"],
    );
    check(
        &format!(r#"{{"type":"phase","name":"{}","state":"end"}}"#, "x".repeat(65)),
        expect![[
            r#"key: `name` invalid value: string "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", expected text of at most 64 bytes"#
        ]],
    );
    let deep =
        format!(r#"{{"type":"event","name":"x","detail":{}1{}}}"#, "[".repeat(5_000), "]".repeat(5_000));
    check(&deep, expect!["key: `detail` is not an object"]);
    expect!["byte 22 of the line is not UTF-8"]
        .assert_eq(&parse(b"{\"type\":\"step\",\"step\":\xff}").unwrap_err().to_string());
    expect!["a line of 65537 bytes is longer than 65536"]
        .assert_eq(&parse(&vec![b'x'; LONGEST + 1]).unwrap_err().to_string());
}

#[test]
fn a_prediction_is_complete_and_consistent() {
    let key = |rest: &str| {
        let line = format!(r#"{{"type":"prediction"{rest}}}"#);
        match parse(line.as_bytes()) {
            Err(Problem::Key { key, why }) => format!("{key} {why}"),
            other => format!("{:?}", other.map(|message| message.body.kind())),
        }
    };
    let step = r#","phase":"step","resource":"host""#;
    for (rest, expected) in [
        ("", "phase is missing"),
        (r#","phase":"step""#, "resource is missing"),
        (step, "certainty is missing"),
        (r#","phase":"step","resource":"device","certainty":"unknown""#, "device is missing"),
        (&format!(r#"{step},"device":"0","certainty":"unknown""#), "device is not the resource"),
        (&format!(r#"{step},"certainty":"exact""#), "peak is missing"),
        (&format!(r#"{step},"certainty":"unknown","peak":5"#), "peak is stated although it is unknown"),
        (&format!(r#"{step},"certainty":"unknown","peak_p90":5"#), "peak is missing"),
        (&format!(r#"{step},"certainty":"exact","peak":5,"peak_p90":4"#), "peak_p90 is below `peak`"),
        (
            &format!(r#"{step},"certainty":"exact","peak":5,"free":9"#),
            "free is not the job's to state for this resource",
        ),
        (r#","phase":"save","resource":"disk","certainty":"exact","peak":5,"free":9"#, r#"Ok("prediction")"#),
        (&format!(r#"{step},"certainty":"exact","peak":5,"size":{{}}"#), "size.unit is missing"),
        (
            &format!(r#"{step},"certainty":"exact","peak":5,"size":{{"unit":"tokens"}}"#),
            "size.units is missing",
        ),
        (&format!(r#"{step},"certainty":"unknown","basis":"LBFGS""#), r#"Ok("prediction")"#),
        (&format!(r#"{step},"certainty":"exact","peak":5"#), r#"Ok("prediction")"#),
    ] {
        assert_eq!(key(rest), expected, "{rest}");
    }
    check(
        r#"{"type":"prediction","phase":"sleep","resource":"host","certainty":"exact","peak":1}"#,
        expect![[
            r#"key: `phase` invalid value: string "sleep", expected one of `optimizer` `step` `evaluation` `generation` `save`"#
        ]],
    );
    check(
        r#"{"type":"prediction","phase":"step","resource":"device","device":"+1","certainty":"exact","peak":1}"#,
        expect![[r#"key: `device` invalid value: string "+1", expected the ordinal of a device as text"#]],
    );
}

#[test]
fn an_error_is_short_and_has_no_control_characters() {
    let line = format!(r#"{{"type":"step","step":"{}\n"}}"#, "é".repeat(10_000));
    let error = parse(line.as_bytes()).unwrap_err().to_string();
    assert!(error.chars().count() < 200 && !error.contains(char::is_control), "{error}");
}

#[test]
fn a_detail_is_kept_as_written_within_limits() {
    let event = |detail: &str| {
        let line = format!(r#"{{"type":"event","name":"x","detail":{detail}}}"#);
        match parse(line.as_bytes()).map(|message| message.body) {
            Ok(Body::Event(event)) => Ok(event.detail),
            other => Err(format!("{other:?}")),
        }
    };
    assert_eq!(event(r#"{"a": [1.50]}"#).unwrap().unwrap(), r#"{"a": [1.50]}"#);
    assert_eq!(event("null").unwrap(), None);
    assert!(event(&format!(r#"{{"a":"{}"}}"#, "x".repeat(20_000))).is_err());
    assert!(event(&format!(r#"{{"a":{}1{}}}"#, "[".repeat(500), "]".repeat(500))).is_err());
    assert!(event(r#"{"a":"\ud800"}"#).is_err());
}

#[test]
fn what_grows_is_bounded() {
    let items = vec![r#"{"what":"type","name":"a","more":1}"#; 100].join(",");
    let Body::Evidence(evidence) =
        parse(format!(r#"{{"type":"evidence","items":[{items}]}}"#).as_bytes()).unwrap().body
    else {
        panic!("not read as evidence")
    };
    assert_eq!(evidence.items.unwrap().len(), 32);
    let long = format!(r#"{{"type":"evidence","items":[{{"name":"{}"}}]}}"#, "x".repeat(257));
    assert!(matches!(parse(long.as_bytes()), Err(Problem::Key { .. })));
}

#[test]
fn devices_and_groups_are_bounded() {
    let many = |n: usize| {
        let each: Vec<String> = (0..n).map(|place| format!(r#""{place}":{{}}"#)).collect();
        parse(format!(r#"{{"type":"mem","devices":{{{}}}}}"#, each.join(",")).as_bytes())
    };
    assert!(many(64).is_ok() && many(65).is_err());
    let groups = |n: usize| {
        let each: Vec<String> = (0..n).map(|place| format!(r#""g{place}":1"#)).collect();
        parse(format!(r#"{{"type":"params","by_group":{{{}}}}}"#, each.join(",")).as_bytes())
    };
    assert!(groups(64).is_ok() && groups(65).is_err());
}

proptest::proptest! {
    #[test]
    fn bytes_never_panic(bytes: Vec<u8>) {
        let _ = parse(&bytes);
    }

    #[test]
    fn damaged_examples_never_panic(
        which: proptest::sample::Index,
        damage in proptest::collection::vec((proptest::prelude::any::<proptest::sample::Index>(), proptest::prelude::any::<u8>()), 1..6),
    ) {
        let all = examples();
        let mut line = which.get(&all).as_bytes().to_vec();
        for (place, byte) in damage {
            let place = place.index(line.len());
            line[place] = byte;
        }
        let _ = parse(&line);
    }
}

#[test]
fn the_protocol_lists_the_texts_that_only_the_owner_and_root_read() {
    let messages = [
        ("hello", Hello::KEYS),
        ("hello.devices", DeviceName::KEYS),
        ("hello.model", Model::KEYS),
        ("phase", Phase::KEYS),
        ("event", Event::KEYS),
        ("oom", Oom::KEYS),
        ("checkpoint", Checkpoint::KEYS),
        ("params", Params::KEYS),
        ("prediction", Prediction::KEYS),
        ("evidence.items", Grown::KEYS),
        ("bye", Bye::KEYS),
    ];
    let all =
        messages.iter().flat_map(|(message, keys)| keys.iter().map(move |(key, read)| (message, key, read)));
    let own = all.filter(|(.., read)| matches!(**read, "own" | "path" | "detail"));
    let own: Vec<String> = own.map(|(message, key, _)| format!("`{message}.{key}`")).collect();
    let text = PROTOCOL.replace("\n ", "");
    let stated = format!("root read these texts: {}. All users", own.join(", "));
    assert!(text.contains(&stated), "{stated}");
}
