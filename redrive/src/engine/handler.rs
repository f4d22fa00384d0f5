//! What executes tasks: a function registered under a method's name.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::classify::{ErrorKind, Failure, Kind};
use crate::settle::Outcome;
use crate::task::Task;

/// What a handler knows about the attempt that it makes.
#[derive(Clone, Debug)]
pub struct Context {
    task: Arc<Task>,
    cancelled: CancellationToken,
}

impl Context {
    pub(crate) fn new(task: Arc<Task>, cancelled: CancellationToken) -> Self {
        Self { task, cancelled }
    }

    /// The task.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.task.attempts.saturating_add(1)
    }

    /// A value that is unique to this attempt and grows with each: a target can refuse an older one.
    pub fn fence(&self) -> String {
        format!("{}-{}", self.task.id, self.task.version)
    }

    /// Whether the task is not wanted any more, or the node has to stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }

    /// Waits until the task is not wanted any more, or the node has to stop.
    pub async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }
}

/// How a handler says that it did not succeed. Any error turns into it with `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It failed; the policy decides by its kind whether it is tried again.
    Failed(Failure),
    /// It failed, and no retry will mend it.
    Fatal(Failure),
    /// Not now: again after this time, without burning an attempt.
    Snooze(Duration),
    /// It is not wanted any more.
    Cancel,
}

impl Verdict {
    /// Failed with an error that knows its kind.
    pub fn of(error: &(impl std::error::Error + ErrorKind)) -> Self {
        Self::Failed(Failure::retry(error.kind(), chain(error)))
    }

    /// Failed; to be tried again after this time at the earliest.
    pub fn retry_after(error: &dyn std::error::Error, time: Duration) -> Self {
        Self::Failed(Failure::retry(Kind::ERROR, chain(error)).after(time))
    }

    /// Failed, with all that the error says of itself when it is printed for debugging: `anyhow::Error` and its like print
    /// their causes and, if there is one, a backtrace.
    pub fn report(error: &impl fmt::Debug) -> Self {
        Self::Failed(Failure::retry(Kind::ERROR, format!("{error:?}")))
    }

    /// Failed, and no retry will mend it.
    pub fn fatal(why: impl fmt::Display) -> Self {
        Self::Fatal(Failure::reject(Kind::ERROR, why.to_string()))
    }
}

impl<E: std::error::Error> From<E> for Verdict {
    fn from(error: E) -> Self {
        Self::Failed(Failure::retry(Kind::ERROR, chain(&error)))
    }
}

/// An error and its causes, each once.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !said.contains(&more) {
            said = format!("{said}: {more}");
        }
        cause = error.source();
    }
    said
}

pub(crate) type Attempting = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A registered handler.
#[derive(Clone)]
pub(crate) struct Handler {
    pub(crate) method: String,
    pub(crate) options: MethodOptions,
    run: Arc<dyn Fn(Context) -> Attempting + Send + Sync>,
}

/// Limits of one method.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MethodOptions {
    /// How many of its tasks run at once on this node. Default: as many as the node has room for.
    pub concurrency: Option<usize>,
    /// How many of its tasks of one business id run at once, on all nodes together. Default: any number.
    pub per_business: Option<usize>,
    /// How many of its tasks start in a time, on all nodes together. Default: any number.
    pub rate: Option<Rate>,
}

/// So many tasks in so much time; what is not used is kept for at most one such time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many.
    pub tasks: u32,
    /// In how much time.
    pub per: Duration,
}

impl MethodOptions {
    /// At most so many of its tasks at once on this node.
    pub fn concurrency(mut self, most: usize) -> Self {
        self.concurrency = Some(most);
        self
    }

    /// At most so many of its tasks of one business id at once. Other ids' tasks do not wait for it.
    pub fn per_business(mut self, most: usize) -> Self {
        self.per_business = Some(most);
        self
    }

    /// At most so many of its tasks in so much time, on all nodes together: each has its share.
    pub fn rate(mut self, tasks: u32, per: Duration) -> Self {
        self.rate = Some(Rate { tasks, per });
        self
    }
}

impl Handler {
    pub(crate) fn new<P, F, Fut>(method: String, options: MethodOptions, f: F) -> Self
    where
        P: DeserializeOwned,
        F: Fn(Context, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Verdict>> + Send + 'static,
    {
        let run = move |cx: Context| -> Attempting {
            match serde_json::from_str(&cx.task.params) {
                Err(e) => Box::pin(std::future::ready(Outcome::Undecodable(format!("params cannot be read: {e}")))),
                Ok(params) => {
                    let task = cx.task.clone();
                    let attempt = f(cx, params);
                    Box::pin(
                        async move { attempt.await.map_or_else(|verdict| judge(&task, verdict), |()| Outcome::Done) },
                    )
                }
            }
        };
        Self { method, options, run: Arc::new(run) }
    }

    pub(crate) fn run(&self, cx: Context) -> Attempting {
        (self.run)(cx)
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler").field("method", &self.method).finish_non_exhaustive()
    }
}

/// A handler's word as an outcome; the policy's lists give a failure its class.
fn judge(task: &Task, verdict: Verdict) -> Outcome {
    match verdict {
        Verdict::Failed(failure) => Outcome::Failed(Failure { class: task.policy.classify(&failure.kind), ..failure }),
        Verdict::Fatal(failure) => Outcome::Fatal(failure),
        Verdict::Snooze(time) => Outcome::Snooze(time),
        Verdict::Cancel => Outcome::Cancel,
    }
}
