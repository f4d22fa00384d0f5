//! What executes tasks: a function registered under a method's name.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::Shared;
use crate::call::{judge, told, try_once, unless_listed};
use crate::callback::Methods;
use crate::classify::{Class, ErrorKind, Failure, Kind};
use crate::context::{Context, Said};
use crate::error::{chain, unreadable};
use crate::gate::GateConfig;
use crate::new_task::NewTask;
use crate::retryable::{IntoTask, Retryable};
use crate::settings::Defaults;
use crate::settle::Outcome;
use crate::task::Task;
use serde::de::DeserializeOwned;

/// What the application gives to its handlers, by type.
#[derive(Clone, Default)]
pub struct State(Arc<HashMap<TypeId, Box<dyn Any + Send + Sync>>>);

impl State {
    pub(crate) fn get<T: 'static>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref()
    }

    /// Only while nobody else has it: the builder.
    pub(super) fn put<T: Send + Sync + 'static>(&mut self, value: T) {
        if let Some(all) = Arc::get_mut(&mut self.0) {
            all.insert(TypeId::of::<T>(), Box::new(value));
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("values", &self.0.len()).finish()
    }
}

/// How a handler says that it did not succeed. Any error turns into it with `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It failed; the policy decides by its kind whether it is tried again.
    Failed(Failure),
    /// It failed and is to be tried again, unless the policy's `no_retry_for` names its kind: what a pattern of `retry_for` says.
    Listed(Failure),
    /// It failed and is to be tried again, whatever the policy says of its kind.
    Retry(Failure),
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

    /// What it calls asks for a slower pace, and may have named a time for which it is to be left alone. No attempt is used up, and
    /// other tasks of the same lane wait, too. Errors of the kind `http.429` mean this by themselves.
    pub fn slow_down(error: &dyn std::error::Error, time: Option<Duration>) -> Self {
        Self::Listed(Failure::slow_down(chain(error), time))
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

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) | Self::Listed(failure) | Self::Retry(failure) | Self::Fatal(failure) => {
                f.write_str(&failure.message)
            }
            Self::Snooze(time) => write!(f, "not now, again in {}", humantime::format_duration(*time)),
            Self::Cancel => f.write_str("not wanted any more"),
        }
    }
}

/// How an attempt ended, and, if that is wanted, its result as JSON.
#[derive(Debug)]
pub(crate) struct Attempted {
    pub(crate) outcome: Outcome,
    pub(crate) result: Option<String>,
}

impl From<Outcome> for Attempted {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, result: None }
    }
}

pub(crate) type Attempting = Pin<Box<dyn Future<Output = Attempted> + Send>>;

/// A registered handler.
#[derive(Clone)]
pub(crate) struct Handler {
    pub(crate) method: String,
    pub(crate) options: MethodOptions,
    /// Whether its tasks are scheduled by parts.
    pub(crate) is_split: bool,
    run: Arc<dyn Fn(Context<'static>, Arc<Task>) -> Attempting + Send + Sync>,
    /// Which part of its method a task with these params is.
    part: fn(&str) -> Option<String>,
    /// The call that these params are of, as it would be enqueued.
    as_call: fn(&str, &Defaults) -> Option<NewTask>,
}

/// Limits of one method; of one that is [split](crate::Builder::split), of each of its parts.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct MethodOptions {
    /// How many of its tasks run at once on this node. Default: as many as the node has room for.
    pub concurrency: Option<usize>,
    /// Of a method that is split, how many tasks of one part run at once on this node until the part has answered. Each answer raises
    /// that by one, up to `concurrency`. All parts that have never answered share half of the node's room. Default: no such limit.
    pub unproven: Option<usize>,
    /// How many of its tasks of one business id run at once, on all nodes together. Default: any number.
    pub per_business: Option<usize>,
    /// How many of its tasks start in a time, on all nodes together. Default: any number.
    pub rate: Option<Rate>,
    /// The circuit breaker that holds its tasks back while what they call is down. Default: none.
    pub gate: Option<GateConfig>,
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

    /// At most so many tasks of one part at once on this node until the part has answered; each answer raises that by one.
    pub fn unproven(mut self, most: usize) -> Self {
        self.unproven = Some(most);
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

    pub(super) fn has_gate(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.enabled)
    }

    /// Held back by a circuit breaker that all nodes share, while what it calls is down: see [`gate`](crate::gate).
    pub fn gate(mut self, gate: GateConfig) -> Self {
        self.gate = Some(gate);
        self
    }
}

impl Handler {
    pub(crate) fn new<P, F, Fut>(method: String, options: MethodOptions, f: F) -> Self
    where
        P: DeserializeOwned,
        F: Fn(Context<'static>, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Verdict>> + Send + 'static,
    {
        let run = move |cx: Context<'static>, task: Arc<Task>| -> Attempting {
            match decode(&task) {
                Err(undecodable) => Box::pin(std::future::ready(undecodable.into())),
                Ok(params) => {
                    let words = cx.words();
                    let attempt = f(cx, params);
                    Box::pin(async move {
                        let ended = attempt.await;
                        ended.map_or_else(|verdict| by_word(&task, words.said(), verdict), |()| Outcome::Done).into()
                    })
                }
            }
        };
        Self { method, options, is_split: false, run: Arc::new(run), part: |_| None, as_call: |_, _| None }
    }

    /// For the calls of a type.
    pub(crate) fn of<C: Retryable + DeserializeOwned + 'static>() -> Self {
        let run = |cx: Context<'static>, task: Arc<Task>| -> Attempting {
            match decode::<C>(&task) {
                Err(undecodable) => Box::pin(std::future::ready(undecodable.into())),
                Ok(call) => Box::pin(async move {
                    // The time limit and panics are the executor's: they hold for handlers of all sorts.
                    let ended = try_once(&call, &cx, None).await;
                    let outcome = judge(&call, &cx, &task.policy, &ended);
                    let result = ended.as_ref().ok().and_then(|value| told(&call, &task.policy, value));
                    Attempted { outcome, result }
                }),
            }
        };
        let part = |params: &str| serde_json::from_str::<C>(params).ok()?.part();
        let as_call =
            |params: &str, defaults: &Defaults| serde_json::from_str::<C>(params).ok()?.into_new_task(defaults).ok();
        let options = MethodOptions::default();
        Self { method: C::METHOD.into(), options, is_split: false, run: Arc::new(run), part, as_call }
    }

    /// For the steps of sagas.
    pub(crate) fn raw(
        method: String,
        options: MethodOptions,
        run: impl Fn(Context<'static>, Arc<Task>) -> Attempting + Send + Sync + 'static,
        part: fn(&str) -> Option<String>,
    ) -> Self {
        Self { method, options, is_split: false, run: Arc::new(run), part, as_call: |_, _| None }
    }

    /// Which part of its method a task is, if that is split and its params say so.
    pub(crate) fn part_of(&self, task: &Task) -> Option<String> {
        if self.is_split { (self.part)(&task.params) } else { None }
    }

    /// A callback as a call of its method, if that is of a type and can be read.
    pub(super) fn called(&self, callback: NewTask, defaults: &Defaults) -> NewTask {
        // It is the application's code, and a task's end must not fail because of it.
        let as_call = AssertUnwindSafe(|| (self.as_call)(&callback.params, defaults));
        match std::panic::catch_unwind(as_call) {
            Ok(Some(call)) => {
                let NewTask { policy, encrypt, priority, lane, .. } = call;
                NewTask { policy, encrypt, priority, lane, ..callback }
            }
            _ => callback.or_policy(|method| defaults.policy_for(method)),
        }
    }

    pub(crate) fn run(&self, cx: Context<'static>, task: Arc<Task>) -> Attempting {
        (self.run)(cx, task)
    }
}

impl Methods for Shared {
    fn called(&self, callback: NewTask) -> NewTask {
        let defaults = self.defaults.read().unwrap_or_else(PoisonError::into_inner).clone();
        match self.handlers.get(&callback.method) {
            Some(handler) => handler.called(callback, &defaults),
            None => callback.or_policy(|method| defaults.policy_for(method)),
        }
    }
}

pub(super) fn decode<P: DeserializeOwned>(task: &Task) -> Result<P, Outcome> {
    serde_json::from_str(&task.params)
        .map_err(|e| Outcome::Undecodable(format!("params cannot be read: {}", unreadable(&e))))
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler").field("method", &self.method).finish_non_exhaustive()
    }
}

/// A handler's word as an outcome; the policy's lists give a failure its class.
fn by_word(task: &Task, said: Said, verdict: Verdict) -> Outcome {
    match verdict {
        Verdict::Failed(failure) => said.of(Failure { class: task.policy.classify(&failure.kind), ..failure }),
        Verdict::Listed(failure) => said.of(unless_listed(&task.policy, failure)),
        Verdict::Retry(failure) => said.of(Failure { class: Class::Retry, ..failure }),
        Verdict::Fatal(failure) => Outcome::Fatal(failure),
        Verdict::Snooze(time) => Outcome::Snooze(time),
        Verdict::Cancel => Outcome::Cancel,
    }
}
