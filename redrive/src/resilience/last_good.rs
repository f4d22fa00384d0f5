//! The last good value, for while there is no new one: source 4's "return what the last successful request gave".
//!
//! For reads whose answer is the same for all users. It stands outside of the breaker: a breaker is about a service, a value
//! about one question to it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::permit::{BreakerError, Rejected, rejection};
use crate::clock::{Clock, Timestamp};

/// Keeps the last good value of each key, and gives it out while calls are rejected. Cheap to clone; clones share what they keep.
///
/// ```
/// use redrive::resilience::{CircuitBreaker, LastGood, Served};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
/// let (breaker, rates) = (CircuitBreaker::new("exchange"), LastGood::new());
/// let ask = async || rates.call("EUR", breaker.call(async { Ok::<f64, std::io::Error>(1.0842) })).await;
///
/// assert_eq!(ask().await.unwrap(), Served::Fresh(1.0842));
/// breaker.force_open();
/// let served = ask().await.unwrap();
/// assert!(served.is_stale());
/// assert_eq!(served.into_inner(), 1.0842);
/// # Ok(()) }
/// ```
pub struct LastGood<K, V> {
    kept: Arc<Mutex<Kept<K, V>>>,
    max_age: Duration,
    capacity: usize,
    after_failures: bool,
    clock: Clock,
}

/// A value, and whether it is of now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served<V> {
    /// It has just been asked for.
    Fresh(V),
    /// It is the last good one.
    Stale {
        /// The value.
        value: V,
        /// How long ago it was asked for.
        age: Duration,
    },
}

impl<V> Served<V> {
    /// The value, old or new.
    pub fn into_inner(self) -> V {
        match self {
            Self::Fresh(value) | Self::Stale { value, .. } => value,
        }
    }

    /// Whether it is the last good one.
    pub fn is_stale(&self) -> bool {
        matches!(self, Self::Stale { .. })
    }

    /// How old it is.
    pub fn age(&self) -> Duration {
        if let Self::Stale { age, .. } = self { *age } else { Duration::ZERO }
    }
}

/// An error that can be a rejection by a circuit breaker: then there was no call.
pub trait MaybeRejected {
    /// The rejection, if it is one.
    fn rejected(&self) -> Option<&Rejected>;
}

impl MaybeRejected for Rejected {
    fn rejected(&self) -> Option<&Rejected> {
        Some(self)
    }
}

impl<E> MaybeRejected for BreakerError<E> {
    fn rejected(&self) -> Option<&Rejected> {
        if let Self::Rejected(rejected) = self { Some(rejected) } else { None }
    }
}

/// As layers of tower pass errors on.
impl MaybeRejected for Box<dyn std::error::Error + Send + Sync> {
    fn rejected(&self) -> Option<&Rejected> {
        rejection(&**self)
    }
}

impl<K, V> Default for LastGood<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> LastGood<K, V> {
    /// Keeps 1,000 values at the most, and gives out none that is older than an hour.
    pub fn new() -> Self {
        Self {
            kept: Arc::default(),
            max_age: Duration::from_secs(3600),
            capacity: 1000,
            after_failures: false,
            clock: Clock::system(),
        }
    }

    /// An older value than this is not given out, and let go when the next one is kept, whichever of the clones keeps it.
    /// Default: 1 h.
    pub fn max_age(self, max_age: Duration) -> Self {
        Self { max_age, ..self }
    }

    /// How many keys are kept; beyond that those that were good the longest ago go. Default: 1,000.
    pub fn capacity(self, capacity: usize) -> Self {
        Self { capacity: capacity.max(1), ..self }
    }

    /// Gives the last good value also when a call was made and failed, not only when it was rejected.
    pub fn after_failures(self) -> Self {
        Self { after_failures: true, ..self }
    }

    /// The clock it goes by. Default: this machine's.
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }
}

impl<K: Clone + Eq + Hash, V: Clone> LastGood<K, V> {
    /// Makes a call. Its value is kept; if it is rejected, the last one that was kept is given, marked as stale. Without one the
    /// rejection stays what it is.
    pub async fn call<E: MaybeRejected>(
        &self,
        key: K,
        call: impl Future<Output = Result<V, E>>,
    ) -> Result<Served<V>, E> {
        match call.await {
            Ok(value) => {
                self.keep(key, value.clone());
                Ok(Served::Fresh(value))
            }
            Err(e) if self.after_failures || e.rejected().is_some() => self.get(&key).ok_or(e),
            Err(e) => Err(e),
        }
    }

    /// Keeps a value that is good now.
    pub fn keep(&self, key: K, value: V) {
        let now = self.clock.now();
        let mut kept = self.lock();
        kept.put(key, value, now);
        kept.let_go(now - self.max_age, self.capacity);
    }

    /// The last good value, if it is not too old.
    pub fn get(&self, key: &K) -> Option<Served<V>> {
        let now = self.clock.now();
        let kept = self.lock();
        let entry = kept.entries.get(key)?;
        let age = now.since(entry.at);
        (age <= self.max_age).then(|| Served::Stale { value: entry.value.clone(), age })
    }

    fn lock(&self) -> MutexGuard<'_, Kept<K, V>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The values, and their keys in the order in which they were last good.
struct Kept<K, V> {
    entries: HashMap<K, Entry<V>>,
    order: BTreeMap<u64, K>,
    next: u64,
}

struct Entry<V> {
    value: V,
    at: Timestamp,
    place: u64,
}

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), order: BTreeMap::new(), next: 0 }
    }
}

impl<K: Clone + Eq + Hash, V> Kept<K, V> {
    fn put(&mut self, key: K, value: V, at: Timestamp) {
        let place = self.next;
        self.next += 1;
        self.order.insert(place, key.clone());
        if let Some(before) = self.entries.insert(key, Entry { value, at, place }) {
            self.order.remove(&before.place);
        }
    }

    /// Lets go of what was last good before this moment, and of what is beyond the capacity: the longest ago first.
    fn let_go(&mut self, before: Timestamp, capacity: usize) {
        while let Some(oldest) = self.order.first_entry() {
            let is_old = self.entries.get(oldest.get()).is_none_or(|entry| entry.at < before);
            if !is_old && self.entries.len() <= capacity {
                return;
            }
            self.entries.remove(&oldest.remove());
        }
    }
}

impl<K, V> Clone for LastGood<K, V> {
    fn clone(&self) -> Self {
        let Self { kept, max_age, capacity, after_failures, clock } = self;
        let (kept, clock) = (kept.clone(), clock.clone());
        Self { kept, max_age: *max_age, capacity: *capacity, after_failures: *after_failures, clock }
    }
}

impl<K, V> fmt::Debug for LastGood<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LastGood")
            .field("max_age", &self.max_age)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}
