//! What a call knows about the attempt that it is, and the words by which it says how to go on.
//!
//! An attempt is either a task's, from the database, or the first try of [`Engine::call`](crate::Engine::call), inline: then
//! nothing may have been written yet, and what identifies it (id, key) is made when it is asked for. Whoever writes it down
//! later uses the same, so a target that is told the key at the first try knows the retries by it.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::classify::{Class, Failure};
use crate::clock::Timestamp;
use crate::engine::State;
use crate::error::{Error, Result};
use crate::id::TaskId;
use crate::settle::Outcome;
use crate::task::{Business, Task};

/// What a call knows about the attempt that it is.
#[derive(Debug)]
pub struct Context<'a> {
    attempt: Attempt<'a>,
}

#[derive(Debug)]
enum Attempt<'a> {
    Stored {
        task: Arc<Task>,
        cancelled: CancellationToken,
        state: State,
        words: Words,
    },
    Inline {
        n: u32,
        id: OnceLock<TaskId>,
        call: &'a (dyn Inline + 'a),
        cancelled: &'a CancellationToken,
        state: &'a State,
        said: Mutex<Said>,
    },
}

/// An inline call, as its context sees it.
pub(crate) trait Inline: Sync {
    fn key(&self) -> Option<String>;
    fn business(&self) -> Option<Business>;
    /// From when on it may not be tried again.
    fn limit(&self) -> Option<Timestamp>;
    fn new_id(&self) -> TaskId;
}

impl std::fmt::Debug for dyn Inline + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inline")
    }
}

/// What the attempt has said so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Said {
    pub(crate) word: Option<Word>,
    pub(crate) persist: bool,
}

impl Said {
    /// What a failure means after that.
    pub(crate) fn of(self, failure: Failure) -> Outcome {
        match self.word {
            None => failure.into(),
            Some(Word::RetryAfter(time)) => failure.after(time).into(),
            Some(Word::SlowDown(time)) => {
                Outcome::SlowDown(Failure { class: Class::Retry, retry_after: time.or(failure.retry_after), ..failure })
            }
            Some(Word::Fatal) => Outcome::Fatal(failure),
            Some(Word::Snooze(time)) => Outcome::Snooze(time),
            Some(Word::Cancel) => Outcome::Cancel,
        }
    }
}

/// What a stored attempt says: it can be asked for when the context has gone with the attempt, by a timeout or a panic.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words(Arc<Mutex<Said>>);

impl Words {
    pub(crate) fn said(&self) -> Said {
        *lock(&self.0)
    }
}

fn lock(said: &Mutex<Said>) -> MutexGuard<'_, Said> {
    said.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a call wants to go on if it does not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Snooze(Duration),
    RetryAfter(Duration),
    SlowDown(Option<Duration>),
    Fatal,
    Cancel,
}

impl<'a> Context<'a> {
    pub(crate) fn inline(
        n: u32,
        call: &'a (dyn Inline + 'a),
        cancelled: &'a CancellationToken,
        state: &'a State,
    ) -> Self {
        Self { attempt: Attempt::Inline { n, id: OnceLock::new(), call, cancelled, state, said: Mutex::default() } }
    }

    /// The id that the call was told, if it asked.
    pub(crate) fn id_told(&self) -> Option<TaskId> {
        match &self.attempt {
            Attempt::Stored { task, .. } => Some(task.id),
            Attempt::Inline { id, .. } => id.get().copied(),
        }
    }

    pub(crate) fn said(&self) -> Said {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Said> {
        match &self.attempt {
            Attempt::Stored { words, .. } => lock(&words.0),
            Attempt::Inline { said, .. } => lock(said),
        }
    }

    fn say(&self, word: Word) {
        self.lock().word = Some(word);
    }
}

impl Context<'static> {
    pub(crate) fn stored(task: Arc<Task>, cancelled: CancellationToken, state: State) -> Self {
        Self { attempt: Attempt::Stored { task, cancelled, state, words: Words::default() } }
    }

    pub(crate) fn words(&self) -> Words {
        match &self.attempt {
            Attempt::Stored { words, .. } => words.clone(),
            Attempt::Inline { said, .. } => Words(Arc::new(Mutex::new(*lock(said)))),
        }
    }
}

impl Context<'_> {
    /// The task; `None` in the first try of a call, which has not been written down yet.
    pub fn task(&self) -> Option<&Task> {
        match &self.attempt {
            Attempt::Stored { task, .. } => Some(task),
            Attempt::Inline { .. } => None,
        }
    }

    /// The task's id. The first try of a call has the id that it will be written down under, should it fail.
    pub fn task_id(&self) -> TaskId {
        match &self.attempt {
            Attempt::Stored { task, .. } => task.id,
            Attempt::Inline { id, call, .. } => *id.get_or_init(|| call.new_id()),
        }
    }

    /// What makes two calls the same: the same in the first try and in all retries, so it is what to send to a target that
    /// takes an idempotency key.
    pub fn key(&self) -> Option<Cow<'_, str>> {
        match &self.attempt {
            Attempt::Stored { task, .. } => task.key.as_deref().map(Cow::Borrowed),
            Attempt::Inline { call, .. } => call.key().map(Cow::Owned),
        }
    }

    /// What the call is about.
    pub fn business(&self) -> Option<Cow<'_, Business>> {
        match &self.attempt {
            Attempt::Stored { task, .. } => task.business.as_ref().map(Cow::Borrowed),
            Attempt::Inline { call, .. } => call.business().map(Cow::Owned),
        }
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        match &self.attempt {
            Attempt::Stored { task, .. } => task.attempts.saturating_add(1),
            Attempt::Inline { n, .. } => *n,
        }
    }

    /// From when on it will not be tried again, by its policy's deadline or duration.
    pub fn deadline(&self) -> Option<Timestamp> {
        match &self.attempt {
            Attempt::Stored { task, .. } => task.policy.limit(task.created_at),
            Attempt::Inline { call, .. } => call.limit(),
        }
    }

    /// A value that is unique to this attempt and grows with each: a target can refuse an older one.
    pub fn fence(&self) -> String {
        let version = self.task().map_or(0, |task| task.version);
        format!("{}-{version}", self.task_id())
    }

    /// What the application gave to [`Builder::state`](crate::Builder::state), by its type.
    pub fn state<T: Send + Sync + 'static>(&self) -> Result<&T> {
        let state = match &self.attempt {
            Attempt::Stored { state, .. } => state,
            Attempt::Inline { state, .. } => state,
        };
        let missing = || Error::NotFound {
            what: "state (give it with Builder::state) of type",
            id: std::any::type_name::<T>().into(),
        };
        state.get::<T>().ok_or_else(missing)
    }

    /// Whether the task is not wanted any more, or the node has to stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancellation().is_cancelled()
    }

    /// Waits until the task is not wanted any more, or the node has to stop.
    pub async fn cancelled(&self) {
        self.cancellation().cancelled().await;
    }

    /// The same as a token, to hand on.
    pub fn cancellation(&self) -> &CancellationToken {
        match &self.attempt {
            Attempt::Stored { cancelled, .. } => cancelled,
            Attempt::Inline { cancelled, .. } => cancelled,
        }
    }

    /// If this attempt does not succeed: again after this time, without burning an attempt.
    pub fn snooze(&self, time: Duration) {
        self.say(Word::Snooze(time));
    }

    /// If this attempt does not succeed: not before this time has passed.
    pub fn retry_after(&self, time: Duration) {
        self.say(Word::RetryAfter(time));
    }

    /// If this attempt does not succeed: what it calls asks for a slower pace, and may have named a time for which it is to be left
    /// alone. No attempt is used up, and other tasks of the same lane wait, too.
    pub fn slow_down(&self, time: Option<Duration>) {
        self.say(Word::SlowDown(time));
    }

    /// If this attempt does not succeed: no retry will mend it.
    pub fn fatal(&self) {
        self.say(Word::Fatal);
    }

    /// If this attempt does not succeed: it is not wanted any more.
    pub fn cancel(&self) {
        self.say(Word::Cancel);
    }

    /// Under [`Persist::Manual`](crate::Persist::Manual): if this attempt does not succeed, write it down.
    pub fn persist(&self) {
        self.lock().persist = true;
    }
}
