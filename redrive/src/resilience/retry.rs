//! Retries in memory, with the same [`Policy`] as durable ones: for what may be lost with the process.
//!
//! Of the policy counts what is about trying: attempts, duration, deadline, backoff, jitter, timeout, the lists of kinds. What is about
//! being written down means nothing here and is refused, so that nothing is silently left undone. A call that a
//! circuit breaker rejected is not tried again: that would only be rejected again, and use up the budget.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::budget::RetryBudget;
use super::last_good::MaybeRejected;
use super::permit::{Rejected, rejection};
use crate::call_error::Cause;
use crate::classify::{Class, ErrorKind, Failure, Kind};
use crate::clock::{Clock, Timestamp, pause};
use crate::error::{Problems, Result as RedriveResult, chain};
use crate::policy::Policy;
use crate::settle::DeadReason;

/// Tries again, here and now.
///
/// ```
/// use redrive::resilience::{Retry, RetryBudget};
/// use redrive::{Backoff, Jitter, Policy};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
/// let policy = Policy {
///     max_attempts: Some(3),
///     backoff: Backoff::fixed(Duration::from_millis(1)),
///     jitter: Jitter::Full,
///     ..Policy::default()
/// };
/// let retry = Retry::new(policy)?.budget(RetryBudget::default());
/// let asked = retry.call(|attempt| async move { if attempt < 3 { Err(std::fmt::Error) } else { Ok(attempt) } });
/// assert_eq!(asked.await.unwrap(), 3);
///
/// let failed = retry.call(|_| async { Err::<(), _>(std::fmt::Error) }).await.unwrap_err();
/// assert_eq!(failed.attempts, 3);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Retry {
    policy: Arc<Policy>,
    budget: Option<RetryBudget>,
    clock: Clock,
    drawn: Arc<AtomicU64>,
}

/// Why it was not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GaveUp {
    /// No retry will mend this error.
    Rejected,
    /// Its attempts are used up.
    Exhausted,
    /// Its time is.
    Expired,
    /// There are too many retries already.
    NoBudget,
}

/// A call that was given up.
#[derive(Debug)]
#[non_exhaustive]
pub struct RetryError<T, E> {
    /// How often it was tried.
    pub attempts: u32,
    /// Why not once more.
    pub why: GaveUp,
    /// How the last try failed.
    pub cause: Cause<T, E>,
}

impl Retry {
    /// By this policy, or all that is wrong with it.
    pub fn new(policy: Policy) -> RedriveResult<Self> {
        policy.validate()?;
        refuse_durable(&policy)?;
        let clock = Clock::system();
        let drawn = Arc::new(AtomicU64::new(clock.now().as_millis().cast_unsigned()));
        Ok(Self { policy: Arc::new(policy), budget: None, clock, drawn })
    }

    /// Only as far as this budget goes.
    pub fn budget(self, budget: RetryBudget) -> Self {
        Self { budget: Some(budget), ..self }
    }

    /// The clock it goes by. Default: this machine's.
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Makes a call as often as it takes. It is told which attempt this is, from 1. An error is a failure.
    pub async fn call<T, E, F>(&self, attempt: impl FnMut(u32) -> F) -> Result<T, RetryError<T, E>>
    where
        E: std::error::Error + 'static,
        F: Future<Output = Result<T, E>>,
    {
        self.call_judged(attempt, |ended| ended.as_ref().err().map(|e| failure_of(e))).await
    }

    /// The same, where `judge` says what the end of an attempt means: nothing for a success, or the failure that it is. One of
    /// the class *reject* is final; otherwise its kind and the policy decide.
    pub async fn call_judged<T, E, F>(
        &self,
        mut attempt: impl FnMut(u32) -> F,
        judge: impl Fn(&Result<T, E>) -> Option<Failure>,
    ) -> Result<T, RetryError<T, E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        let mut course = self.begin();
        loop {
            let cause = match self.within_limit(attempt(course.failures + 1)).await {
                Err(limit) => {
                    (Failure::retry(Kind::TIMEOUT, crate::call_error::no_result(limit)), Cause::Timeout(limit))
                }
                Ok(ended) => match (judge(&ended), ended) {
                    (None, Ok(value)) => return Ok(value),
                    (Some(failure), Ok(value)) => (failure, Cause::Unmet(value)),
                    (Some(failure), Err(e)) => (failure, Cause::Error(e)),
                    // Nothing to hold against it, and yet no value: there is no use in trying again.
                    (None, Err(e)) => (Failure::reject(Kind::ERROR, ""), Cause::Error(e)),
                },
            };
            let (failure, cause) = cause;
            match self.next(&mut course, &failure) {
                Ok(wait) => pause(wait).await,
                Err(why) => return Err(RetryError { attempts: course.failures, why, cause }),
            }
        }
    }

    async fn within_limit<F: Future>(&self, attempt: F) -> Result<F::Output, Duration> {
        match self.policy.timeout {
            None => Ok(attempt.await),
            Some(limit) => tokio::time::timeout(limit, attempt).await.map_err(|_| limit),
        }
    }

    /// A call begins.
    pub(super) fn begin(&self) -> Course {
        self.budget.iter().for_each(RetryBudget::deposit);
        Course { began: self.clock.now(), failures: 0 }
    }

    /// An attempt has failed: how long to wait for the next one, or why there is none.
    pub(super) fn next(&self, course: &mut Course, failure: &Failure) -> Result<Duration, GaveUp> {
        course.failures += 1;
        if failure.class == Class::Reject || self.policy.classify(&failure.kind) == Class::Reject {
            return Err(GaveUp::Rejected);
        }
        let now = self.clock.now();
        let due = self.policy.next(course.failures, failure.retry_after, course.began, now, self.chance());
        let due = due.map_err(|reason| match reason {
            DeadReason::Expired => GaveUp::Expired,
            _ => GaveUp::Exhausted,
        })?;
        match &self.budget {
            Some(budget) if !budget.withdraw() => Err(GaveUp::NoBudget),
            _ => Ok(due.since(now)),
        }
    }

    fn chance(&self) -> f64 {
        let n = self.drawn.fetch_add(1, Ordering::Relaxed);
        (xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes()) >> 11) as f64 / (1u64 << 53) as f64
    }

    #[cfg(feature = "tower")]
    pub(super) fn has_timeout(&self) -> bool {
        self.policy.timeout.is_some()
    }
}

/// How far a call is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Course {
    began: Timestamp,
    failures: u32,
}

fn refuse_durable(policy: &Policy) -> RedriveResult<()> {
    let mut problems = Problems::default();
    for (is_given, field) in [
        (policy.success_if.is_some(), "success_if"),
        (policy.notify.is_some(), "notify"),
        (policy.on_success.is_some(), "on_success"),
        (policy.on_final_failure.is_some(), "on_final_failure"),
        (policy.keep, "keep"),
    ] {
        problems.require(!is_given, field, || "is for calls that are written down, not for retries in memory".into());
    }
    problems.into_result()
}

/// An error as a failure that is worth a retry, unless a breaker's rejection is among its causes.
pub(super) fn failure_of(error: &(dyn std::error::Error + 'static)) -> Failure {
    if rejection(error).is_some() { rejected(error) } else { Failure::retry(Kind::ERROR, chain(error)) }
}

/// The failure of a call that was not made.
pub(super) fn rejected(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::reject(Kind::of("circuit_open"), chain(error))
}

/// The failure that an error is by its own kind: a judge for [`Retry::call_judged`].
///
/// ```
/// use redrive::resilience::{GaveUp, Retry, by_kind};
/// use redrive::{ErrorKind, Policy};
///
/// #[derive(Debug, thiserror::Error, ErrorKind)]
/// enum PayError {
///     #[error("declined")]
///     Declined,
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
/// let retry = Retry::new(Policy { no_retry_for: vec!["Declined".into()], ..Policy::default() })?;
/// let failed = retry.call_judged(|_| async { Err::<(), _>(PayError::Declined) }, by_kind).await.unwrap_err();
/// assert_eq!((failed.attempts, failed.why), (1, GaveUp::Rejected));
/// # Ok(()) }
/// ```
pub fn by_kind<T, E: ErrorKind + fmt::Display>(ended: &Result<T, E>) -> Option<Failure> {
    ended.as_ref().err().map(|e| Failure::retry(e.kind(), e.to_string()))
}

impl<T, E> RetryError<T, E> {
    /// The error of the last try, if it ended with one.
    pub fn into_error(self) -> Option<E> {
        if let Cause::Error(e) = self.cause { Some(e) } else { None }
    }
}

impl<T, E: MaybeRejected> MaybeRejected for RetryError<T, E> {
    fn rejected(&self) -> Option<&Rejected> {
        if let Cause::Error(e) = &self.cause { e.rejected() } else { None }
    }
}

impl<T, E: fmt::Display> fmt::Display for RetryError<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.why {
            GaveUp::Rejected => "not worth a retry",
            GaveUp::Exhausted => "given up",
            GaveUp::Expired => "out of time",
            GaveUp::NoBudget => "too many retries already",
        };
        write!(f, "{why} after {} attempts: {}", self.attempts, self.cause)
    }
}

impl<T: fmt::Debug, E: std::error::Error + 'static> std::error::Error for RetryError<T, E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Cause::Error(e) = &self.cause { Some(e) } else { None }
    }
}
