//! How a task is tried again, and when that ends. A value, stored with the task: a deploy does not
//! rewrite the past.
//!
//! As JSON only what differs from the default is written, so the defaults are part of the stored format
//! and do not change from version to version.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backoff::{Backoff, Jitter};
use crate::classify::{Class, Kind, classify};
use crate::clock::Timestamp;
use crate::condition;
use crate::duration;
use crate::error::{Problems, Result};
use crate::settle::DeadReason;
use crate::task::limits;

/// A retry policy.
///
/// ```
/// use redrive::{Backoff, Policy};
/// use std::time::Duration;
///
/// let policy = Policy {
///     max_attempts: Some(5),
///     max_duration: Some(Duration::from_secs(3600)),
///     ..Policy::default()
/// };
/// let json = serde_json::to_string(&policy)?;
/// assert_eq!(json, r#"{"max_attempts":5,"max_duration":"1h"}"#);
/// assert_eq!(serde_json::from_str::<Policy>(&json)?, policy);
///
/// // All problems are listed at once.
/// let wrong = Policy { max_attempts: Some(0), timeout: Some(Duration::ZERO), ..Policy::default() };
/// let said = wrong.validate().unwrap_err().to_string();
/// assert!(said.contains("max_attempts") && said.contains("timeout"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// How often it is executed at the most, the first inline try included; `None` (JSON `null`): no
    /// limit. Default: 16.
    #[serde(skip_serializing_if = "is_default_attempts")]
    pub max_attempts: Option<u32>,
    /// No attempt begins later than this after the task was created. Default: no limit.
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub max_duration: Option<Duration>,
    /// No attempt begins at this moment or later. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// The wait after a failed attempt. Default: exponential, 2 s doubling up to 10 min.
    #[serde(skip_serializing_if = "is_default")]
    pub backoff: Backoff,
    /// How chance spreads the waits. Default: 0 to 1 s is added.
    #[serde(skip_serializing_if = "is_default")]
    pub jitter: Jitter,
    /// An attempt that takes longer is a failed one. Default: no limit.
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// The longest time for which a target that asks for a slower pace is left alone at once, whatever it names. Default: 5 min.
    #[serde(with = "duration", skip_serializing_if = "is_default_retry_after")]
    pub max_retry_after: Duration,
    /// The longest time for which such answers postpone a task in all; then it is given up. Default: 1 day.
    #[serde(with = "duration", skip_serializing_if = "is_default_postponed")]
    pub max_postponed: Duration,
    /// If given, only errors of these kinds, up to 100, are tried again. Default: none given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retry_for: Vec<Kind>,
    /// Errors of these kinds, up to 100, are not tried again. Default: none given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub no_retry_for: Vec<Kind>,
    /// A CEL expression over the result; where it does not hold, the attempt has failed and is tried
    /// again. Default: every result is a success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success_if: Option<Cow<'static, str>>,
    /// What becomes of a task that is finally given up. Default: `dead`.
    #[serde(skip_serializing_if = "is_default")]
    pub on_exhausted: OnExhausted,
    /// When people are told, once, that it keeps failing. Default: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify: Option<Notify>,
    /// How many nodes may die while they hold it before it is given up. Default: 3.
    #[serde(skip_serializing_if = "is_default_crashes")]
    pub max_crashes: u32,
    /// The method that is called with the result when it has succeeded. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_success: Option<Cow<'static, str>>,
    /// The method that is called with what happened when it is given up or cancelled. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_final_failure: Option<Cow<'static, str>>,
    /// Whether it stays in the archive, with its result, when it has succeeded. Default: no.
    #[serde(skip_serializing_if = "is_default")]
    pub keep: bool,
    /// Whether it may run again, unseen, after a node died holding it. Default: `retry`.
    #[serde(skip_serializing_if = "is_default")]
    pub on_crash: OnCrash,
}

/// What becomes of a task that is finally given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExhausted {
    /// It waits among the dead letters.
    #[default]
    Dead,
    /// It waits among the dead letters and people are reminded of it until someone takes it.
    Escalate,
    /// It goes; the final-failure callback is its only trace (source 2's own rule).
    Drop,
}

/// When people are told, once, that a task keeps failing. Looked at on every failure, the last included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notify {
    /// After this many failed attempts.
    Failures(u32),
    /// When it fails and was created this long ago.
    FailingFor(#[serde(with = "duration")] Duration),
}

/// Whether a task may run again after a node died holding it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnCrash {
    /// Yes, up to `max_crashes`.
    #[default]
    Retry,
    /// No: it is dead, for a person to look at. For calls that must not be repeated unseen.
    Dead,
}

/// How methods of redrive's own begin.
const OWN: &str = "redrive.";
const DEFAULT_ATTEMPTS: Option<u32> = Some(16);
const DEFAULT_CRASHES: u32 = 3;
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(300);
const DEFAULT_POSTPONED: Duration = Duration::from_secs(24 * 3600);
/// More attempts than this are a mistake; use `None` for "until it succeeds".
const MOST_ATTEMPTS: u32 = 1_000_000;
/// More nodes than this do not die of one task.
const MOST_CRASHES: u32 = 1_000;
/// A list is stored with every task and looked through at every failure.
const MOST_KINDS: usize = 100;

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_attempts: DEFAULT_ATTEMPTS,
            max_duration: None,
            deadline: None,
            backoff: Backoff::default(),
            jitter: Jitter::default(),
            timeout: None,
            max_retry_after: DEFAULT_RETRY_AFTER,
            max_postponed: DEFAULT_POSTPONED,
            retry_for: Vec::new(),
            no_retry_for: Vec::new(),
            success_if: None,
            on_exhausted: OnExhausted::default(),
            notify: None,
            on_success: None,
            on_final_failure: None,
            keep: false,
            max_crashes: DEFAULT_CRASHES,
            on_crash: OnCrash::default(),
        }
    }
}

impl Policy {
    /// Whether these values make sense; if not, all that is wrong with them.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Problems::default();
        let p = &mut problems;
        if let Some(n) = self.max_attempts {
            p.require((1..=MOST_ATTEMPTS).contains(&n), "max_attempts", || {
                format!("must be from 1 to {MOST_ATTEMPTS}, is {n}; for no limit say null, in settings \"unlimited\"")
            });
        }
        p.require((1..=MOST_CRASHES).contains(&self.max_crashes), "max_crashes", || {
            format!("must be from 1 to {MOST_CRASHES}, is {}", self.max_crashes)
        });
        self.max_duration.iter().for_each(|d| duration::check(*d, "max_duration", p));
        self.timeout.iter().for_each(|d| duration::check(*d, "timeout", p));
        duration::check(self.max_retry_after, "max_retry_after", p);
        duration::check(self.max_postponed, "max_postponed", p);
        if let Some(deadline) = self.deadline {
            p.require(deadline > Timestamp::EPOCH, "deadline", || format!("{deadline} is not a time to come"));
        }
        self.backoff.check(p);
        self.jitter.check(p);
        check_kinds(&self.retry_for, "retry_for", p);
        check_kinds(&self.no_retry_for, "no_retry_for", p);
        if let Some(Err(why)) = self.success_if.as_deref().map(condition::check) {
            p.add("success_if", why);
        }
        for (field, method) in [("on_success", &self.on_success), ("on_final_failure", &self.on_final_failure)] {
            let ok = method.as_deref().is_none_or(|m| (1..=limits::METHOD).contains(&m.len()) && !m.contains('\0'));
            p.require(ok, field, || format!("must be a method's name of 1 to {} bytes", limits::METHOD));
        }
        match self.notify {
            Some(Notify::Failures(n)) => p.require(n > 0, "notify.failures", || "must be at least 1".into()),
            Some(Notify::FailingFor(d)) => duration::check(d, "notify.failing_for", p),
            None => {}
        }
        problems.into_result()
    }

    /// For tasks of redrive's own that something else waits for: tried until they succeed.
    pub(crate) fn until_done() -> Self {
        Self { max_attempts: None, max_crashes: MOST_CRASHES, ..Self::default() }
    }

    /// The policy of a callback, if it is redrive's own.
    pub(crate) fn of_callback(method: &str) -> Option<Self> {
        method.starts_with(OWN).then(Self::until_done)
    }

    /// This policy in the place of another, as a person wants it. A task whose end redrive itself waits for, as a saga does for its
    /// steps, still tells it: without that the saga would wait for ever.
    pub(crate) fn in_place_of(self: &Arc<Self>, before: &Self) -> Arc<Self> {
        match before.on_final_failure.as_deref() {
            Some(method) if method.starts_with(OWN) && self.on_final_failure != before.on_final_failure => {
                Arc::new(Self { on_final_failure: before.on_final_failure.clone(), ..(**self).clone() })
            }
            _ => self.clone(),
        }
    }

    /// The class of an error under this policy's lists.
    pub fn classify(&self, kind: &Kind) -> Class {
        classify(&self.retry_for, &self.no_retry_for, kind)
    }

    /// Whether its `no_retry_for` names an error of this kind.
    pub(crate) fn excepts(&self, kind: &Kind) -> bool {
        self.no_retry_for.iter().any(|named| named.covers(kind))
    }

    /// The moment from which no attempt may begin any more, for a task created at `created`.
    pub fn limit(&self, created: Timestamp) -> Option<Timestamp> {
        let by_duration = self.max_duration.map(|d| created + d);
        [by_duration, self.deadline].into_iter().flatten().min()
    }

    /// When it is tried again after its `failures`-th failure at `now`, or why it is not. `random` is from 0 to 1.
    pub fn next(
        &self,
        failures: u32,
        retry_after: Option<Duration>,
        created: Timestamp,
        now: Timestamp,
        random: f64,
    ) -> Result<Timestamp, DeadReason> {
        if self.max_attempts.is_some_and(|max| failures >= max) {
            return Err(DeadReason::Exhausted);
        }
        let due = now + self.delay(failures, random).max(retry_after.unwrap_or_default());
        match self.limit(created) {
            Some(limit) if limit <= due => Err(DeadReason::Expired),
            _ => Ok(due),
        }
    }

    /// How long a target is left alone that asks for a slower pace for the `n`-th time: for the time that it names, or else for
    /// the wait after the `n`-th failed attempt; at most `max_retry_after`. No time at all is as if it named none.
    pub(crate) fn slow_down(&self, named: Option<Duration>, n: u32, random: f64) -> Duration {
        let named = named.filter(|time| !time.is_zero());
        named.unwrap_or_else(|| self.delay(n, random)).min(self.max_retry_after)
    }

    /// The wait after the `n`-th failed attempt. `random` is from 0 to 1.
    pub fn delay(&self, n: u32, random: f64) -> Duration {
        self.jitter.apply(self.backoff.delay(n), random)
    }
}

fn check_kinds(kinds: &[Kind], field: &str, problems: &mut Problems) {
    problems.require(kinds.len() <= MOST_KINDS, field, || {
        format!("must have at most {MOST_KINDS} kinds, has {}; a name stands for all below it", kinds.len())
    });
    kinds.iter().take(MOST_KINDS).for_each(|kind| kind.check(field, problems));
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
fn is_default_attempts(n: &Option<u32>) -> bool {
    *n == DEFAULT_ATTEMPTS
}
fn is_default_crashes(n: &u32) -> bool {
    *n == DEFAULT_CRASHES
}
fn is_default_retry_after(time: &Duration) -> bool {
    *time == DEFAULT_RETRY_AFTER
}
fn is_default_postponed(time: &Duration) -> bool {
    *time == DEFAULT_POSTPONED
}

/// A row of source 1's `retry_strategy` table, as far as it is policy: the same field names and signals.
///
/// `retry_limit` below 0: no limit of attempts; 0: only `retry_duration` counts; above 0: that many
/// attempts. `notify_failed_num` likewise: never, after `notify_retry_duration`, after that many failures.
/// Both of source 1's time tests are written the wrong way round there; here a duration is over when
/// `gmt_create + duration <= now`.
///
/// ```
/// use redrive::{Policy, RetryStrategy};
///
/// let row = RetryStrategy { retry_limit: 0, retry_duration: 2, retry_duration_unit: "hour".into(), ..Default::default() };
/// let policy = Policy::try_from(row)?;
/// assert_eq!((policy.max_attempts, policy.max_duration.unwrap().as_secs()), (None, 7200));
/// # Ok::<(), redrive::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryStrategy {
    /// Allowed retries. Default: -1 (no limit).
    pub retry_limit: i64,
    /// How long to go on, in `retry_duration_unit`s; counts only if `retry_limit` is 0. Default: 0.
    pub retry_duration: i64,
    /// `minutes`, `hour` or `day`. Default: `minutes`.
    pub retry_duration_unit: String,
    /// Tell people after this many failures. Default: -1 (never).
    pub notify_failed_num: i64,
    /// Tell people after failing this long; counts only if `notify_failed_num` is 0. Default: 0.
    pub notify_retry_duration: i64,
    /// `minutes`, `hour` or `day`. Default: `minutes`.
    pub notify_retry_duration_unit: String,
}

impl Default for RetryStrategy {
    fn default() -> Self {
        Self {
            retry_limit: -1,
            retry_duration: 0,
            retry_duration_unit: "minutes".into(),
            notify_failed_num: -1,
            notify_retry_duration: 0,
            notify_retry_duration_unit: "minutes".into(),
        }
    }
}

impl TryFrom<RetryStrategy> for Policy {
    type Error = crate::Error;

    fn try_from(row: RetryStrategy) -> Result<Self> {
        let mut problems = Problems::default();
        let mut policy = Self { max_attempts: None, ..Self::default() };
        match row.retry_limit {
            ..0 => {}
            0 => {
                let (n, unit) = (row.retry_duration, &row.retry_duration_unit);
                policy.max_duration = in_units(n, unit, "retry_duration", &mut problems);
            }
            n => policy.max_attempts = Some(u32::try_from(n).unwrap_or(u32::MAX)),
        }
        match row.notify_failed_num {
            ..0 => {}
            0 => {
                let (n, unit) = (row.notify_retry_duration, &row.notify_retry_duration_unit);
                policy.notify = in_units(n, unit, "notify_retry_duration", &mut problems).map(Notify::FailingFor);
            }
            n => policy.notify = Some(Notify::Failures(u32::try_from(n).unwrap_or(u32::MAX))),
        }
        problems.into_result()?;
        policy.validate()?;
        Ok(policy)
    }
}

fn in_units(n: i64, unit: &str, field: &str, problems: &mut Problems) -> Option<Duration> {
    let seconds = match unit {
        "minutes" => 60,
        "hour" => 3600,
        "day" => 86_400,
        other => {
            problems.add(format!("{field}_unit"), format!("must be minutes, hour or day, is {other:?}"));
            return None;
        }
    };
    let positive = u64::try_from(n).ok().filter(|n| *n > 0);
    problems.require(positive.is_some(), field, || format!("must be at least 1, is {n}"));
    positive.map(|n| Duration::from_secs(n.saturating_mul(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strategy(change: impl FnOnce(&mut RetryStrategy)) -> Result<Policy> {
        let mut row = RetryStrategy::default();
        change(&mut row);
        row.try_into()
    }

    #[test]
    fn a_list_of_kinds_has_a_hundred_at_the_most() {
        let of = |n: usize| vec![Kind::from("wrong name"); n];
        let said = |policy: Policy| policy.validate().unwrap_err().to_string();
        let kinds = |n| Policy { no_retry_for: vec![Kind::TIMEOUT; n], ..Policy::default() };
        assert!(kinds(100).validate().is_ok());
        assert!(said(kinds(101)).starts_with("no_retry_for: must have at most 100 kinds, has 101"));
        let long = said(Policy { retry_for: of(1_000_000), ..Policy::default() });
        assert!(long.len() < 10_000 && long.contains("has 1000000"), "{long}");
    }

    #[test]
    fn source_1_a_negative_retry_limit_is_no_limit() {
        let policy = strategy(|r| (r.retry_limit, r.retry_duration) = (-1, 5)).unwrap();
        assert_eq!((policy.max_attempts, policy.max_duration), (None, None));
    }

    #[test]
    fn source_1_retry_limit_zero_goes_by_retry_duration() {
        let policy = strategy(|r| (r.retry_limit, r.retry_duration) = (0, 5)).unwrap();
        assert_eq!((policy.max_attempts, policy.max_duration), (None, Some(Duration::from_secs(300))));
    }

    #[test]
    fn source_1_a_positive_retry_limit_is_the_number_of_attempts() {
        let policy = strategy(|r| (r.retry_limit, r.retry_duration) = (7, 5)).unwrap();
        assert_eq!((policy.max_attempts, policy.max_duration), (Some(7), None));
    }

    #[test]
    fn source_1_a_row_without_values_has_the_defaults_of_the_table() {
        let row: RetryStrategy = serde_json::from_str("{}").unwrap();
        let (retry, notify) = (&*row.retry_duration_unit, &*row.notify_retry_duration_unit);
        assert_eq!((row.retry_limit, row.retry_duration, retry), (-1, 0, "minutes"));
        assert_eq!((row.notify_failed_num, row.notify_retry_duration, notify), (-1, 0, "minutes"));
        let policy = Policy::try_from(row).unwrap();
        assert_eq!((policy.max_attempts, policy.max_duration, policy.notify), (None, None, None));
    }

    #[test]
    fn source_1_durations_are_in_minutes_hours_or_days() {
        for (unit, seconds) in [("minutes", 60), ("hour", 3600), ("day", 86_400)] {
            let policy = strategy(|r| (r.retry_limit, r.retry_duration, r.retry_duration_unit) = (0, 2, unit.into()));
            assert_eq!(policy.unwrap().max_duration, Some(Duration::from_secs(2 * seconds)));
        }
        let said = strategy(|r| (r.retry_limit, r.retry_duration_unit) = (0, "weeks".into())).unwrap_err().to_string();
        assert!(said.contains("retry_duration_unit: must be minutes, hour or day"), "{said}");
    }

    #[test]
    fn source_1_notify_failed_num_negative_is_never_zero_by_time_positive_by_count() {
        let notify = |num| strategy(|r| (r.notify_failed_num, r.notify_retry_duration) = (num, 30)).unwrap().notify;
        assert_eq!(notify(-1), None);
        assert_eq!(notify(0), Some(Notify::FailingFor(Duration::from_secs(1800))));
        assert_eq!(notify(3), Some(Notify::Failures(3)));
    }

    #[test]
    fn every_problem_is_listed_at_once() {
        let policy = Policy {
            max_attempts: Some(0),
            max_duration: Some(Duration::MAX),
            deadline: Some(Timestamp::EPOCH),
            backoff: Backoff::exponential(Duration::ZERO, f64::NAN, Duration::from_nanos(5)),
            jitter: Jitter::Proportional(2.0),
            timeout: Some(Duration::ZERO),
            retry_for: vec![Kind::of("")],
            no_retry_for: vec![Kind::of("a b")],
            success_if: Some(" ".into()),
            notify: Some(Notify::Failures(0)),
            on_success: Some("".into()),
            on_final_failure: Some("x\0".into()),
            keep: true,
            max_crashes: 0,
            ..Policy::default()
        };
        let said = policy.validate().unwrap_err().to_string();
        for field in [
            "max_attempts",
            "max_duration",
            "deadline",
            "backoff.initial",
            "backoff.factor",
            "backoff.max",
            "jitter.proportional",
            "timeout",
            "retry_for",
            "no_retry_for",
            "success_if",
            "notify.failures",
            "on_success",
            "on_final_failure",
            "max_crashes",
        ] {
            assert!(said.contains(&format!("{field}:")), "{field} is missing in: {said}");
        }
        Policy::default().validate().unwrap();
    }

    #[test]
    fn a_callback_of_redrives_own_outlives_the_policy_that_it_came_with() {
        let calling = |method: &'static str| Policy { on_final_failure: Some(method.into()), ..Policy::default() };
        let after = |new: &Arc<Policy>, before: &Policy| new.in_place_of(before).on_final_failure.clone();
        let (plain, mine) = (Arc::new(Policy::default()), Arc::new(calling("mine")));
        assert_eq!(after(&plain, &calling("redrive.saga.ended")).as_deref(), Some("redrive.saga.ended"));
        assert_eq!(after(&mine, &calling("redrive.saga.ended")).as_deref(), Some("redrive.saga.ended"));
        assert_eq!(after(&plain, &calling("mine")), None, "a person's own is a person's to take away");
        assert!(Arc::ptr_eq(&plain.in_place_of(&Policy::default()), &plain));
    }

    #[test]
    fn unknown_fields_and_bad_durations_are_refused() {
        for json in [
            r#"{"max_atempts":3}"#,
            r#"{"timeout":"5 parsecs"}"#,
            r#"{"backoff":{"fixd":"1s"}}"#,
            r#"{"max_attempts":-1}"#,
        ] {
            assert!(serde_json::from_str::<Policy>(json).is_err(), "{json}");
        }
        assert_eq!(serde_json::from_str::<Policy>(r#"{"max_attempts":null}"#).unwrap().max_attempts, None);
    }

    #[test]
    fn round_trips_through_json_with_every_field_set() {
        let policy = Policy {
            max_attempts: None,
            max_duration: Some(Duration::from_secs(3600)),
            deadline: Some("2030-01-01T00:00:00.123Z".parse().unwrap()),
            backoff: Backoff::list([Duration::from_secs(1), Duration::from_millis(1500)]),
            jitter: Jitter::Proportional(0.25),
            timeout: Some(Duration::from_secs(10)),
            max_retry_after: Duration::from_secs(60),
            max_postponed: Duration::from_secs(3600),
            retry_for: vec![Kind::TIMEOUT, Kind::http(503)],
            no_retry_for: vec![Kind::of("Declined")],
            success_if: Some("result.code == 200".into()),
            on_exhausted: OnExhausted::Escalate,
            notify: Some(Notify::FailingFor(Duration::from_secs(1800))),
            on_success: Some("paid".into()),
            on_final_failure: Some("refund".into()),
            keep: true,
            max_crashes: 1,
            on_crash: OnCrash::Dead,
        };
        policy.validate().unwrap();
        let json = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&json).unwrap(), policy, "{json}");
        assert_eq!(serde_json::to_string(&Policy::default()).unwrap(), "{}");
    }
}
