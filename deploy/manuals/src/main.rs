//! `memwarden-manuals FOLDER`: writes the man pages and the shell completions, from the definitions of the command line
//! and of the configuration.
//!
//! This is a separate program, so that the daemon neither links the generators nor has a subcommand for them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap_complete::Shell;
use clap_mangen::roff::{Roff, roman};
use memwarden::app;
use memwarden::config::default_file;
use memwarden_lab::cli::whole;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(folder), None) = (arguments.next(), arguments.next()) else {
        anyhow::bail!("usage: memwarden-manuals FOLDER");
    };
    write(Path::new(&folder))
}

/// Writes `man1/`, `man5/` and `completions/` below `folder`.
///
/// # Errors
/// A folder or file that cannot be written.
fn write(folder: &Path) -> anyhow::Result<()> {
    let pages = made(folder, "man1")?;
    clap_mangen::generate_to(whole(), &pages).with_context(|| format!("writing {}", pages.display()))?;

    let page = made(folder, "man5")?.join("memwarden.yaml.5");
    fs::write(&page, configuration()).with_context(|| format!("writing {}", page.display()))?;

    let completions = made(folder, "completions")?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut shown(), "memwarden", AsRef::<OsStr>::as_ref(&completions))
            .with_context(|| format!("writing the completions of {shell}"))?;
    }
    Ok(())
}

/// The folder `name` in `folder`, which is created if it does not exist.
fn made(folder: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let path = folder.join(name);
    fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
    Ok(path)
}

/// The command line without its hidden subcommands: completions would offer them.
fn shown() -> clap::Command {
    let all = whole();
    clap::Command::new("memwarden")
        // Not shown: it adds the option --version.
        .version(env!("CARGO_PKG_VERSION"))
        .args(all.get_arguments().cloned())
        .subcommands(all.get_subcommands().filter(|command| !command.is_hide_set()).cloned())
}

/// memwarden.yaml(5): the default configuration, in which every key has its description.
fn configuration() -> String {
    let mut page = Roff::new();
    page.control("TH", ["memwarden.yaml", "5", "", concat!("memwarden ", env!("CARGO_PKG_VERSION"))]);
    page.control("SH", ["NAME"]).text([roman("memwarden.yaml - configuration of memwarden")]);
    page.control("SH", ["DESCRIPTION"]).text([roman(
        "The file that `memwarden serve --config.file` reads, in YAML. Every key may be left out. \
         `memwarden check-config FILE` reports every error of a file. The daemon reads its file again on SIGHUP.",
    )]);
    page.control("SH", ["KEYS"]).text([roman("Every key, with its description and its default:")]);
    page.control("PP", []).control("nf", []);
    for line in default_file::write(&app::schema()).lines() {
        page.text([roman(line)]);
    }
    page.control("fi", []);
    page.control("SH", ["SEE ALSO"])
        .text([roman("memwarden(1), memwarden-serve(1), memwarden-check-config(1)")]);
    page.to_roff()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use memwarden_lab::cli::whole;

    fn names(folder: &Path) -> BTreeSet<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// The pages of a visible command and of its subcommands.
    fn expected(command: &clap::Command, name: &str, pages: &mut BTreeSet<String>) {
        pages.insert(format!("{name}.1"));
        for part in command.get_subcommands().filter(|part| !part.is_hide_set()) {
            expected(part, &format!("{name}-{}", part.get_name()), pages);
        }
    }

    #[test]
    fn every_command_that_is_shown_has_a_page_and_a_completion_and_no_other_has() {
        let folder = tempfile::tempdir().unwrap();
        super::write(folder.path()).unwrap();
        let mut pages = BTreeSet::new();
        expected(&whole(), "memwarden", &mut pages);
        assert!(pages.contains("memwarden-serve.1"), "{pages:?}");
        assert_eq!(names(&folder.path().join("man1")), pages);

        let completions = folder.path().join("completions");
        assert_eq!(
            names(&completions),
            ["_memwarden", "memwarden.bash", "memwarden.fish"].map(str::to_owned).into()
        );
        for file in names(&completions) {
            let text = std::fs::read_to_string(completions.join(&file)).unwrap();
            for command in whole().get_subcommands() {
                let name = command.get_name();
                assert_eq!(text.contains(name), !command.is_hide_set(), "{file}: {name}");
            }
        }
    }

    #[test]
    fn the_manual_of_the_configuration_has_every_line_of_the_default_file() {
        let page = super::configuration();
        let plain = page.replace("\\-", "-").replace("\\&", "").replace("\\*(Aq", "'").replace("\\e", "\\");
        for line in memwarden::config::default_file::write(&memwarden::app::schema()).lines() {
            assert!(plain.contains(line.trim_start()), "{line}\n{page}");
        }
        assert!(page.lines().all(|line| !line.starts_with(". ")), "{page}");
    }
}
