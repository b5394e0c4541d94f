//! `memwarden serve`: the daemon, with the flags that exporters take.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::app::serve::{self, Options};
use crate::config::Override;

/// Sample this node and serve what is found.
///
/// Needs no configuration, no GPU and no root. What a flag sets wins over the file.
///
/// Signals: HUP reloads the configuration, TERM and INT end the daemon, USR1
/// lets go of the GPU driver (so that it can be unloaded), USR2 takes it up again.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Example:\n  memwarden serve --config.file /etc/memwarden/memwarden.yaml \\\n    \
                             --web.listen-address 127.0.0.1:10636 --web.listen-address [::1]:10636"
)]
pub(super) struct Args {
    /// The configuration file; without one, the defaults.
    #[arg(long = "config.file", value_name = "FILE")]
    config_file: Option<PathBuf>,
    /// Address to listen on; may be given several times.
    #[arg(long = "web.listen-address", value_name = "HOST:PORT")]
    listen_address: Vec<String>,
    /// Prometheus web-config file: TLS, authentication, headers.
    #[arg(long = "web.config.file", value_name = "FILE")]
    web_config_file: Option<String>,
    /// Allow `POST /-/reload`.
    #[arg(long = "web.enable-lifecycle")]
    enable_lifecycle: bool,
    /// The most requests served at once.
    #[arg(long = "web.max-requests", value_name = "N")]
    max_requests: Option<String>,
    /// error, warn, info or debug.
    #[arg(long = "log.level", value_name = "LEVEL")]
    log_level: Option<String>,
    /// logfmt or json.
    #[arg(long = "log.format", value_name = "FORMAT")]
    log_format: Option<String>,
    /// The NVML library to open, instead of the system's.
    #[arg(long = "nvml-library", value_name = "PATH")]
    nvml_library: Option<String>,
    /// Where the NVIDIA driver is installed, for containers that mount the host's.
    #[arg(long = "driver-root", value_name = "PATH")]
    driver_root: Option<String>,
    /// Any other option by its key, such as `sources.gpu.enabled=false`; may be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        serve::run(&self.options()?)?;
        Ok(ExitCode::SUCCESS)
    }

    fn options(self) -> anyhow::Result<Options> {
        let mut overrides = Vec::new();
        let mut add = |flag: &str, key: &str, values: Vec<String>| {
            if !values.is_empty() {
                overrides.push(Override { flag: flag.to_owned(), key: key.to_owned(), values });
            }
        };
        let one = |value: Option<String>| value.into_iter().collect::<Vec<_>>();
        for text in &self.set {
            let (key, value) =
                text.split_once('=').ok_or_else(|| anyhow::anyhow!("--set {text}: write KEY=VALUE"))?;
            add(&format!("--set {key}"), key, vec![value.to_owned()]);
        }
        add("--web.listen-address", "web.listen_addresses", self.listen_address);
        add("--web.config.file", "web.config_file", one(self.web_config_file));
        add(
            "--web.enable-lifecycle",
            "web.enable_lifecycle",
            one(self.enable_lifecycle.then(|| "true".to_owned())),
        );
        add("--web.max-requests", "web.max_requests", one(self.max_requests));
        add("--log.level", "log.level", one(self.log_level));
        add("--log.format", "log.format", one(self.log_format));
        add("--nvml-library", "sources.gpu.nvml_library", one(self.nvml_library));
        add("--driver-root", "sources.gpu.driver_root", one(self.driver_root));
        Ok(Options { file: self.config_file, overrides })
    }
}
