//! Every command line of the documents parses: those of `memwarden`, and those of this program.

use clap::error::ErrorKind;
use memwarden_lab::cli::whole;

use crate::pages::{Block, blocks, pages, read, spans};

/// The words of each command of a shell line.
///
/// Knows quotes, comments, pipes and redirections, which is all that documents use.
fn words(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote = None;
    // After a redirection comes a file, which is no argument.
    let mut skip = false;
    for c in line.chars().chain([' ']) {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('#', None) if word.is_none() => break,
            (c, None) if c.is_whitespace() || "|;&<>()".contains(c) => {
                if let Some(word) = word.take()
                    && !std::mem::take(&mut skip)
                {
                    commands.last_mut().unwrap().push(word);
                }
                if "|;&()".contains(c) {
                    commands.push(Vec::new());
                }
                skip |= "<>".contains(c);
            }
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    assert!(quote.is_none(), "a quote is not closed: {line}");
    commands.retain(|command: &Vec<String>| !command.is_empty());
    commands
}

/// The arguments that memwarden gets of a command, where it is one of ours.
fn of_memwarden(command: &[String]) -> Option<Vec<String>> {
    let assigned = |word: &&String| word.split_once('=').is_some_and(|(name, _)| !name.contains('-'));
    let before = command.iter().take_while(assigned).count();
    let command = &command[before..];
    let command = if command.first().is_some_and(|word| word == "sudo") { &command[1..] } else { command };
    let program = command.first()?;
    if program == "memwarden" || program.ends_with("/memwarden") {
        // A variable may have any value; those of documents are pids.
        let known = |word: &String| if word.starts_with('$') { "1".to_owned() } else { word.clone() };
        return Some(command[1..].iter().map(known).collect());
    }
    let ours = program == "cargo" && command.get(1).is_some_and(|word| word == "run");
    let rest = command.iter().position(|word| word == "--").filter(|_| ours)?;
    Some(command[rest + 1..].to_vec())
}

/// Why a command line is refused, if it is.
fn refused(arguments: &[String], abbreviated: bool) -> Option<String> {
    let all = ["memwarden"].into_iter().chain(arguments.iter().map(String::as_str));
    let error = whole().try_get_matches_from(all).err()?;
    let accepted = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        // A sentence that names a command need not say all of it.
        ErrorKind::MissingRequiredArgument => abbreviated,
        _ => false,
    };
    (!accepted).then(|| error.to_string())
}

#[test]
fn every_command_line_of_the_documents_parses() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for page in pages() {
        let text = read(&page);
        let (prose, blocks) = blocks(&text);
        let shell = |block: &&Block| ["", "sh", "bash", "console"].contains(&block.info.as_str());
        let mut lines: Vec<(String, bool)> = Vec::new();
        for block in blocks.iter().filter(shell) {
            let joined = block.text.replace("\\\n", " ");
            lines.extend(
                joined
                    .lines()
                    .filter(|line| line.contains("memwarden") || line.contains("cargo run"))
                    .map(|line| (line.to_owned(), false)),
            );
        }
        lines.extend(
            prose
                .lines()
                .filter_map(|line| line.strip_prefix("    "))
                .filter(|line| line.starts_with("memwarden "))
                .map(|line| (line.to_owned(), false)),
        );
        let named = spans(&prose).into_iter().filter(|span| span.starts_with("memwarden "));
        lines.extend(named.map(|span| (span, true)));
        for (line, abbreviated) in lines {
            for command in words(&line) {
                let Some(arguments) = of_memwarden(&command) else { continue };
                seen += 1;
                if let Some(why) = refused(&arguments, abbreviated) {
                    wrong.push(format!("{page}: {line}\n{why}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen >= 50, "only {seen} commands were found");
}

#[test]
fn shell_lines_are_split() {
    let taken = |line: &str| -> Vec<Vec<String>> {
        words(line).iter().filter_map(|command| of_memwarden(command)).collect()
    };
    assert_eq!(taken("A=1 sudo memwarden oom --plot 'a b.svg'   # why"), [["oom", "--plot", "a b.svg"]]);
    assert_eq!(
        taken("memwarden metrics --format json | jq -r '.[].name'"),
        [["metrics", "--format", "json"]]
    );
    assert_eq!(taken("memwarden incidents 1 > ticket.md && memwarden gpu release").len(), 2);
    assert_eq!(taken("cargo run --release -- serve"), [["serve"]]);
    assert_eq!(taken("python3 leak.py & memwarden leak --pid $!"), [["leak", "--pid", "1"]]);
    assert!(taken("cargo build --release; echo memwarden").is_empty());
    assert!(refused(&["oom".into(), "--nonsense".into()], true).is_some());
    assert!(refused(&["snapshot".into()], true).is_none());
    assert!(refused(&["snapshot".into()], false).is_some());
}
