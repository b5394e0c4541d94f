//! `memwarden serve`: the daemon, with the flags of Prometheus exporters.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::app::serve::{self, Options};
use crate::cli::report::set_options;
use crate::config::Override;

/// Run the daemon: sample this node and expose its metrics.
///
/// Needs no configuration, no GPU and no root privileges. A flag takes precedence over the configuration file.
///
/// Signals: HUP reloads the configuration, TERM and INT end the daemon, USR1
/// releases the GPU driver (so that it can be unloaded), USR2 acquires it again.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Example:\n  memwarden serve --config.file /etc/memwarden/memwarden.yaml \\\n    \
                             --web.listen-address 127.0.0.1:10636 --web.listen-address [::1]:10636"
)]
pub(super) struct Args {
    /// Configuration file; without it, the default configuration.
    #[arg(long = "config.file", value_name = "FILE")]
    config_file: Option<PathBuf>,
    /// Address to listen on [default: 127.0.0.1:10636]; may be given several times.
    #[arg(long = "web.listen-address", value_name = "HOST:PORT")]
    listen_address: Vec<String>,
    /// Prometheus web-config file with TLS, basic authentication and headers.
    #[arg(long = "web.config.file", value_name = "FILE")]
    web_config_file: Option<String>,
    /// Enable `POST /-/reload`, which reloads the configuration.
    #[arg(long = "web.enable-lifecycle")]
    enable_lifecycle: bool,
    /// Maximum number of requests served at once [default: 40].
    #[arg(long = "web.max-requests", value_name = "N")]
    max_requests: Option<String>,
    /// Least severe level that is logged: error, warn, info or debug [default: info].
    #[arg(long = "log.level", value_name = "LEVEL")]
    log_level: Option<String>,
    /// Format of the log: logfmt, json or text (for people, without the time) [default: logfmt].
    #[arg(long = "log.format", value_name = "FORMAT")]
    log_format: Option<String>,
    /// Path of the NVML library [default: libnvidia-ml.so.1 of the system].
    #[arg(long = "nvml-library", value_name = "PATH")]
    nvml_library: Option<String>,
    /// Folder in which the NVIDIA driver is installed, for containers that mount the driver of the host.
    #[arg(long = "driver-root", value_name = "PATH")]
    driver_root: Option<String>,
    /// Value of any configuration option by its key, such as `sources.gpu.enabled=false`; may be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        serve::run(&self.options()?)?;
        Ok(ExitCode::SUCCESS)
    }

    fn options(self) -> anyhow::Result<Options> {
        if let Some(path) = self.nvml_library.as_ref().filter(|path| path.contains('/'))
            && !std::path::Path::new(path).is_file()
        {
            anyhow::bail!("--nvml-library: there is no file {path}");
        }
        let mut overrides = set_options(&self.set)?;
        let one = |value: Option<String>| Vec::from_iter(value);
        let enable_lifecycle = self.enable_lifecycle.then(|| "true".to_owned());
        let given = [
            ("--web.listen-address", "web.listen_addresses", self.listen_address),
            ("--web.config.file", "web.config_file", one(self.web_config_file)),
            ("--web.enable-lifecycle", "web.enable_lifecycle", one(enable_lifecycle)),
            ("--web.max-requests", "web.max_requests", one(self.max_requests)),
            ("--log.level", "log.level", one(self.log_level)),
            ("--log.format", "log.format", one(self.log_format)),
            ("--nvml-library", "sources.gpu.nvml_library", one(self.nvml_library)),
            ("--driver-root", "sources.gpu.driver_root", one(self.driver_root)),
        ];
        let given = given.into_iter().filter(|(.., values)| !values.is_empty());
        overrides.extend(given.map(|(flag, key, values)| Override::new(flag, key, values)));
        Ok(Options { file: self.config_file, overrides })
    }
}
