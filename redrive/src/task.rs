//! A task: one durable call, as it is written down.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::classify::{Failure, Kind};
use crate::clock::Timestamp;
use crate::duration;
use crate::id::TaskId;
use crate::policy::Policy;

/// Longest values, in bytes.
pub mod limits {
    /// Of a method's name.
    pub const METHOD: usize = 500;
    /// Of a key.
    pub const KEY: usize = 255;
    /// Of a business id.
    pub const BUSINESS_ID: usize = 100;
    /// Of a business type.
    pub const BUSINESS_TYPE: usize = 50;
    /// Of a stored error message; longer ones are cut.
    pub const ERROR: usize = 8 * 1024;
    /// Of params, unless set otherwise on the store.
    pub const PARAMS: usize = 1024 * 1024;
    /// Of who enqueued it.
    pub const BY: usize = 100;
    /// Of a trace context.
    pub const TRACEPARENT: usize = 100;
    /// How many attempts the history keeps: the latest ones.
    pub const HISTORY: usize = 10;
    /// Of an error message in the history.
    pub const HISTORY_ERROR: usize = 200;
}

/// Where a task in the task table stands. Everything final has left the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// Waits to be due, or is due and waits for a node.
    Pending,
    /// A node is executing it.
    Running,
}

/// The number of a node: fresh at each start, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeNumber(pub i64);

impl fmt::Display for NodeNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a task is scheduled by: its method, or its target's host. The unit of fairness, limits, pause
/// and gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lane(pub i32);

impl Lane {
    /// The lane of a method or host: a hash of its name, so that every process agrees without asking.
    pub fn of(name: &str) -> Self {
        Self((xxhash_rust::xxh3::xxh3_64(name.as_bytes()) >> 33) as i32)
    }

    /// The lane of a part of a method that is split, such as a target's host. They are negative, which no method's is: 11 bits of
    /// the method, so that its parts are next to each other, and 20 of the part. Parts that share a lane share its limits.
    pub fn part(method: &str, part: &str) -> Self {
        let hash = xxhash_rust::xxh3::xxh3_64(part.as_bytes()) % u64::from(PARTS); // never the last one: -1 is nobody's
        Self(Self::parts_of(method).start().0 | hash as i32)
    }

    /// The lanes of all parts of a method.
    pub(crate) fn parts_of(method: &str) -> RangeInclusive<Self> {
        let first = i32::MIN | (Self::of(method).0 >> PART_BITS) << PART_BITS;
        Self(first)..=Self(first | PARTS as i32)
    }
}

const PART_BITS: u32 = 20;
const PARTS: u32 = (1 << PART_BITS) - 1;

/// What a task is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Business {
    /// Such as `order`.
    #[serde(rename = "business_type")]
    pub kind: String,
    /// Such as the order's number.
    #[serde(rename = "business_id")]
    pub id: String,
}

/// A business id as a number that is never 0. Two ids may share one.
pub(crate) fn business_hash(id: &str) -> u32 {
    (xxhash_rust::xxh3::xxh3_64(id.as_bytes()) as u32).max(1)
}

/// A person's wish about a task that is running; its owner follows it when the attempt has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopRequest {
    /// None.
    #[default]
    None,
    /// Cancel it, unless this attempt succeeds.
    Cancel,
    /// Fail it, unless this attempt succeeds.
    Fail,
}

/// The last error of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastError {
    /// Its kind.
    pub kind: Kind,
    /// What it said, cut at 8 KiB.
    pub message: String,
    /// When.
    pub at: Timestamp,
}

/// One failed attempt in a task's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Which one, from 1; crashes carry the number of the attempt that they interrupted.
    pub n: u32,
    /// When it ended.
    pub at: Timestamp,
    /// The kind of error.
    pub kind: Kind,
    /// The start of the error's message.
    pub message: String,
    /// The node that ran it, if it was a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeNumber>,
    /// How many attempts it stands for: those that ended alike and used up no attempt are noted together.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub times: u32,
    /// For how long the task was postponed because its target asked for a slower pace.
    #[serde(with = "duration", default, skip_serializing_if = "Duration::is_zero")]
    pub waited: Duration,
}

fn once() -> u32 {
    1
}
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde wants it")]
fn is_once(times: &u32) -> bool {
    *times == 1
}

/// A task that is written down.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Its name.
    pub id: TaskId,
    /// What it is scheduled by.
    pub lane: Lane,
    /// Which handler executes it.
    pub method: String,
    /// The arguments, as JSON.
    pub params: String,
    /// What makes two enqueues the same task.
    pub key: Option<String>,
    /// What it is about.
    pub business: Option<Business>,
    /// Pending or running.
    pub status: Status,
    /// How it is tried again.
    pub policy: Arc<Policy>,
    /// Executions that have ended and failed.
    pub attempts: u32,
    /// Nodes that died holding it.
    pub crashes: u32,
    /// How often it was put off without burning an attempt.
    pub postponements: u32,
    /// When it may run next.
    pub due: Timestamp,
    /// Among what is due, the greater goes first.
    pub priority: i16,
    /// How long its key outlives it.
    pub dedup_for: Duration,
    /// When it was written down.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// When it first failed.
    pub first_failed_at: Option<Timestamp>,
    /// How it last failed.
    pub last_error: Option<LastError>,
    /// The latest failed attempts, oldest first.
    pub history: Vec<Attempt>,
    /// The fence: grows with every claim, settle and rescue.
    pub version: i32,
    /// The node that has it, or had it last.
    pub locked_by: Option<NodeNumber>,
    /// Since when.
    pub locked_at: Option<Timestamp>,
    /// Whether a person wants it stopped.
    pub stop: StopRequest,
    /// When people were told that it keeps failing.
    pub notified_at: Option<Timestamp>,
    /// The trace that it belongs to.
    pub traceparent: Option<String>,
    /// The dead task that this one was redriven from.
    pub origin_id: Option<TaskId>,
    /// Who enqueued it.
    pub created_by: Option<String>,
    /// Who last changed it by hand.
    pub updated_by: Option<String>,
    /// The columns of its row that hold values which redrive never writes, and those values. Plain values stand here in
    /// their places. Such a task is not executed: it becomes a dead letter.
    pub undecodable: Option<String>,
}

impl Task {
    /// Whether no node has ever had it, nor the letter that it may come from.
    pub(crate) fn is_untouched(&self) -> bool {
        self.status == Status::Pending && self.version == 0 && self.origin_id.is_none()
    }

    /// The number of this attempt, from 0, whatever ended the ones before: a failure, a crash, a give-back. An attempt that was postponed and
    /// the one after it share a number. Grows, and may leave numbers out.
    pub(crate) fn turn(&self) -> u32 {
        (self.version.unsigned_abs() / 2).saturating_sub(self.postponements)
    }

    /// For how long it was postponed in all because its target asked for a slower pace.
    pub fn waited(&self) -> Duration {
        self.history.iter().map(|attempt| attempt.waited).sum()
    }

    /// The time by which an answer that asks for a slower pace postpones it, if it is due then. After an answer of that sort this
    /// counts from when it was due: its lane may have made it wait longer.
    pub(crate) fn waits_until(&self, due: Timestamp, now: Timestamp) -> Duration {
        let again = self.history.last().is_some_and(|last| !last.waited.is_zero() && last.n == self.attempts + 1);
        due.since(if again { self.due.min(now) } else { now })
    }

    /// Notes an attempt. Those that asked for a slower pace, and used up none, are noted together if they come one after the
    /// other, or if there is no place for each.
    pub(crate) fn remember(&mut self, mut attempt: Attempt) {
        let is_alike = |last: &mut Attempt| {
            !last.waited.is_zero() && !attempt.waited.is_zero() && (last.n, &last.kind) == (attempt.n, &attempt.kind)
        };
        if let Some(last) = self.history.pop_if(is_alike) {
            attempt.join(&last);
        }
        self.history.push(attempt);
        while self.history.len() > limits::HISTORY {
            let mut slow = self.history.iter().enumerate().filter(|(_, past)| !past.waited.is_zero()).map(|(i, _)| i);
            match (slow.next(), slow.next()) {
                (Some(first), Some(second)) => {
                    let first = self.history.remove(first);
                    self.history.iter_mut().skip(second - 1).take(1).for_each(|second| second.join(&first));
                }
                (Some(0), None) => _ = self.history.remove(1), // the time that it waited must not be forgotten
                _ => _ = self.history.remove(0),
            }
        }
    }

    /// The shard it belongs to.
    pub fn shard(&self) -> u8 {
        self.id.shard()
    }

    /// Whether its params are encrypted, and can be read by who has the key only.
    pub fn is_encrypted(&self) -> bool {
        crate::crypt::is_sealed(&self.params)
    }

    /// What holds its key in `redrive_key`: 128 bits over business and key, so that a key is unique
    /// within its business, whatever the database's collation.
    pub(crate) fn key_hash(&self) -> Option<KeyHash> {
        self.key.as_deref().map(|key| KeyHash::new(self.business.as_ref(), key))
    }
}

/// See [`Task::key_hash`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyHash(pub(crate) [u8; 16]);

impl KeyHash {
    fn new(business: Option<&Business>, key: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        if let Some(b) = business {
            // No value may contain NUL, so this cannot be mistaken for other values.
            [&b.kind, "\0", &b.id, "\0"].iter().for_each(|part| _ = hasher.update(part.as_bytes()));
        }
        hasher.update(key.as_bytes());
        let mut hash = [0; 16];
        hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(hash)
    }
}

impl LastError {
    pub(crate) fn new(failure: &Failure, at: Timestamp) -> Self {
        let mut kind = failure.kind.clone();
        if kind.as_str().len() > Kind::MAX || kind.as_str().contains('\0') {
            kind = Kind::from(storable(kind.as_str(), Kind::MAX));
        }
        Self { kind, message: storable(&failure.message, limits::ERROR), at }
    }
}

impl Attempt {
    pub(crate) fn new(n: u32, error: &LastError, node: Option<NodeNumber>) -> Self {
        let message = storable(&error.message, limits::HISTORY_ERROR);
        Self { n, at: error.at, kind: error.kind.clone(), message, node, times: 1, waited: Duration::ZERO }
    }
}

impl Attempt {
    /// It stands for an earlier one, too.
    fn join(&mut self, earlier: &Self) {
        self.times = self.times.saturating_add(earlier.times);
        self.waited = self.waited.saturating_add(earlier.waited);
    }
}

/// Text as every database can hold it: at most `max` bytes, cut between characters, without NUL.
pub(crate) fn storable(text: &str, max: usize) -> String {
    let mut text = text[..text.floor_char_boundary(max)].replace('\0', "\u{fffd}");
    text.truncate(text.floor_char_boundary(max)); // the replacement is longer than NUL
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settle::{Outcome, settle};

    #[test]
    fn stored_text_is_cut_between_characters_and_has_no_nul() {
        assert_eq!(storable("ab\0", 10), "ab\u{fffd}");
        assert_eq!(storable("é漢字", 4), "é");
        assert_eq!(storable("\0\0\0", 4), "\u{fffd}");
    }

    /// What happens to a task, and the turn that it has then.
    fn turns(is_born_running: bool, outcomes: &[Outcome]) -> Vec<u32> {
        let mut task = crate::testing::task(crate::NewTask::new("m", &1).unwrap());
        let claim = |task: &mut Task| (task.status, task.version) = (Status::Running, task.version + 1);
        if is_born_running {
            task.status = Status::Running;
        } else {
            claim(&mut task);
        }
        let mut turns = vec![task.turn()];
        for outcome in outcomes {
            task = task.after(&settle(&task, outcome, task.created_at, 0.5), task.created_at);
            claim(&mut task);
            turns.push(task.turn());
        }
        turns
    }

    #[test]
    fn every_attempt_has_a_turn_of_its_own_but_for_one_that_was_postponed() {
        let failed = || Outcome::Failed(crate::Failure::retry("timeout", "no answer"));
        let snooze = || Outcome::Snooze(Duration::from_secs(1));
        let sealed = || Outcome::Sealed("no key".into());
        for is_born_running in [true, false] {
            let after = |outcomes: &[Outcome]| turns(is_born_running, outcomes);
            assert_eq!(after(&[failed(), Outcome::GivenBack, Outcome::Crashed, sealed()]), [0, 1, 2, 3, 4]);
            assert_eq!(after(&[snooze(), snooze(), failed(), snooze()]), [0, 0, 0, 1, 1]);
        }
    }
}
