//! Requests between nodes, on a network that delays, loses and repeats them.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use super::super::Defect;
use super::super::machine::Random;
use super::super::observe::PLAYED;
use super::{ANSWER_TIMEOUT, Event, TOKEN, World};
use crate::host::clock;
use crate::protection::enforce::ask_run::{PeerAnswer, finished, sealed};
use crate::protection::types::run_request::{
    Credentials, ReceiveRunRequests as _, RunAnswer, RunCounts, RunOutcome, RunQuery, RunRequest,
};
use crate::protection::types::step::Ticket;

/// A request on the network.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) from: usize,
    pub(super) run: String,
    pub(super) path: String,
    pub(super) body: Vec<u8>,
    pub(super) signature: Option<String>,
}

/// A question to other nodes.
pub(super) struct Question {
    pub(super) node: usize,
    pub(super) life: u64,
    pub(super) ticket: Ticket,
    pub(super) query: Arc<RunQuery>,
    pub(super) waits: usize,
    pub(super) answers: Vec<PeerAnswer>,
}

/// A request that the guard has not answered yet.
pub(super) struct Reply {
    pub(super) ask: Option<u64>,
    pub(super) to: usize,
    pub(super) since: Duration,
    pub(super) answer: Receiver<(RunOutcome, u32)>,
}

impl World {
    /// Asks all other nodes of a run.
    pub(super) fn ask(&mut self, from: usize, ticket: Ticket, query: Arc<RunQuery>) {
        self.count += 1;
        let ask = self.count;
        let nonce = self.random(Random::text);
        self.machine.0.borrow_mut().node = from;
        let (path, body, signature) = sealed(&query, Some(TOKEN), nonce);
        let message = Message { from, run: query.run.to_string(), path, body: body.to_vec(), signature };
        let others: Vec<usize> = (0..self.nodes.len()).filter(|node| *node != from).collect();
        self.machine.0.borrow_mut().note(|| format!("asks {} nodes of run {}", others.len(), query.run));
        let life = self.nodes[from].life;
        self.questions.insert(
            ask,
            Question { node: from, life, ticket, query, waits: others.len(), answers: Vec::new() },
        );
        for to in others {
            self.send(to, Some(ask), &message);
            // Somebody who listens sends it again, to this node or another, changed or not.
            while self.percent(40) {
                let soon = self.percent(30);
                let later =
                    self.random(
                        |random| if soon { random.millis(1, 5_000) } else { random.millis(30_000, 90_000) },
                    );
                let to = if self.percent(70) { to } else { from };
                let mut message = message.clone();
                if self.percent(30) {
                    let text = String::from_utf8(message.body.clone()).unwrap();
                    let text = text.replace("\"nonce\":\"", "\"nonce\":\"changed");
                    message.body = text.replace("\"incident\":\"", "\"incident\":\"changed").into_bytes();
                }
                self.after(later, to, Event::Request { ask: None, message });
            }
        }
        self.after(ANSWER_TIMEOUT, from, Event::Unanswered(ask));
    }

    fn send(&mut self, to: usize, ask: Option<u64>, message: &Message) {
        if self.nodes[to].cut || self.nodes[message.from].cut || self.percent(5) {
            return;
        }
        let delay = if self.percent(90) {
            self.random(|random| random.millis(0, 30))
        } else {
            self.random(|random| random.millis(0, 5_000))
        };
        self.after(delay, to, Event::Request { ask, message: message.clone() });
    }

    /// A request reaches a node, as `serve::http` passes it on.
    pub(super) fn request(&mut self, node: usize, ask: Option<u64>, message: &Message) {
        let defect = self.machine.0.borrow().defect;
        let Some(daemon) = &mut self.nodes[node].daemon else { return };
        let Message { from, run, path, body, signature } = message;
        let credentials = Credentials { authorization: signature.as_deref(), path, body, certificate: false };
        if daemon.receiver.authorize(credentials).is_err() {
            return self.send_answer(node, ask, *from, RunOutcome::Refused, 0);
        }
        let Ok(request) = serde_json::from_slice::<RunRequest>(body) else { return };
        if defect == Some(Defect::Nonce) {
            daemon.receiver.requests.forget_seen();
        }
        match daemon.receiver.requests.take(run, request, clock::now()) {
            Ok(answer) => {
                let since = self.machine.0.borrow().now;
                daemon.replies.push(Reply { ask, to: *from, since, answer });
                self.machine.0.borrow_mut().note(|| format!("takes the request of node {from}"));
                self.wake(node, Duration::ZERO);
            }
            Err(outcome) => {
                self.machine
                    .0
                    .borrow_mut()
                    .note(|| format!("refuses the request of node {from}: {}", outcome.label()));
                self.send_answer(node, ask, *from, outcome, 0);
            }
        }
    }

    pub(super) fn send_answer(
        &mut self,
        from: usize,
        ask: Option<u64>,
        to: usize,
        outcome: RunOutcome,
        processes: u32,
    ) {
        let Some(ask) = ask else { return };
        if self.nodes[from].cut || self.nodes[to].cut || self.percent(5) {
            return;
        }
        let answer = RunAnswer { outcome, host: format!("node-{from}"), processes };
        let delay = self.random(|random| random.millis(0, 30));
        self.after(delay, to, Event::Answer { ask, from, answer });
    }

    pub(super) fn answer(&mut self, ask: u64, from: usize, answer: RunAnswer) {
        let Some(question) = self.questions.get_mut(&ask) else { return };
        question.answers.push(PeerAnswer { peer: format!("node-{from}"), answer, why: String::new() });
        question.waits -= 1;
        if question.waits == 0 {
            self.conclude(ask);
        }
    }

    /// The guard gets what the other nodes have answered.
    pub(super) fn conclude(&mut self, ask: u64) {
        let Some(question) = self.questions.remove(&ask) else { return };
        let Question { node, life, ticket, query, waits, mut answers } = question;
        for _ in 0..waits {
            let answer = RunAnswer { outcome: RunOutcome::NoAnswer, host: String::new(), processes: 0 };
            answers.push(PeerAnswer { peer: String::new(), answer, why: String::new() });
        }
        if self.nodes[node].life == life && self.nodes[node].daemon.is_some() {
            let result = finished(ticket, &query, Ok(answers), &RunCounts::default());
            PLAYED.with_borrow_mut(|played| played.inbox.push((node, result)));
        }
    }
}
