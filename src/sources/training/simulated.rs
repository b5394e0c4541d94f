//! Ranks of a simulated node: their messages are handed over in this process, without a socket.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::client::{Client, Shared};
use super::{Options, Training};
use crate::host::subordinate::Subordinates;
use crate::model::ids::ProcessKey;
use crate::model::point::Batch;
use crate::model::setting::Settings;
use crate::model::source::{Source, SourceError};
use crate::model::time::Timestamp;
use crate::sources::Context;

/// The source [`REGISTRATION`](super::REGISTRATION) without its listener.
#[derive(Debug)]
pub struct SimulatedRanks {
    source: Training,
    shared: Arc<Shared>,
    clients: BTreeMap<ProcessKey, Arc<Client>>,
    /// Number of connections since the start.
    connections: u64,
}

impl SimulatedRanks {
    /// No ranks yet.
    pub fn new(settings: &Settings, context: &Context) -> Self {
        let options = Options::read(settings);
        let (proc, passwd) = (context.roots.proc.clone(), context.roots.passwd.clone());
        let shared = Arc::new(Shared::new(proc.clone(), Subordinates::default(), options.max_clients));
        let (checkpoints, past_runs) = (Arc::clone(&context.checkpoints), Arc::clone(&context.past_runs));
        let mut source = Training::new(options, proc, passwd, checkpoints, past_runs);
        source.thread = Some((Arc::clone(&shared), None));
        Self { source, shared, clients: BTreeMap::new(), connections: 0 }
    }

    /// Takes one message of a process, which connects by its first one. A message that is wrong is counted as one of a real
    /// client.
    pub fn receive(&mut self, process: ProcessKey, uid: u32, message: &str, now: Timestamp) {
        let client = self.clients.entry(process).or_insert_with(|| {
            self.connections += 1;
            self.shared.greet_simulated(self.connections, process, uid)
        });
        let received = client.receive(message.as_bytes(), now, &self.shared.counts, &self.source.checkpoints);
        if let Err((wrong, _)) = received {
            self.shared.counts.wrong(wrong);
        }
    }

    /// Ends the connections of the processes that have ended.
    pub fn keep(&mut self, is_running: impl Fn(ProcessKey) -> bool) {
        let checkpoints = &self.source.checkpoints;
        self.clients.retain(|key, client| {
            let runs = is_running(*key);
            if !runs {
                client.part(checkpoints);
            }
            runs
        });
    }
}

impl Source for SimulatedRanks {
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        self.source.sample(at, out)
    }
}
