//! Every text of metrics, options and commands is understood alone, and names only what exists.

use std::collections::BTreeSet;

use memwarden::model::desc::Desc;
use memwarden::model::setting::{Opt, OptKind};
use memwarden::{app, catalog};
use memwarden_lab::cli::whole;

fn catalog() -> Vec<&'static Desc> {
    catalog::all().collect()
}

/// First words that refer to a text before them, which a reader of `/metrics` or of one option does not have.
const LEANING: &[&str] = &[
    "The same",
    "The rest",
    "The others",
    "The other",
    "These",
    "Those",
    "This",
    "That",
    "It",
    "Its",
    "They",
    "Them",
    "Their",
    "Such",
    "Another",
    "As above",
    "Likewise",
    "Also",
    "And",
    "Or",
    "But",
    "Killed so",
    "Told",
];

/// Figures of speech and private terms where a standard term exists.
const FIGURES: &[&str] = &[
    "acted so",
    "begins anew",
    "ladder",
    "ladders",
    "rung",
    "rungs",
    "desk",
    "seat",
    "seats",
    "heard",
    "told",
    "tells",
    "speaks",
    "our own",
    "turned away",
    "lets go",
    "foreseen",
    "fares",
    "loud",
    "most that",
    "goes on",
    "took turns",
    "cut up",
    "whoever",
];

/// Problems that keep a text from being understood alone; `names` are the words that may begin it in lower case.
fn faults(text: &str, names: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    let first = text.split([' ', ',', ':']).next().unwrap_or_default();
    if !names.contains(&first) && !text.starts_with(|c: char| c.is_uppercase()) {
        faults.push("does not begin with a capital letter".to_owned());
    }
    if !text.ends_with('.') {
        faults.push("does not end with a period".to_owned());
    }
    if text.chars().count() < 20 {
        faults.push("has fewer than 20 characters".to_owned());
    }
    for start in LEANING {
        if text.strip_prefix(start).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric)) {
            faults.push(format!("begins with `{start}`"));
        }
    }
    let words = text.to_lowercase();
    let words: Vec<&str> = words.split(|c: char| !c.is_alphanumeric()).collect();
    for figure in FIGURES {
        let figure: Vec<&str> = figure.split(' ').collect();
        if words.windows(figure.len()).any(|window| window == figure) {
            faults.push(format!("says `{}`", figure.join(" ")));
        }
    }
    faults
}

#[test]
fn faults_of_a_text_are_detected() {
    const NONE: [&str; 0] = [];
    assert_eq!(faults("Memory of the GPU that can be allocated.", &[]), NONE);
    assert_eq!(faults("systemd units that are workloads.", &["systemd"]), NONE);
    assert_eq!(faults("Thesis of a text that leans on nothing.", &[]), NONE);
    for (text, fault) in [
        ("The same as a share of what is reserved.", "begins with `The same`"),
        ("Its arguments, given to the program.", "begins with `Its`"),
        ("Short.", "has fewer than 20 characters"),
        ("memory of the GPU that can be allocated.", "does not begin with a capital letter"),
        ("Memory of the GPU that can be allocated", "does not end with a period"),
        ("Time since the rank was last heard of.", "says `heard`"),
        ("Connections that were turned away by it.", "says `turned away`"),
    ] {
        assert_eq!(faults(text, &[]), [fault], "{text}");
    }
}

#[test]
fn help_is_understood_alone() {
    let mut wrong = Vec::new();
    let mut seen = std::collections::BTreeMap::new();
    for desc in catalog() {
        wrong.extend(faults(desc.help(), &[]).iter().map(|fault| format!("{} {fault}", desc.name)));
        if let Some(other) = seen.insert(desc.help(), desc.name) {
            wrong.push(format!("{} and {other} have the same HELP", desc.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every complete key of the configuration, with its text.
fn options() -> Vec<(String, &'static str)> {
    fn below(path: &str, opt: &'static Opt, found: &mut Vec<(String, &'static str)>) {
        let path = if path.is_empty() { opt.key.to_owned() } else { format!("{path}.{}", opt.key) };
        found.push((path.clone(), opt.help));
        if let OptKind::Section(options) | OptKind::Sections(options) = opt.kind {
            options.iter().for_each(|opt| below(&path, opt, found));
        }
    }
    let schema = app::schema();
    let mut found = Vec::new();
    schema.sections().for_each(|section| below("", section, &mut found));
    for group in &schema.groups {
        found.push((group.key.to_owned(), group.about));
        for part in &group.parts {
            let path = format!("{}.{}", group.key, part.key);
            found.push((path.clone(), part.about));
            part.options().for_each(|opt| below(&path, opt, &mut found));
        }
    }
    found
}

#[test]
fn texts_of_options_are_understood_alone() {
    let all = options();
    assert!(all.len() > 150, "{}", all.len());
    let mut wrong = Vec::new();
    for (key, text) in &all {
        let short = ["HTTP server."].contains(&text.trim());
        let found = faults(text.trim(), &["systemd"]);
        wrong.extend(
            found
                .iter()
                .filter(|fault| !(short && fault.contains("fewer")))
                .map(|fault| format!("{key} {fault}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every text of `--help`, with the command and the argument it belongs to.
fn texts_of_commands() -> Vec<(String, String)> {
    fn below(command: &clap::Command, path: &str, found: &mut Vec<(String, String)>) {
        let path = format!("{path} {}", command.get_name());
        let mut add = |whose: String, text: Option<&clap::builder::StyledStr>| {
            if let Some(text) = text {
                // The parser removes the period from texts of one sentence.
                let text = text.to_string();
                found.push((whose, format!("{}.", text.trim_end_matches('.'))));
            }
        };
        add(path.clone(), command.get_long_about().or(command.get_about()));
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let whose = format!("{path} {}", argument.get_id());
            add(whose.clone(), argument.get_long_help().or(argument.get_help()));
            for value in argument.get_possible_values() {
                add(format!("{whose}={}", value.get_name()), value.get_help());
            }
        }
        command.get_subcommands().for_each(|command| below(command, &path, found));
    }
    let mut found = Vec::new();
    below(&whole(), "", &mut found);
    found
}

#[test]
fn texts_of_commands_are_understood_alone() {
    let all = texts_of_commands();
    assert!(all.len() > 100, "{}", all.len());
    let mut wrong = Vec::new();
    for (whose, text) in &all {
        let found = faults(text, &[]);
        wrong.extend(
            found.iter().filter(|fault| !fault.contains("fewer")).map(|fault| format!("{whose} {fault}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn texts_name_only_keys_and_metrics_that_exist() {
    let keys = options();
    let roots: BTreeSet<&str> = keys.iter().filter_map(|(key, _)| key.split('.').next()).collect();
    let declared = |name: &str| catalog().iter().any(|desc| desc.name == name);
    let exists = |name: &str| keys.iter().any(|(key, _)| key == name);
    let commands = texts_of_commands();
    let texts = catalog().into_iter().map(|desc| (desc.name.to_owned(), desc.help()));
    let texts = texts.chain(keys.iter().cloned());
    let commands = commands.iter().map(|(whose, text)| (whose.clone(), text.as_str()));
    let mut wrong = Vec::new();
    let mut named = 0;
    for (whose, text) in texts.chain(commands) {
        let words = text.replace("[]", "");
        let words = words.split(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '.')));
        for word in words.map(|word| word.trim_end_matches('.')) {
            let file = word.ends_with(".json");
            let key = !file && word.split_once('.').is_some_and(|(root, _)| roots.contains(root));
            let metric = word.starts_with("memwarden_") || declared(word);
            named += usize::from(key || metric);
            if (key && !exists(word)) || (metric && !declared(word)) {
                wrong.push(format!("{whose} names {word}"));
            }
        }
    }
    assert!(named >= 8, "only {named} names were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
