//! `memwarden demo`: shows what memwarden does on a simulated node.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use super::out;
use crate::app::demo::{self, Said};
use crate::model::format;
use crate::node_view::Health;

/// Show what memwarden does, on a simulated node: no GPU, no root privileges and no configuration are needed.
///
/// The node has 8 GPUs: a run leaks, saves a checkpoint and is started again from it; the evaluation of another run will not
/// fit; a GPU hangs. The engine, the analyzers, the page, the metrics and the API are those of the daemon, and the clock of the
/// node runs 6 times as fast as the real one. Nothing of this machine is measured, written or signalled. Every event is
/// printed with its simulated time. The page stays until Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Example:\n  memwarden demo --listen 127.0.0.1:8080 --speed 40")]
pub(super) struct Args {
    /// How many times faster than the real clock the clock of the node is, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    speed: u32,
    /// Address of loopback to listen on; port 0 is a free one.
    #[arg(long, value_name = "HOST:PORT", value_parser = loopback, default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))]
    listen: SocketAddr,
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| "is not an address with a port, such as 127.0.0.1:8080")?;
    if address.ip().is_loopback() { Ok(address) } else { Err("is not an address of loopback".to_owned()) }
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let lasts = format::duration(f64::from(demo::SECONDS) / f64::from(self.speed));
        let mut events = 0_u32;
        demo::run(self.listen, self.speed, |said| match said {
            Said::Serving(address) => out::text(&format!(
                "A simulated node, {} times as fast as the real clock, with a scene of {lasts}. Nothing of this machine is measured.\n\
                 page:      http://{address}/  (open it in a browser)\n\
                 terminal:  memwarden top --url http://{address}  (in a second terminal)\n\
                 forecast:  memwarden oom --url http://{address}\n\
                 metrics:   http://{address}/metrics\n\
                 Ctrl-C ends it; each event follows here.\n\n",
                self.speed
            )),
            Said::Event(unix, event) => {
                events += 1;
                let clock = format::timestamp(unix);
                let clock = clock.get(11..19).unwrap_or_default();
                let health = if event.health == Health::Ok { "" } else { event.health.label() };
                out::text(&format!("{clock} UTC  {health:8}  {}\n", event.text))
            }
            Said::Over(view) => out::text(&format!(
                "\nThe scene is over: {events} events. The page shows its end until Ctrl-C: {}\n",
                view.verdict.sentence
            )),
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
