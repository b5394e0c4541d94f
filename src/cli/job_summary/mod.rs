//! `memwarden job-summary`: the resource use of a Slurm job, from the daemons of its nodes.

mod leftovers;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;

use super::check;
use super::fetch::{self, Fetcher, LARGEST};
use crate::cli::output::Output;
use crate::job_summary::{JobState, JobSummary};
use crate::model::ends::{End, ShownEnds};
use crate::report::job_summary::{JobReport, NodeUse};

/// Print what a Slurm job used on a node: peak and requested memory, GPU hours, OOM kills, files left in /dev/shm.
///
/// The running daemon keeps these values for a day after the end of the job, so that an epilog can print them. The suggested
/// request is 1.2 times the peak; after an OOM kill, it is the larger of 1.2 times the limit and the limit plus 100 MiB. The format
/// `jobstats` is one line for the field AdminComment, which Princeton's jobstats reads. Exit codes: 0 the summary was printed,
/// 1 it was not: a daemon does not answer or does not know the job.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden job-summary 4711
  memwarden job-summary 4711 --leftovers /dev/shm --output summary.json
  sacctmgr -i modify job where jobid=4711 set AdminComment=$(memwarden job-summary 4711 --format jobstats --cpus 8)
  memwarden job-summary 4711 --url http://node1:10636 --url http://node2:10636")]
pub(super) struct Args {
    /// ID of the job; of a job array, the raw ID of the task (SLURM_JOB_ID).
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    job: u32,
    /// Address of the daemon of a node of the job, in place of the socket of this node; for a job of several nodes, once for
    /// each.
    #[arg(long, value_name = "URL", default_values_t = [fetch::local()])]
    url: Vec<String>,
    /// Slurm's name of the node, in place of the host's name; for one node only.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Number of CPUs that Slurm allocated to the job on each node; jobstats computes the CPU efficiency from it.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,
    /// The job has ended, as an epilog knows: the newest sample of the daemon may be older.
    #[arg(long)]
    ended: bool,
    /// Folder of this node in which files of the job's user are reported, such as /dev/shm; not while the user has another job
    /// on the node. Nothing is removed.
    #[arg(long, value_name = "FOLDER")]
    leftovers: Option<PathBuf>,
    /// Time in seconds after which a daemon that has not answered is an error, 0.1 to 60.
    #[arg(long, value_name = "SECONDS", value_parser = check::timeout, default_value = "3")]
    timeout: Duration,
    #[command(flatten)]
    output: Output<Format>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Plain text.
    #[default]
    Text,
    /// JSON, with units in the keys.
    Json,
    /// One line of Princeton's jobstats: JS1: and gzip and base64 of JSON.
    Jobstats,
}

/// How often, and at which interval, the end of a job that has just ended is looked for.
const END_LOOKS: u32 = 8;
const END_PAUSE: Duration = Duration::from_millis(250);

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if self.url.len() > 1 && (self.node.is_some() || self.leftovers.is_some()) {
            bail!("--node and --leftovers are for one node: they cannot be used with several --url");
        }
        let mut nodes = Vec::with_capacity(self.url.len());
        for url in &self.url {
            let path = format!("/api/v1/jobs/{}", self.job);
            let mut summary: JobSummary = fetch::json(url, &path, self.timeout)?;
            if self.ended {
                summary.state = JobState::Ended;
            }
            if let Some(node) = &self.node {
                summary.node.clone_from(node);
            }
            let leftovers = self.leftovers.as_deref().map(|folder| leftovers::find(folder, &summary));
            let end = if matches!(self.output.format(), Format::Jobstats) { None } else { self.end(url)? };
            nodes.push(NodeUse { summary, cpus: self.cpus, leftovers, end });
        }
        let report = JobReport::new(nodes);
        match self.output.format() {
            Format::Text => self.output.colored(&report.text(self.output.page()))?,
            Format::Json => self.output.value(&report)?,
            Format::Jobstats => self.output.text(&format!("{}\n", report.jobstats()?))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// How the job ended on the node, as far as its daemon knows: it states an end within two seconds.
    fn end(&self, url: &str) -> anyhow::Result<Option<End>> {
        let fetcher = Fetcher::new(url, LARGEST, self.timeout)?;
        let workload = format!("slurm-{}", self.job);
        let asked = async {
            for _ in 0..if self.ended { END_LOOKS } else { 1 } {
                // A daemon that does not tell it has told the rest.
                let shown: ShownEnds = fetcher.json("/api/v1/ends").await.ok()?;
                let own =
                    shown.ends.into_iter().find(|end| end.is_whole && end.workload.as_str() == workload);
                if own.is_some() {
                    return own;
                }
                tokio::time::sleep(END_PAUSE).await;
            }
            None
        };
        Ok(fetch::runtime()?.block_on(asked))
    }
}
