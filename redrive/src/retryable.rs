//! What an application implements: a call that can be made good.
//!
//! `#[retryable]` on an async fn makes all of this; the trait is for types that want more say.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::call_error::UNMET;
use crate::classify::{Failure, Kind};
use crate::clock::Timestamp;
use crate::condition;
use crate::context::Context;
use crate::engine::{Handler, Verdict};
use crate::error::Result;
use crate::new_task::{Key, NewTask};
use crate::policy::Policy;
use crate::task::Business;

/// When a call is written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Persist {
    /// After its first failure, if that is worth a retry. An error that is not goes straight to the caller.
    #[default]
    RetryOnly,
    /// After any failure. One that no retry can mend goes to the caller, too, and stays in the archive as *rejected*, so
    /// that every failure shows in one place.
    OnFailure,
    /// Before its first try, so that a crash in there is made good as well.
    Always,
    /// Only if the call ([`Context::persist`]) or the caller says so.
    Manual,
    /// Never: it is retried in memory, and gone with the process.
    Never,
}

/// A call that can be made good: a method and its arguments.
///
/// ```
/// use redrive::{Context, Engine, Policy, Retryable, Store};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Charge { order: u64 }
///
/// impl Retryable for Charge {
///     const METHOD: &'static str = "charge";
///     type Output = String;
///     type Error = std::io::Error;
///
///     async fn execute(&self, cx: &Context<'_>) -> Result<String, std::io::Error> {
///         Ok(format!("order {} is paid, attempt {}", self.order, cx.attempt()))
///     }
///
///     fn policy(&self, defaults: Policy) -> Policy {
///         Policy { max_attempts: Some(5), ..defaults }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
/// let redrive = Engine::builder(Store::open("sqlite::memory:").await?).handler::<Charge>().start().await?;
/// assert_eq!(redrive.call(Charge { order: 7 }).await.unwrap(), "order 7 is paid, attempt 1");
/// # redrive.stop().await;
/// # Ok(()) }
/// ```
pub trait Retryable: Serialize + Send + Sync {
    /// The name under which it is written down. Tasks that wait are found by it: do not change it while there are any.
    const METHOD: &'static str;
    /// What a successful call gives.
    type Output: Send;
    /// What a failed call gives.
    type Error: fmt::Display + Send;

    /// The name under which this one is written down. Default: that of all calls of its type. Whoever gives another registers
    /// the type under that name, too: [`Builder::handler_as`](crate::Builder::handler_as).
    fn method(&self) -> &str {
        Self::METHOD
    }

    /// Makes the call, once.
    fn execute(&self, cx: &Context<'_>) -> impl Future<Output = Result<Self::Output, Self::Error>> + Send;

    /// How it is tried again: the `defaults` of the settings with what this call wants otherwise. It is looked at before the
    /// first try and stored with the task.
    fn policy(&self, defaults: Policy) -> Policy {
        defaults
    }

    /// What of the policy the first try needs. It must say what [`policy`](Self::policy) and [`asked_policy`](Self::asked_policy) say; a call
    /// that knows it without making a whole policy is a little cheaper when it succeeds.
    fn first_try(&self, defaults: &Policy) -> FirstTry {
        FirstTry::of(&self.asked_policy(policy_of(self, defaults)))
    }

    /// When it is written down; `None`: as the settings say, [`Persist::RetryOnly`] if they do not.
    fn persist(&self) -> Option<Persist> {
        None
    }

    /// What whoever makes this very call wants otherwise, whatever the settings say: it is laid over all else. What a method wants in
    /// its code belongs into [`policy`](Self::policy), over which the settings of the method win. Default: nothing.
    fn asked_policy(&self, policy: Policy) -> Policy {
        policy
    }

    /// When this very call is written down, whatever the settings say. Default: as [`persist`](Self::persist) and they say.
    fn asked_persist(&self) -> Option<Persist> {
        None
    }

    /// Whether this result is a success. One that is not is a failure that is tried again.
    fn is_success(&self, output: &Self::Output) -> bool {
        _ = output;
        true
    }

    /// Whether this result is a success under its policy's condition, which is CEL. Default: if it is one by itself, and the
    /// condition holds for `result`. For a call that has more to give to conditions, see [`condition`].
    fn meets(&self, output: &Self::Output, condition: &str) -> bool {
        let result = || self.result(output).unwrap_or_default();
        self.is_success(output) && condition::holds_for_result(condition, &result())
    }

    /// What it means that a result is not a success. Default: a failure of the kind `unmet`, tried again whatever the policy
    /// says of kinds.
    fn unmet(&self, output: &Self::Output) -> Verdict {
        _ = output;
        Verdict::Retry(Failure::retry(Kind::UNMET, UNMET))
    }

    /// What an error means: its kind, by which the policy's lists decide, or the decision itself. For an error that knows its
    /// kind (`#[derive(ErrorKind)]`), [`Verdict::of`] is the answer.
    fn classify(&self, error: &Self::Error) -> Verdict {
        Verdict::Failed(Failure::retry(Kind::ERROR, format!("{error:#}")))
    }

    /// What makes two calls the same task. Default: method and arguments.
    fn key(&self) -> Key {
        Key::FromParams
    }

    /// How long its key goes on standing for it after it is done. Default: not at all.
    fn dedup_for(&self) -> Duration {
        Duration::ZERO
    }

    /// What it is about.
    fn business(&self) -> Option<Business> {
        None
    }

    /// Among what is due, the greater goes first.
    fn priority(&self) -> i16 {
        0
    }

    /// Whether its arguments are encrypted where they are stored.
    fn encrypt(&self) -> bool {
        false
    }

    /// The trace that it belongs to (W3C `traceparent`).
    fn traceparent(&self) -> Option<&str> {
        None
    }

    /// Who answers for it, if it is written down.
    fn created_by(&self) -> Option<&str> {
        None
    }

    /// With which others of its method it is scheduled, if that is [split](crate::Builder::split): a host that it calls.
    fn part(&self) -> Option<String> {
        None
    }

    /// The result as JSON: for the success callback, a CEL condition and the archive. Without it they see `null`.
    fn result(&self, output: &Self::Output) -> Option<serde_json::Value> {
        _ = output;
        None
    }

    /// The method that is called with the result ([`Succeeded`](crate::Succeeded)) when it has succeeded.
    fn on_success(&self) -> Option<&'static str> {
        None
    }

    /// The method that is called with what happened ([`FinalFailure`](crate::FinalFailure)) when it is given up.
    fn on_final_failure(&self) -> Option<&'static str> {
        None
    }
}

/// What the first try of a call needs of its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstTry {
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// When it is too late for it.
    pub deadline: Option<Timestamp>,
    /// Whether a success is just that: nothing else judges it, is told of it, or keeps it.
    pub plain: bool,
}

impl FirstTry {
    /// By this policy.
    pub fn of(policy: &Policy) -> Self {
        Self { timeout: policy.timeout, deadline: policy.deadline, plain: Self::is_plain(policy) }
    }

    /// Whether a success under this policy is just that.
    #[inline]
    pub fn is_plain(policy: &Policy) -> bool {
        policy.success_if.is_none() && policy.on_success.is_none() && !policy.keep
    }
}

/// The policy of a call under these defaults, callbacks included.
pub(crate) fn policy_of<C: Retryable + ?Sized>(call: &C, defaults: &Policy) -> Policy {
    let mut policy = call.policy(defaults.clone());
    policy.on_success = policy.on_success.or_else(|| call.on_success().map(Cow::Borrowed));
    policy.on_final_failure = policy.on_final_failure.or_else(|| call.on_final_failure().map(Cow::Borrowed));
    policy
}

/// Something that can be enqueued: a [`NewTask`], or a [`Retryable`] call.
pub trait IntoTask {
    /// The task, under these defaults where it does not say otherwise.
    fn into_new_task(self, defaults: &Defaults) -> Result<NewTask>;
}

impl IntoTask for NewTask {
    fn into_new_task(self, defaults: &Defaults) -> Result<NewTask> {
        Ok(self.or_policy(|method| defaults.policy_for(method)))
    }
}

impl<C: Retryable> IntoTask for C {
    fn into_new_task(self, defaults: &Defaults) -> Result<NewTask> {
        new_task(&self, defaults.policy_of(&self))
    }
}

pub(crate) fn new_task<C: Retryable>(call: &C, policy: Policy) -> Result<NewTask> {
    let mut new = NewTask::new(call.method(), call)?.policy(policy).priority(call.priority());
    new.key = call.key();
    new.dedup_for = call.dedup_for();
    new.business = call.business();
    new.encrypt = call.encrypt();
    new.traceparent = call.traceparent().map(str::to_owned);
    new.created_by = call.created_by().map(str::to_owned);
    if let Some(part) = call.part() {
        new = new.part(&part);
    }
    Ok(new)
}

pub use crate::settings::Defaults;

/// A handler that registers itself with every [`Engine`](crate::Engine) of the program: what `#[retryable]` submits.
#[derive(Clone, Copy)]
pub struct Registration {
    method: &'static str,
    handler: fn() -> Handler,
}

impl Registration {
    /// Of the calls of this type.
    pub const fn of<C: Retryable + DeserializeOwned + 'static>() -> Self {
        Self { method: C::METHOD, handler: Handler::of::<C> }
    }

    /// Its method.
    pub fn method(&self) -> &'static str {
        self.method
    }

    pub(crate) fn handler(&self) -> Handler {
        (self.handler)()
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registration").field(&self.method).finish()
    }
}

inventory::collect!(Registration);
