//! Verdicts that the daemon sends to a client.
//!
//! The sampler writes them, without waiting: what the socket has no room for is not sent. A client that does not read
//! costs a small buffer of the kernel.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, Weak};

use rustix::net::{SendFlags, send, sockopt};

use crate::model::fit::{Answer, Verdict};
use crate::model::format;
use crate::model::lock::lock;

/// Size of the socket's send buffer, in bytes: a few verdicts.
const BUFFER: usize = 8 << 10;
/// Maximum length of the text about earlier runs, in characters.
const TEXT: usize = 1_024;

/// The way back to one client; by default there is none.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The listener closes the stream.
    stream: Weak<UnixStream>,
    state: Mutex<State>,
}

/// What was sent.
#[derive(Debug, Default)]
struct State {
    has_begun: bool,
    /// The last verdict.
    verdict: Option<(Verdict, String, Option<u64>)>,
    /// What was said last of the earlier runs of its command.
    past: String,
    /// Only a part of a line was sent: what follows could not be understood.
    is_torn: bool,
}

impl Answers {
    pub(super) fn new(stream: &Arc<UnixStream>) -> Self {
        Self { stream: Arc::downgrade(stream), state: Mutex::default() }
    }

    /// Sends an answer that differs from the last one.
    pub(super) fn send(&self, answer: &Answer) {
        let mut state = lock(&self.state);
        let now = (answer.verdict, answer.text.clone(), answer.sequence);
        if state.verdict.as_ref() != Some(&now) && self.write(&mut state, &line(answer)) {
            state.verdict = Some(now);
        }
    }

    /// Sends what is to be said of the earlier runs of its command, where that differs from the last one.
    pub(super) fn tell_past(&self, past: &str) {
        let mut state = lock(&self.state);
        let message = serde_json::json!({"type": "past", "text": format::beginning(past, TEXT)});
        if state.past != past && self.write(&mut state, &format!("{message}\n")) {
            past.clone_into(&mut state.past);
        }
    }

    /// Whether the line was sent. If there is no room, the next tick tries again.
    fn write(&self, state: &mut State, line: &str) -> bool {
        let Some(stream) = self.stream.upgrade().filter(|_| !state.is_torn) else { return false };
        if !state.has_begun {
            state.has_begun = true;
            // A buffer that stays larger costs memory only.
            let _ = sockopt::set_socket_send_buffer_size(&*stream, BUFFER);
        }
        let sent = send(&*stream, line.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        state.is_torn = sent.is_ok_and(|sent| sent < line.len());
        sent.is_ok()
    }
}

/// The message `verdict` of the protocol.
fn line(answer: &Answer) -> String {
    let mut text = answer.text.as_str();
    while text.len() > TEXT {
        text = text.char_indices().next_back().map_or("", |(last, _)| &text[..last]);
    }
    let mut message = serde_json::json!({"type": "verdict", "verdict": answer.verdict.label(), "text": text});
    if let Some(sequence) = answer.sequence {
        message["sequence"] = sequence.into();
    }
    format!("{message}\n")
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::model::ids::ProcessKey;

    fn answer(verdict: Verdict, text: &str) -> Answer {
        Answer { process: ProcessKey { pid: 1, start: 1 }, verdict, text: text.to_owned(), sequence: None }
    }

    fn received(stream: &mut UnixStream) -> String {
        let mut bytes = vec![0; 1 << 20];
        let read = stream.read(&mut bytes).unwrap_or(0);
        String::from_utf8(bytes[..read].to_vec()).unwrap()
    }

    #[test]
    fn an_answer_is_sent_once_until_it_changes() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let ours = Arc::new(ours);
        let answers = Answers::new(&ours);
        answers.send(&answer(Verdict::Fits, "all fits"));
        answers.send(&answer(Verdict::Fits, "all fits"));
        assert_eq!(
            received(&mut theirs),
            "{\"text\":\"all fits\",\"type\":\"verdict\",\"verdict\":\"fits\"}\n"
        );
        // The same verdict on a later prediction.
        answers.send(&Answer { sequence: Some(7), ..answer(Verdict::Fits, "all fits") });
        assert!(received(&mut theirs).contains("\"sequence\":7"));
        (0..2).for_each(|_| answers.tell_past("it died"));
        assert_eq!(received(&mut theirs), "{\"text\":\"it died\",\"type\":\"past\"}\n");
        answers.send(&answer(Verdict::WillNotFit, &"é".repeat(2_000)));
        let line = received(&mut theirs);
        assert!(
            line.contains("will_not_fit")
                && line.ends_with("é\",\"type\":\"verdict\",\"verdict\":\"will_not_fit\"}\n")
        );
        assert!(line.len() < 1_100, "{}", line.len());
        drop(ours);
        answers.send(&answer(Verdict::Tight, "later"));
        assert_eq!(received(&mut theirs), "");
    }

    #[test]
    fn a_client_that_does_not_read_is_never_waited_for() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let ours = Arc::new(ours);
        let answers = Answers::new(&ours);
        // The calls return although nobody reads; what is received are whole lines, and few.
        for round in 0..2_000 {
            answers.send(&answer(Verdict::Tight, &format!("{round} {}", "x".repeat(900))));
        }
        let (mut all, mut piece) = (String::new(), received(&mut theirs));
        while !piece.is_empty() {
            all += &piece;
            piece = received(&mut theirs);
        }
        assert!(all.ends_with('\n') && all.lines().all(|line| line.ends_with('}')));
        assert!((1..100).contains(&all.lines().count()), "{}", all.lines().count());
        answers.send(&answer(Verdict::Fits, "again"));
        assert!(received(&mut theirs).contains("again"), "room again");
    }
}
