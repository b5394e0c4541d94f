//! Basic authentication by the bcrypt hashes of the web-config file.
//!
//! bcrypt is slow by design, so it runs on a thread for blocking work, one check at a time, and a success is cached:
//! not the password, but its HMAC under a random key that exists as long as the process. A failure is never cached,
//! so that each guess costs a full check and cannot evict known users; an unknown user costs as much as a known one,
//! so that the response time does not reveal which users exist. The number of waiting checks is limited, so that
//! guessing cannot occupy every connection, and shared by client: one whose last password was wrong has a single place, and all
//! of these together have a few.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, header};
use ring::hmac;
use ring::rand::SystemRandom;
use tokio::sync::Semaphore;

use super::connections::Owner;
use super::meter::Request;
use crate::model::lock::lock;

/// Cached successes; a node has a handful of scrapers.
const REMEMBERED: usize = 100;
/// Checks that may wait; at the usual bcrypt cost of 10 the last one waits for less than a second.
const QUEUE: usize = 8;
/// Of these, checks of one client, and those of all clients whose last password was wrong.
const OF_CLIENT: usize = 4;
const OF_FAILED: usize = 2;
/// Clients that are remembered as such.
const MOST_FAILED: usize = 1024;
/// Maximum length of the header in bytes; bcrypt reads at most 72 bytes of a password.
const LONGEST: usize = 2 * 1024;

/// Result of the authentication of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request is authenticated, or no users are listed.
    Welcome,
    /// The user or the password is wrong, or missing.
    Stranger,
    /// Too many checks are waiting.
    Crowded,
}

/// The users of the web-config file; an empty list allows every client.
#[derive(Debug)]
pub struct Users {
    hashes: BTreeMap<String, String>,
    memory: Arc<Memory>,
}

/// State that is kept when the web-config file changes.
#[derive(Debug)]
pub(crate) struct Memory {
    key: hmac::Key,
    known: Mutex<VecDeque<Vec<u8>>>,
    waiting: Mutex<Waiting>,
    one_at_a_time: Arc<Semaphore>,
}

/// The clients whose checks wait, and those whose last password was wrong, the latest last.
#[derive(Debug, Default)]
struct Waiting {
    checks: HashMap<Owner, usize>,
    failed: VecDeque<Owner>,
}

impl Waiting {
    fn admits(&self, client: Owner) -> bool {
        let has_failed = |client: &Owner| self.failed.contains(client);
        let of_failed: usize =
            self.checks.iter().filter(|(other, _)| has_failed(other)).map(|(_, checks)| checks).sum();
        let own = self.checks.get(&client).copied().unwrap_or(0);
        let (most, has_room) =
            if has_failed(&client) { (1, of_failed < OF_FAILED) } else { (OF_CLIENT, true) };
        own < most && has_room && self.checks.values().sum::<usize>() < QUEUE
    }

    /// Remembers how the last check of a client ended.
    fn note(&mut self, client: Owner, is_right: bool) {
        self.failed.retain(|other| *other != client);
        if !is_right {
            self.failed.push_back(client);
            let excess = self.failed.len().saturating_sub(MOST_FAILED);
            self.failed.drain(..excess);
        }
    }
}

/// A place among the waiting checks, given back when dropped.
struct WaitingPlace<'m>(&'m Memory, Owner);

impl Drop for WaitingPlace<'_> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.0.waiting);
        let left = waiting.checks.get(&self.1).map_or(0, |checks| checks.saturating_sub(1));
        if left == 0 {
            waiting.checks.remove(&self.1);
        } else {
            waiting.checks.insert(self.1, left);
        }
    }
}

impl Memory {
    pub(crate) fn new() -> Self {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .expect("the kernel's random numbers cannot fail once the system has started");
        Self {
            key,
            known: Mutex::default(),
            waiting: Mutex::default(),
            one_at_a_time: Arc::new(Semaphore::new(1)),
        }
    }

    /// The HMAC of user, hash and password, each preceded by its length, so that different triples never give the
    /// same input.
    fn tag(&self, user: &str, hash: &str, password: &[u8]) -> Vec<u8> {
        let mut context = hmac::Context::with_key(&self.key);
        for part in [user.as_bytes(), hash.as_bytes(), password] {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        context.sign().as_ref().to_vec()
    }

    /// A place for a check of this client; absent where too many wait.
    fn place(&self, client: Owner) -> Option<WaitingPlace<'_>> {
        let mut waiting = lock(&self.waiting);
        if !waiting.admits(client) {
            return None;
        }
        *waiting.checks.entry(client).or_default() += 1;
        Some(WaitingPlace(self, client))
    }

    fn known(&self) -> std::sync::MutexGuard<'_, VecDeque<Vec<u8>>> {
        lock(&self.known)
    }
}

impl Users {
    pub(crate) fn new(hashes: BTreeMap<String, String>, memory: Arc<Memory>) -> Self {
        Self { hashes, memory }
    }

    /// Whether any user is listed.
    pub fn anybody(&self) -> bool {
        !self.hashes.is_empty()
    }

    /// Checks the `Authorization` header of a request.
    pub async fn check(&self, headers: &HeaderMap, open: &Request, client: Owner) -> Verdict {
        let Some(example) = self.hashes.values().next() else { return Verdict::Welcome };
        let Some((user, password)) = headers.get(header::AUTHORIZATION).and_then(credentials) else {
            return Verdict::Stranger;
        };
        // For an unknown user the hash of another user is computed too, and its result ignored.
        let hash = self.hashes.get(&user);
        let tag = self.memory.tag(&user, hash.unwrap_or(example), &password);
        if hash.is_some() && self.memory.known().contains(&tag) {
            return Verdict::Welcome;
        }
        let turn = {
            // Applies to known and unknown users, so that a refusal does not reveal whether the user exists.
            let Some(_place) = self.memory.place(client) else { return Verdict::Crowded };
            let _waits = open.waits();
            Arc::clone(&self.memory.one_at_a_time).acquire_owned().await
        };
        let Ok(turn) = turn else { return Verdict::Stranger };
        // Another connection may have been authenticated with the same password meanwhile.
        if hash.is_some() && self.memory.known().contains(&tag) {
            return Verdict::Welcome;
        }
        let tried = hash.unwrap_or(example).clone();
        let right = tokio::task::spawn_blocking(move || {
            // The permit is released when the work ends, even if the client has disconnected before.
            let _turn = turn;
            bcrypt::verify(password, &tried).unwrap_or(false)
        });
        let is_right = right.await.unwrap_or(false) && hash.is_some();
        lock(&self.memory.waiting).note(client, is_right);
        if !is_right {
            return Verdict::Stranger;
        }
        let mut known = self.memory.known();
        if known.len() == REMEMBERED {
            known.pop_front();
        }
        known.push_back(tag);
        Verdict::Welcome
    }
}

/// User and password of a `Basic` authorization.
fn credentials(value: &header::HeaderValue) -> Option<(String, Vec<u8>)> {
    let text = value.to_str().ok().filter(|text| text.len() <= LONGEST)?;
    let (scheme, encoded) = text.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = STANDARD.decode(encoded.trim()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let user = String::from_utf8(decoded[..colon].to_vec()).ok()?;
    Some((user, decoded[colon + 1..].to_vec()))
}

/// Reads an `Authorization` header, for fuzzing.
#[cfg(any(fuzzing, test, feature = "testing"))]
pub fn fuzz_authorization(value: &header::HeaderValue) {
    let _ = credentials(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::{Meter, Phase, Times};
    use std::time::Duration;

    fn request(user: &str, password: &str) -> HeaderMap {
        let credentials = format!("{user}:{password}");
        let mut headers = HeaderMap::new();
        let value = format!("Basic {}", STANDARD.encode(credentials));
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        headers
    }

    /// The lowest cost there is: tests need no security.
    fn users(list: &[(&str, &str)]) -> Users {
        let hash = |(user, password): &(&str, &str)| ((*user).to_owned(), bcrypt::hash(password, 4).unwrap());
        Users::new(list.iter().map(hash).collect(), Arc::new(Memory::new()))
    }

    fn meter() -> Arc<Meter> {
        let minute = Duration::from_secs(60);
        Arc::new(Meter::new(Times { header: minute, request: minute, idle: minute }))
    }

    async fn judge(users: &Users, headers: &HeaderMap) -> Verdict {
        judge_from(users, headers, Owner::User(1)).await
    }

    async fn judge_from(users: &Users, headers: &HeaderMap, client: Owner) -> Verdict {
        users.check(headers, &meter().request(), client).await
    }

    #[tokio::test]
    async fn passwords_are_checked() {
        let users = users(&[("alice", "secret"), ("bob", "")]);
        assert_eq!(judge(&users, &HeaderMap::new()).await, Verdict::Stranger);
        assert_eq!(judge(&users, &request("alice", "wrong")).await, Verdict::Stranger);
        assert_eq!(judge(&users, &request("carol", "secret")).await, Verdict::Stranger);
        assert_eq!(judge(&users, &request("", "")).await, Verdict::Stranger);
        assert_eq!(users.memory.known().len(), 0, "failures are not remembered");
        for _ in 0..2 {
            assert_eq!(judge(&users, &request("alice", "secret")).await, Verdict::Welcome);
            assert_eq!(judge(&users, &request("bob", "")).await, Verdict::Welcome);
        }
        assert_eq!(users.memory.known().len(), 2);
        // An unknown user with the password of the one whose hash stands in for the missing one.
        assert_eq!(judge(&users, &request("mallory", "secret")).await, Verdict::Stranger);
    }

    #[tokio::test]
    async fn a_changed_hash_forgets_the_old_password() {
        let before = users(&[("alice", "old")]);
        assert_eq!(judge(&before, &request("alice", "old")).await, Verdict::Welcome);
        let hashes = [("alice".to_owned(), bcrypt::hash("new", 4).unwrap())].into();
        let after = Users::new(hashes, Arc::clone(&before.memory));
        assert_eq!(judge(&after, &request("alice", "old")).await, Verdict::Stranger);
        assert_eq!(judge(&after, &request("alice", "new")).await, Verdict::Welcome);
    }

    #[tokio::test]
    async fn few_wait_for_their_turn() {
        let users = Arc::new(users(&[("alice", "secret"), ("bob", "secret")]));
        assert_eq!(judge(&users, &request("alice", "secret")).await, Verdict::Welcome);
        let turn = Arc::clone(&users.memory.one_at_a_time).acquire_owned().await.unwrap();
        let mut waiting = tokio::task::JoinSet::new();
        let meters: Vec<_> = (0..QUEUE).map(|_| meter()).collect();
        for (number, meter) in (0..).zip(&meters) {
            let (users, open) = (Arc::clone(&users), meter.request());
            let client = Owner::User(number / 4);
            waiting.spawn(async move { users.check(&request("alice", "wrong"), &open, client).await });
        }
        while lock(&users.memory.waiting).checks.values().sum::<usize>() < QUEUE {
            tokio::task::yield_now().await;
        }
        assert!(meters.iter().all(|meter| meter.phase().0 == Phase::Waiting), "they may make room");
        for (user, password) in [("alice", "wrong"), ("bob", "secret"), ("nobody", "wrong")] {
            assert_eq!(judge(&users, &request(user, password)).await, Verdict::Crowded, "{user}");
        }
        assert_eq!(judge(&users, &request("alice", "secret")).await, Verdict::Welcome, "known already");
        drop(turn);
        assert_eq!(waiting.join_all().await, [Verdict::Stranger; QUEUE]);
        assert_eq!(judge(&users, &request("bob", "secret")).await, Verdict::Welcome);
    }

    #[tokio::test]
    async fn a_client_with_wrong_passwords_leaves_places_to_others() {
        let users = Arc::new(users(&[("alice", "secret")]));
        let (guesser, scraper) = (Owner::User(7), Owner::User(8));
        assert_eq!(judge_from(&users, &request("alice", "wrong"), guesser).await, Verdict::Stranger);
        let turn = Arc::clone(&users.memory.one_at_a_time).acquire_owned().await.unwrap();
        let mut waiting = tokio::task::JoinSet::new();
        for client in [guesser, guesser, guesser, scraper] {
            let (users, password) = (Arc::clone(&users), if client == scraper { "secret" } else { "guess" });
            waiting.spawn(async move { judge_from(&users, &request("alice", password), client).await });
        }
        while !lock(&users.memory.waiting).checks.contains_key(&scraper) {
            tokio::task::yield_now().await;
        }
        drop(turn);
        let verdicts = waiting.join_all().await;
        let count = |verdict| verdicts.iter().filter(|other| **other == verdict).count();
        assert_eq!([Verdict::Welcome, Verdict::Stranger, Verdict::Crowded].map(count), [1, 1, 2]);
        for number in 0..2_000 {
            lock(&users.memory.waiting).note(Owner::User(number), false);
        }
        assert_eq!(lock(&users.memory.waiting).failed.len(), MOST_FAILED);
    }

    #[tokio::test]
    async fn the_memory_is_bounded() {
        let memory = Arc::new(Memory::new());
        for n in 0..REMEMBERED + 5 {
            let user = format!("u{n}");
            let users =
                Users::new([(user.clone(), bcrypt::hash("x", 4).unwrap())].into(), Arc::clone(&memory));
            assert_eq!(judge(&users, &request(&user, "x")).await, Verdict::Welcome);
        }
        assert_eq!(memory.known().len(), REMEMBERED);
    }

    #[test]
    fn credentials_are_read_strictly() {
        let read = |text: &str| credentials(&header::HeaderValue::from_str(text).unwrap());
        assert_eq!(read("Basic YTpi"), Some(("a".to_owned(), b"b".to_vec())));
        assert_eq!(read("basic YTo="), Some(("a".to_owned(), Vec::new())));
        for wrong in ["", "YTp", "YTo", "Y===", "YT=i", "YT i", "YTp-", "====", "YQ=="] {
            assert_eq!(read(&format!("Basic {wrong}")), None, "{wrong}");
        }
        assert_eq!(read("Bearer YTpi"), None);
    }
}
