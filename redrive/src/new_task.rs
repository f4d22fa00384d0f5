//! A task to be written down: what is asked for, whether it is valid, and the row that it becomes.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::classify::Failure;
use crate::clock::Timestamp;
use crate::crypt::Keyring;
use crate::error::{Error, Problems, Result};
use crate::id::{IdMaker, SHARDS, TaskId};
use crate::policy::Policy;
use crate::task::{Attempt, Business, Lane, LastError, NodeNumber, Status, StopRequest, Task, limits};

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
    /// `None`: a new one.
    pub(crate) id: Option<TaskId>,
    pub(crate) method: String,
    pub(crate) params: String,
    /// Whether the params are to be encrypted.
    pub(crate) encrypt: bool,
    pub(crate) lane: Option<Lane>,
    pub(crate) key: Key,
    pub(crate) business: Option<Business>,
    /// `None`: the default one.
    pub(crate) policy: Option<Arc<Policy>>,
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
            id: None,
            method,
            params,
            encrypt: false,
            lane: None,
            key: Key::default(),
            business: None,
            policy: None,
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

    /// Under this policy. Default: the one of the settings, which is [`Policy::default`] if they do not say otherwise.
    pub fn policy(mut self, policy: impl Into<Arc<Policy>>) -> Self {
        self.policy = Some(policy.into());
        self
    }

    /// Under this policy, if it was given none.
    pub(crate) fn or_policy(mut self, policy: impl FnOnce(&str) -> Arc<Policy>) -> Self {
        self.policy = self.policy.or_else(|| Some(policy(&self.method)));
        self
    }

    /// With its params encrypted where they are stored; the store must have a key for it.
    pub fn encrypt(mut self) -> Self {
        self.encrypt = true;
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

    /// Scheduled with others of this part of its method, such as the host that it calls. For methods that are
    /// [split](crate::Builder::split): elsewhere nobody would look for it.
    pub fn part(mut self, part: &str) -> Self {
        self.lane = Some(Lane::part(&self.method, part));
        self
    }

    /// It has been tried once, inline, and failed like this.
    #[doc(hidden)]
    pub fn after_failure(mut self, failure: Failure) -> Self {
        self.failed = Some(failure);
        self
    }

    /// Written down as running under this node already.
    #[doc(hidden)]
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
        if let Some(policy) = &self.policy
            && let Err(Error::Invalid(inner)) = policy.validate()
        {
            p.nest("policy", inner);
        }
        problems.into_result()
    }

    /// Its key, made of method and params if it was given none.
    pub(crate) fn resolved_key(&self, ring: Option<&Keyring>) -> Option<String> {
        match &self.key {
            Key::FromParams => Some(params_key(&self.method, &self.params, ring.and_then(Keyring::dedup_key))),
            Key::Given(key) => Some(key.clone()),
            Key::None => None,
        }
    }

    /// The shard that it belongs to; `None`: any.
    pub(crate) fn shard(&self, ring: Option<&Keyring>) -> Option<u8> {
        shard_for(self.business.as_ref(), self.resolved_key(ring).as_deref())
    }

    /// The row that it becomes, with a new id.
    pub(crate) fn into_task(self, maker: &Maker<'_>, now: Timestamp) -> Result<Task> {
        self.check(maker.max_params)?;
        let ids = maker.ids;
        let ring = maker.keyring.filter(|ring| self.encrypt || ring.encrypts_all());
        if self.encrypt && ring.is_none() {
            return Err(Error::invalid("encrypt", "the store has no keys: open it with StoreOptions::keyring"));
        }
        let key = self.resolved_key(ring);
        let shard = shard_for(self.business.as_ref(), key.as_deref());
        let due = match self.due {
            Due::In(delay) => now + delay,
            Due::At(at) => at.max(Timestamp::EPOCH),
        };
        let last_error = self.failed.as_ref().map(|f| LastError::new(f, now));
        Ok(Task {
            id: self.id.unwrap_or_else(|| ids.next(shard.unwrap_or_else(|| ids.any_shard()), now)),
            lane: self.lane.unwrap_or_else(|| Lane::of(&self.method)),
            params: ring.map_or(Ok(self.params.clone()), |ring| ring.seal(&self.method, &self.params))?,
            method: self.method,
            key,
            business: self.business,
            status: if self.owner.is_some() { Status::Running } else { Status::Pending },
            policy: self.policy.unwrap_or_else(default_policy),
            attempts: u32::from(self.failed.is_some()),
            crashes: 0,
            postponements: 0,
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
            undecodable: None,
        })
    }
}

fn check_text(field: &str, text: &str, min: usize, max: usize, problems: &mut Problems) {
    problems.require((min..=max).contains(&text.len()), field, || {
        format!("must be from {min} to {max} bytes, is {}", text.len())
    });
    problems.require(!text.contains('\0'), field, || "must not contain NUL bytes".into());
}

/// What makes tasks of what is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maker<'a> {
    pub(crate) ids: &'a IdMaker,
    pub(crate) max_params: usize,
    pub(crate) keyring: Option<&'a Keyring>,
}

/// The shard of a task of this business and key; `None`: any.
fn shard_for(business: Option<&Business>, key: Option<&str>) -> Option<u8> {
    business.map(|b| &*b.id).or(key).map(shard_of)
}

/// The shard of a business id or key.
pub(crate) fn shard_of(text: &str) -> u8 {
    (xxhash_rust::xxh3::xxh3_64(text.as_bytes()) % u64::from(SHARDS)) as u8
}

/// `method:hash`, the key of a call that is given none: the same method with the same params, however
/// the params' object keys are ordered. A method too long to leave room for the hash is hashed as well. With a secret for
/// params that are encrypted: a plain hash would tell which they are.
fn params_key(method: &str, params: &str, secret: Option<[u8; 32]>) -> String {
    let mut hasher = secret.map_or_else(blake3::Hasher::new, |secret| blake3::Hasher::new_keyed(&secret));
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
pub(crate) fn hash_canonical(value: &serde_json::Value, hasher: &mut blake3::Hasher) {
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
        let maker =
            Maker { ids: &IdMaker::new(1, std::sync::Arc::default()), max_params: limits::PARAMS, keyring: None };
        new.into_task(&maker, Timestamp::from_millis(1_800_000_000_000))
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
}
