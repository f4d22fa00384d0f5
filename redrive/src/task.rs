//! A task: one durable call. [`NewTask`] is one to be written down, [`Task`] one that was.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::classify::{Failure, Kind};
use crate::clock::Timestamp;
use crate::error::{Error, Problems, Result};
use crate::id::{IdMaker, SHARDS, TaskId};
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
}

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
    /// How often it was woken.
    pub wakes: u32,
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
}

impl Task {
    /// The shard it belongs to.
    pub fn shard(&self) -> u8 {
        self.id.shard()
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

/// What makes two enqueues the same task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Key {
    /// The same method with the same params: `method:hash(params)`.
    #[default]
    FromParams,
    /// Given.
    Given(String),
    /// Nothing: every enqueue is a task of its own. Cheaper.
    None,
}

/// What an enqueue does when a task with its key lives already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDuplicate {
    /// Leaves it as it is and names it.
    #[default]
    Keep,
    /// Gives it the new policy, and names it.
    ReplacePolicy,
}

/// A task to be written down.
///
/// ```
/// use redrive::NewTask;
/// use std::time::Duration;
///
/// #[derive(serde::Serialize)]
/// struct Charge { order: u64, cents: u64 }
///
/// let task = NewTask::new("charge", &Charge { order: 7, cents: 4200 })?
///     .key("charge-7")
///     .business("order", "7")
///     .delay(Duration::from_secs(30));
/// # Ok::<(), redrive::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NewTask {
    pub(crate) method: String,
    pub(crate) params: String,
    pub(crate) lane: Option<Lane>,
    pub(crate) key: Key,
    pub(crate) business: Option<Business>,
    pub(crate) policy: Arc<Policy>,
    pub(crate) due: Due,
    pub(crate) priority: i16,
    pub(crate) dedup_for: Duration,
    pub(crate) on_duplicate: OnDuplicate,
    pub(crate) failed: Option<Failure>,
    pub(crate) owner: Option<NodeNumber>,
    pub(crate) traceparent: Option<String>,
    pub(crate) created_by: Option<String>,
    pub(crate) origin_id: Option<TaskId>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    In(Duration),
    At(Timestamp),
}

static DEFAULT_POLICY: LazyLock<Arc<Policy>> = LazyLock::new(Arc::default);

/// The default policy, shared.
pub(crate) fn default_policy() -> Arc<Policy> {
    DEFAULT_POLICY.clone()
}

impl NewTask {
    /// A call of `method` with `params`.
    pub fn new(method: impl Into<String>, params: &(impl Serialize + ?Sized)) -> Result<Self> {
        let method = method.into();
        let params = serde_json::to_string(params)
            .map_err(|e| Error::invalid("params", format!("of {method:?} cannot be written as JSON: {e}")))?;
        Ok(Self::with_json(method, params))
    }

    /// A call of `method` with params that are JSON already.
    pub fn from_json(method: impl Into<String>, params: impl Into<String>) -> Result<Self> {
        let (method, params) = (method.into(), params.into());
        serde_json::from_str::<serde::de::IgnoredAny>(&params)
            .map_err(|e| Error::invalid("params", format!("of {method:?} are not JSON: {e}")))?;
        Ok(Self::with_json(method, params))
    }

    fn with_json(method: String, params: String) -> Self {
        Self {
            method,
            params,
            lane: None,
            key: Key::default(),
            business: None,
            policy: default_policy(),
            due: Due::In(Duration::ZERO),
            priority: 0,
            dedup_for: Duration::ZERO,
            on_duplicate: OnDuplicate::default(),
            failed: None,
            owner: None,
            traceparent: None,
            created_by: None,
            origin_id: None,
        }
    }

    /// Under this policy. Default: [`Policy::default`].
    pub fn policy(mut self, policy: impl Into<Arc<Policy>>) -> Self {
        self.policy = policy.into();
        self
    }

    /// With this key. Default: from method and params.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Key::Given(key.into());
        self
    }

    /// Without a key: every enqueue is a task of its own.
    pub fn no_key(mut self) -> Self {
        self.key = Key::None;
        self
    }

    /// What it is about. Its key is then unique within this business only.
    pub fn business(mut self, kind: impl Into<String>, id: impl Into<String>) -> Self {
        self.business = Some(Business { kind: kind.into(), id: id.into() });
        self
    }

    /// Not before this much time has passed.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.due = Due::In(delay);
        self
    }

    /// Not before this moment.
    pub fn at(mut self, due: Timestamp) -> Self {
        self.due = Due::At(due);
        self
    }

    /// Among what is due, the greater goes first. Default: 0.
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    /// The key goes on standing for this task for so long after it is done. Default: not at all.
    pub fn dedup_for(mut self, time: Duration) -> Self {
        self.dedup_for = time;
        self
    }

    /// What to do when a task with this key lives already. Default: leave it as it is.
    pub fn on_duplicate(mut self, what: OnDuplicate) -> Self {
        self.on_duplicate = what;
        self
    }

    /// Scheduled by this lane instead of its method's.
    pub fn lane(mut self, lane: Lane) -> Self {
        self.lane = Some(lane);
        self
    }

    /// It has been tried once, inline, and failed like this.
    pub fn after_failure(mut self, failure: Failure) -> Self {
        self.failed = Some(failure);
        self
    }

    /// Written down as running under this node already.
    pub fn running_on(mut self, node: NodeNumber) -> Self {
        self.owner = Some(node);
        self
    }

    /// The trace that it belongs to (W3C `traceparent`).
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.traceparent = Some(traceparent.into());
        self
    }

    /// Who enqueues it.
    pub fn created_by(mut self, who: impl Into<String>) -> Self {
        self.created_by = Some(who.into());
        self
    }

    /// All that is wrong with it, if anything is.
    fn check(&self, max_params: usize) -> Result<()> {
        let mut problems = Problems::default();
        let p = &mut problems;
        check_text("method", &self.method, 1, limits::METHOD, p);
        if let Key::Given(key) = &self.key {
            check_text("key", key, 1, limits::KEY, p);
        }
        if let Some(b) = &self.business {
            check_text("business_type", &b.kind, 1, limits::BUSINESS_TYPE, p);
            check_text("business_id", &b.id, 1, limits::BUSINESS_ID, p);
        }
        self.created_by.iter().for_each(|by| check_text("created_by", by, 1, limits::BY, p));
        self.traceparent.iter().for_each(|t| check_text("traceparent", t, 1, limits::TRACEPARENT, p));
        p.require(self.params.len() <= max_params, "params", || {
            format!(
                "are {} bytes, the limit is {max_params}; keep large data elsewhere and pass its id",
                self.params.len()
            )
        });
        p.require(self.dedup_for <= crate::duration::LONGEST, "dedup_for", || "must be at most 3650days".into());
        if let Err(Error::Invalid(inner)) = self.policy.validate() {
            p.nest("policy", inner);
        }
        problems.into_result()
    }

    /// The row that it becomes, with a new id.
    pub(crate) fn into_task(self, ids: &IdMaker, now: Timestamp, max_params: usize) -> Result<Task> {
        self.check(max_params)?;
        let key = match self.key {
            Key::FromParams => Some(params_key(&self.method, &self.params)),
            Key::Given(key) => Some(key),
            Key::None => None,
        };
        let shard = match (&self.business, &key) {
            (Some(b), _) => shard_of(&b.id),
            (None, Some(key)) => shard_of(key),
            (None, None) => ids.any_shard(),
        };
        let due = match self.due {
            Due::In(delay) => now + delay,
            Due::At(at) => at.max(Timestamp::EPOCH),
        };
        let last_error = self.failed.as_ref().map(|f| LastError::new(f, now));
        Ok(Task {
            id: ids.next(shard, now),
            lane: self.lane.unwrap_or_else(|| Lane::of(&self.method)),
            method: self.method,
            params: self.params,
            key,
            business: self.business,
            status: if self.owner.is_some() { Status::Running } else { Status::Pending },
            policy: self.policy,
            attempts: u32::from(self.failed.is_some()),
            crashes: 0,
            postponements: 0,
            wakes: 0,
            due,
            priority: self.priority,
            dedup_for: self.dedup_for,
            created_at: now,
            updated_at: now,
            first_failed_at: self.failed.is_some().then_some(now),
            history: last_error.iter().map(|e| Attempt::new(1, e, None)).collect(),
            last_error,
            version: 0,
            locked_by: self.owner,
            locked_at: self.owner.map(|_| now),
            stop: StopRequest::None,
            notified_at: None,
            traceparent: self.traceparent,
            origin_id: self.origin_id,
            created_by: self.created_by,
            updated_by: None,
        })
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
        Self { n, at: error.at, kind: error.kind.clone(), message, node }
    }
}

/// Text as every database can hold it: at most `max` bytes, cut between characters, without NUL.
pub(crate) fn storable(text: &str, max: usize) -> String {
    let mut text = text[..text.floor_char_boundary(max)].replace('\0', "\u{fffd}");
    text.truncate(text.floor_char_boundary(max)); // the replacement is longer than NUL
    text
}

fn check_text(field: &str, text: &str, min: usize, max: usize, problems: &mut Problems) {
    problems.require((min..=max).contains(&text.len()), field, || {
        format!("must be from {min} to {max} bytes, is {}", text.len())
    });
    problems.require(!text.contains('\0'), field, || "must not contain NUL bytes".into());
}

/// The shard of a business id or key.
pub(crate) fn shard_of(text: &str) -> u8 {
    (xxhash_rust::xxh3::xxh3_64(text.as_bytes()) % u64::from(SHARDS)) as u8
}

/// `method:hash`, the key of a call that is given none: the same method with the same params, however
/// the params' object keys are ordered. A method too long to leave room for the hash is hashed as well.
fn params_key(method: &str, params: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    match serde_json::from_str::<serde_json::Value>(params) {
        Ok(value) => hash_canonical(&value, &mut hasher),
        Err(_) => _ = hasher.update(params.as_bytes()),
    }
    let hash = hex(&hasher.finalize().as_bytes()[..16]);
    if method.len() + 1 + hash.len() <= limits::KEY {
        return format!("{method}:{hash}");
    }
    format!("{}:{hash}", hex(&blake3::hash(method.as_bytes()).as_bytes()[..16]))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Feeds JSON to a hash with the keys of objects in order.
fn hash_canonical(value: &serde_json::Value, hasher: &mut blake3::Hasher) {
    use serde_json::Value;
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by_key(|(name, _)| *name);
            hasher.update(b"{");
            for (name, value) in entries {
                hash_canonical(&Value::String(name.clone()), hasher);
                hasher.update(b":");
                hash_canonical(value, hasher);
                hasher.update(b",");
            }
            hasher.update(b"}");
        }
        Value::Array(items) => {
            hasher.update(b"[");
            for item in items {
                hash_canonical(item, hasher);
                hasher.update(b",");
            }
            hasher.update(b"]");
        }
        leaf => _ = hasher.update(leaf.to_string().as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(new: NewTask) -> Result<Task> {
        new.into_task(&IdMaker::new(1), Timestamp::from_millis(1_800_000_000_000), limits::PARAMS)
    }

    #[test]
    fn the_key_of_a_call_is_its_method_and_params_in_any_order() {
        let key = |json: &str| task(NewTask::from_json("m", json).unwrap()).unwrap().key.unwrap();
        assert_eq!(key(r#"{"a":1,"b":[1,2]}"#), key(r#"{ "b":[1,2], "a":1 }"#));
        for (one, other) in [("[1,2]", "[12]"), ("[[1],2]", "[1,[2]]"), ("{}", "[]"), (r#"{"a":1}"#, r#"{"a":"1"}"#)] {
            assert_ne!(key(one), key(other));
        }
        assert!(key("1").starts_with("m:"));
        let long = task(NewTask::from_json("m".repeat(500), "1").unwrap()).unwrap();
        assert!(long.key.unwrap().len() <= limits::KEY);
    }

    #[test]
    fn a_key_is_unique_within_its_business_only() {
        let hash = |new: NewTask| task(new.key("k")).unwrap().key_hash().unwrap();
        let new = || NewTask::new("m", &1).unwrap();
        assert_ne!(hash(new()), hash(new().business("order", "1")));
        assert_ne!(hash(new().business("order", "1")), hash(new().business("order", "2")));
        assert_eq!(hash(new().business("order", "1")), hash(NewTask::new("other", &2).unwrap().business("order", "1")));
    }

    #[test]
    fn tasks_of_one_business_share_a_shard() {
        let shard = |key: &str| task(NewTask::new("m", &1).unwrap().key(key).business("order", "1")).unwrap().shard();
        assert_eq!(shard("a"), shard("b"));
        assert_eq!(shard("a"), shard_of("1"));
    }

    #[test]
    fn all_that_is_wrong_with_a_task_is_listed() {
        let policy = Policy { max_attempts: Some(0), ..Policy::default() };
        let new = NewTask::new("m\0", &"x".repeat(limits::PARAMS)).unwrap();
        let new = new.key("k".repeat(256)).business("", "é".repeat(51)).policy(policy);
        let said = task(new).unwrap_err().to_string();
        for part in [
            "method: must not contain NUL",
            "key: must be from 1 to 255 bytes, is 256",
            "business_type",
            "business_id",
            "params: are 1048578 bytes, the limit is 1048576",
            "policy.max_attempts",
        ] {
            assert!(said.contains(part), "{part:?} is missing in: {said}");
        }
    }

    #[test]
    fn stored_text_is_cut_between_characters_and_has_no_nul() {
        assert_eq!(storable("ab\0", 10), "ab\u{fffd}");
        assert_eq!(storable("é漢字", 4), "é");
        assert_eq!(storable("\0\0\0", 4), "\u{fffd}");
    }
}
