//! Python programs that import torch are instrumented: their `PYTHONPATH` gets a private folder with the client.
//!
//! The files are embedded in this program, so that nothing has to be installed where a job runs. A program without
//! torch only reads one small file more at its start. The folder is removed when the command has ended; a process that
//! runs on keeps the modules that it has imported.

use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::host::fs;

/// The files of the client, by their paths in its package.
macro_rules! client {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../../../clients/python/memwarden/", $name)))),*]
    };
}

/// The package `memwarden`. Its `auto/sitecustomize.py` is written a second time beside it, where Python finds it at its
/// start, so that one entry of `PYTHONPATH` is enough for both.
const PACKAGE: [(&str, &str); 41] = client! {
    "__init__.py"
    "__main__.py"
    "_agreement.py"
    "_allocator.py"
    "_auto.py"
    "_base.py"
    "_checkpoints.py"
    "_ending.py"
    "_evidence.py"
    "_fit.py"
    "_fit_batches.py"
    "_fit_evaluation.py"
    "_fit_first_step.py"
    "_fit_memory.py"
    "_fit_optimizer.py"
    "_fit_plan.py"
    "_fit_predictions.py"
    "_fit_save.py"
    "_fit_size.py"
    "_fit_verdict.py"
    "_hooks.py"
    "_huggingface.py"
    "_identity.py"
    "_jax.py"
    "_keras.py"
    "_layout.py"
    "_lightning.py"
    "_link.py"
    "_models.py"
    "_monitor.py"
    "_phases.py"
    "_process.py"
    "_recording.py"
    "_risks.py"
    "_session.py"
    "_signals.py"
    "_steps.py"
    "_tokens.py"
    "_trainers.py"
    "auto/__init__.py"
    "auto/sitecustomize.py"
};
/// The file of the package that Python imports at its start.
const SITE: &str = "auto/sitecustomize.py";
/// The variable that selects what is instrumented.
pub(super) const MODE: &str = "MEMWARDEN_AUTO";
/// The variable that names the run.
pub(super) const RUN: &str = "MEMWARDEN_RUN";
/// The variable that says what the client does with predictions (`docs/jobs.md`, "Will it fit?").
pub(super) const FIT: &str = "MEMWARDEN_FIT";
const SOCKET: &str = "MEMWARDEN_JOB_SOCKET";
/// The job socket of the node's daemon (`clients/PROTOCOL.md`), which also receives the messages.
const DAEMON: &str = "/run/memwarden/job.sock";
/// Maximum length of a path in `sockaddr_un`, less its final zero (unix(7)).
const LONGEST_SOCKET: usize = 107;

/// Environment variables, by name.
pub(super) type Variables = Vec<(&'static str, OsString)>;

/// The folder; removed on drop.
#[derive(Debug)]
pub(super) struct Instruments {
    folder: PathBuf,
}

impl Instruments {
    /// Creates the folder, private to this user, in the folder for temporary files.
    ///
    /// # Errors
    /// Errors of the operating system, and a folder name that cannot be a part of `PYTHONPATH`.
    pub(super) fn unpack(temporary: &Path) -> io::Result<Self> {
        if temporary.as_os_str().as_bytes().contains(&b':') {
            let why = format!("{} has a colon in its name", temporary.display());
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        // Python would import what others put in its place.
        fs::check_folder(temporary, false)?;
        // From here on it is removed, whatever else fails.
        let instruments = Self { folder: make_folder(temporary)? };
        let socket = instruments.socket();
        if socket.as_os_str().len() > LONGEST_SOCKET {
            let why = format!("{} is too long for a socket", socket.display());
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        let package = instruments.folder.join("memwarden");
        for folder in [&package, &package.join("auto")] {
            DirBuilder::new().mode(0o700).create(folder)?;
        }
        for (name, text) in PACKAGE {
            write_new(&package.join(name), text)?;
            if name == SITE {
                write_new(&instruments.folder.join("sitecustomize.py"), text)?;
            }
        }
        Ok(instruments)
    }

    /// The path of the job socket for this command.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join("job.sock")
    }

    /// The variables to add to the environment of the command. Values that the user has set for the instrumentation and
    /// for other receivers are kept.
    pub(super) fn variables(&self, environment: impl Fn(&str) -> Option<OsString>) -> Variables {
        let mut path = self.folder.clone().into_os_string();
        // An empty entry would be the working directory.
        if let Some(before) = environment("PYTHONPATH").filter(|before| !before.is_empty()) {
            path.push(":");
            path.push(before);
        }
        let mut socket = self.socket().into_os_string();
        socket.push(":");
        socket.push(environment(SOCKET).filter(|path| !path.is_empty()).unwrap_or_else(|| DAEMON.into()));
        let mode = environment(MODE).unwrap_or_else(|| "1".into());
        vec![("PYTHONPATH", path), (MODE, mode), (SOCKET, socket)]
    }
}

impl Drop for Instruments {
    fn drop(&mut self) {
        // A folder that cannot be removed is left in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}

/// Creates a folder under a name that nobody can guess, so that nothing is in its way.
fn make_folder(temporary: &Path) -> io::Result<PathBuf> {
    let name = RandomState::new().hash_one(std::process::id());
    let folder = temporary.join(format!("memwarden-{name:016x}"));
    DirBuilder::new().mode(0o700).create(&folder)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_folder_is_private_and_goes() {
        let temporary = tempfile::tempdir().unwrap();
        let instruments = Instruments::unpack(temporary.path()).unwrap();
        let folder = instruments.folder.clone();
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
        assert_eq!(read("sitecustomize.py"), read("memwarden/auto/sitecustomize.py"));
        assert!(folder.join("memwarden/__init__.py").is_file());
        drop(instruments);
        assert!(!folder.exists());
    }

    #[test]
    fn every_module_of_the_client_is_unpacked() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python/memwarden");
        let mut shipped = Vec::new();
        for folder in ["", "auto/"] {
            for entry in std::fs::read_dir(source.join(folder)).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                shipped.extend(name.ends_with(".py").then(|| format!("{folder}{name}")));
            }
        }
        shipped.sort();
        let mut unpacked: Vec<_> = PACKAGE.iter().map(|(name, _)| (*name).to_owned()).collect();
        unpacked.sort();
        assert_eq!(unpacked, shipped);
    }

    #[test]
    fn the_environment_is_added_to() {
        let instruments = Instruments { folder: "/tmp/none".into() };
        let variables = |environment: &[(&str, &str)]| {
            let get = |name: &str| environment.iter().find(|(own, _)| *own == name).map(|own| own.1.into());
            let text = |(name, value): (&str, OsString)| format!("{name}={}", value.display());
            instruments.variables(get).into_iter().map(text).collect::<Vec<_>>().join("\n")
        };
        expect![[r#"
            PYTHONPATH=/tmp/none
            MEMWARDEN_AUTO=1
            MEMWARDEN_JOB_SOCKET=/tmp/none/job.sock:/run/memwarden/job.sock"#]]
        .assert_eq(&variables(&[("PYTHONPATH", "")]));
        let own = [("PYTHONPATH", "/a:/b"), ("MEMWARDEN_AUTO", "steps"), ("MEMWARDEN_JOB_SOCKET", "/c")];
        expect![[r#"
            PYTHONPATH=/tmp/none:/a:/b
            MEMWARDEN_AUTO=steps
            MEMWARDEN_JOB_SOCKET=/tmp/none/job.sock:/c"#]]
        .assert_eq(&variables(&own));
    }

    #[test]
    fn a_folder_that_python_could_not_import_from_is_refused() {
        let error = Instruments::unpack(Path::new("/tmp/a:b")).unwrap_err();
        assert_eq!(error.to_string(), "/tmp/a:b has a colon in its name");
        assert!(Instruments::unpack(Path::new("/nonexistent")).is_err());
        let temporary = tempfile::tempdir().unwrap();
        let long = temporary.path().join("x".repeat(120));
        std::fs::create_dir(&long).unwrap();
        let error = Instruments::unpack(&long).unwrap_err();
        assert!(error.to_string().ends_with("is too long for a socket"), "{error}");
        assert_eq!(std::fs::read_dir(&long).unwrap().count(), 0);
    }
}
