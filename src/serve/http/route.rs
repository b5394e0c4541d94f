//! The paths of the server, and the methods that each accepts.

use http::Method;

use super::incidents::Wanted;
use super::{ends, jobs, past_runs, run_requests};
use crate::serve::page::{self, View};

/// What a path is.
pub(super) enum Route {
    Page(View),
    /// A constant part of the pages: its type and its text.
    Part(&'static str, &'static str),
    Node,
    History,
    Metrics,
    Frame,
    Findings,
    Timeline,
    Incidents(Wanted),
    Job(String),
    PastRuns,
    Ends,
    Healthy,
    Ready,
    Reload,
    Alerts,
    RunCheckpoint(String),
    Acknowledge,
}

impl Route {
    pub(super) fn of(path: &str, query: &str) -> Option<Self> {
        Some(match path {
            page::SCRIPT_PATH => Self::Part("text/javascript; charset=utf-8", page::SCRIPT),
            "/icon.svg" => Self::Part("image/svg+xml", page::ICON),
            "/api/v1/node" => Self::Node,
            "/api/v1/history" => Self::History,
            "/metrics" => Self::Metrics,
            "/api/v1/frame" => Self::Frame,
            "/api/v1/findings" => Self::Findings,
            "/api/v1/timeline" => Self::Timeline,
            past_runs::PATH => Self::PastRuns,
            ends::PATH => Self::Ends,
            "/-/healthy" => Self::Healthy,
            "/-/ready" => Self::Ready,
            "/-/reload" => Self::Reload,
            "/api/v1/alerts" => Self::Alerts,
            "/api/v1/acknowledge" => Self::Acknowledge,
            path => {
                let job = path.strip_prefix(jobs::FOLDER).map(|job| Self::Job(job.to_owned()));
                job.or_else(|| run_requests::run(path).map(Self::RunCheckpoint))
                    .or_else(|| Wanted::of(path).map(Self::Incidents))
                    .or_else(|| View::of(path, query).map(Self::Page))?
            }
        })
    }

    pub(super) const fn allow(&self) -> &'static str {
        match self {
            Self::Reload => "POST, PUT",
            Self::Alerts | Self::RunCheckpoint(_) | Self::Acknowledge => "POST",
            _ => "GET, HEAD",
        }
    }

    pub(super) fn allows(&self, method: &Method) -> bool {
        self.allow().split(", ").any(|allowed| allowed == method.as_str())
    }
}
