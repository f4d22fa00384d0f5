//! Callbacks: tasks of their own, written in the transaction in which a task ends, so that none is lost and none is made
//! up. Their key comes from the task's id: one callback for each end.
//!
//! Which method is called is stored with the task ([`Policy::on_success`](crate::Policy)), not looked up when it ends: a task
//! that is failed by hand, from a process that knows none of the application's code, calls back as well. Where the callback's own
//! method is known ([`Methods`]) it is written down like any call of it; elsewhere under the default policy.

use serde::{Deserialize, Serialize};

use crate::classify::Kind;
use crate::crypt::is_sealed;
use crate::error::Result;
use crate::id::TaskId;
use crate::new_task::NewTask;
use crate::policy::Policy;
use crate::settle::{Change, DeadReason, To};
use crate::task::{Business, Task, limits, storable};

/// What an `on_success` callback is called with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Succeeded<T = serde_json::Value> {
    /// The task that succeeded.
    pub task_id: TaskId,
    /// Its method.
    pub method: String,
    /// Its key.
    #[serde(default)]
    pub key: Option<String>,
    /// What it was about.
    #[serde(default)]
    pub business: Option<Business>,
    /// Which attempt succeeded, from 1.
    pub attempt: u32,
    /// Its result; `null` if it is too large to be written down (as params may be, 1 MiB by default).
    pub result: T,
}

/// What an `on_final_failure` callback is called with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinalFailure<P = serde_json::Value> {
    /// The task that was given up.
    pub task_id: TaskId,
    /// Its method.
    pub method: String,
    /// Its key.
    #[serde(default)]
    pub key: Option<String>,
    /// What it was about.
    #[serde(default)]
    pub business: Option<Business>,
    /// Its arguments; `null` if they are encrypted.
    pub params: P,
    /// How often it was tried.
    pub attempts: u32,
    /// Why it was given up.
    pub reason: GivenUp,
    /// The kind of its last error.
    #[serde(default)]
    pub error_kind: Option<Kind>,
    /// Its last error.
    #[serde(default)]
    pub error: Option<String>,
    /// Whether no node has ever had it: it has had no effect.
    #[serde(default)]
    pub untouched: bool,
}

/// Why a task was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GivenUp {
    /// Its attempts were used up.
    Exhausted,
    /// Its time was up.
    Expired,
    /// It failed with an error that no retry can mend.
    Rejected,
    /// A person failed it.
    FailedByHand,
    /// Too many nodes died while they held it.
    Crashed,
    /// Its params could not be read.
    Undecodable,
    /// Its target has asked for a slower pace for too long.
    Postponed,
    /// It was cancelled.
    Cancelled,
}

impl From<DeadReason> for GivenUp {
    fn from(reason: DeadReason) -> Self {
        match reason {
            DeadReason::Exhausted => Self::Exhausted,
            DeadReason::Expired => Self::Expired,
            DeadReason::Rejected => Self::Rejected,
            DeadReason::FailedByHand => Self::FailedByHand,
            DeadReason::Crashed => Self::Crashed,
            DeadReason::Undecodable => Self::Undecodable,
            DeadReason::Postponed => Self::Postponed,
        }
    }
}

/// Whoever knows methods, and so how a call of one is written down.
pub(crate) trait Methods: std::fmt::Debug + Send + Sync {
    /// A callback as a call of its method: under its policy, with its priority, encrypted if it is.
    fn called(&self, callback: NewTask) -> NewTask;
}

/// What a callback has beside the params or the result that it tells of, in bytes at the most.
pub(crate) const ENVELOPE: usize = 64 * 1024;

/// The same callback without what is large.
pub(crate) fn without_large(new: NewTask) -> NewTask {
    let mut told: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&new.params).unwrap_or_default();
    told.iter_mut()
        .filter(|(name, _)| matches!(name.as_str(), "result" | "params"))
        .for_each(|(_, value)| _ = value.take());
    NewTask { params: serde_json::Value::from(told).to_string(), ..new }
}

/// The callback that a task's end asks for, if it does. `result` is JSON.
pub(crate) fn callback(task: &Task, change: &Change, result: Option<&str>) -> Vec<NewTask> {
    let made = match change.to {
        To::Pending { .. } => None,
        To::Done => task.policy.on_success.as_deref().map(|method| success(task, method, result)),
        To::Dead(reason) | To::Dropped(reason) => final_failure(task, change, reason.into()),
        To::Cancelled => final_failure(task, change, GivenUp::Cancelled),
    };
    let which = if change.to == To::Done { "on_success" } else { "on_final_failure" };
    let keyed = |new: NewTask| {
        let policy = Policy::of_callback(&new.method);
        let new = NewTask { business: task.business.clone(), ..new }.key(format!("{}:{which}", task.id));
        policy.into_iter().fold(new, NewTask::policy)
    };
    // What is written here is plain JSON values: it cannot fail.
    made.and_then(Result::ok).map(keyed).into_iter().collect()
}

fn success(task: &Task, method: &str, result: Option<&str>) -> Result<NewTask> {
    let result = result.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
    let told: Succeeded = Succeeded {
        task_id: task.id,
        method: task.method.clone(),
        key: task.key.clone(),
        business: task.business.clone(),
        attempt: task.attempts.saturating_add(1),
        result,
    };
    NewTask::new(method, &told)
}

fn final_failure(task: &Task, change: &Change, reason: GivenUp) -> Option<Result<NewTask>> {
    let method = task.policy.on_final_failure.as_deref()?;
    let (kind, error) = match (&change.failure, &task.last_error) {
        (Some(failure), _) => (Some(failure.kind.clone()), Some(storable(&failure.message, limits::ERROR))),
        (None, Some(last)) => (Some(last.kind.clone()), Some(last.message.clone())),
        (None, None) => (None, None),
    };
    let told: FinalFailure = FinalFailure {
        task_id: task.id,
        method: task.method.clone(),
        key: task.key.clone(),
        business: task.business.clone(),
        params: if is_sealed(&task.params) { Default::default() } else { params(task) },
        attempts: change.attempts,
        reason,
        error_kind: kind,
        error,
        untouched: task.is_untouched(),
    };
    Some(NewTask::new(method, &told))
}

fn params(task: &Task) -> serde_json::Value {
    serde_json::from_str(&task.params).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callback_without_what_is_large_still_tells_of_what() {
        let task = crate::testing::task(NewTask::new("pay", &7).unwrap_or_else(|e| panic!("{e}")));
        let told = success(&task, "paid", Some("\"receipt\"")).unwrap_or_else(|e| panic!("{e}"));
        let cut: Succeeded = serde_json::from_str(&without_large(told).params).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((cut.task_id, &*cut.method, cut.result), (task.id, "pay", serde_json::Value::Null));
    }
}
