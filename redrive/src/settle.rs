//! What becomes of a task when an attempt has ended: one pure function.
//!
//! [`settle`] looks at the task as it was claimed, at the [`Outcome`] of the attempt, at the time and at a
//! random number, and says what [`Change`] is to be written. It reads no clock and no database. The store
//! writes the change only if the task still is what it was (same id, version and owner). A task that was to be given up
//! because of limits that a person has changed meanwhile is decided over anew (`reconsider`).
//!
//! A task stops when any of these holds: its attempts are used up; its time is (`created + max_duration`, or
//! `deadline`), or would be at the next due time; it was rejected; a person cancelled or failed it; too many
//! nodes died holding it; its params cannot be read. The same limits are looked at again when it is claimed
//! ([`spent`]): what ran out of time while it waited does not run.

use std::time::Duration;

use crate::classify::{Class, Failure, Kind};
use crate::clock::Timestamp;
use crate::policy::{Notify, OnCrash, OnExhausted};
use crate::task::{Attempt, LastError, Status, StopRequest, Task};

/// The wait of a task that cannot be read, or recorded, on this node: until the key may be there.
const SEALED_WAIT: Duration = Duration::from_secs(60);

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It succeeded.
    Done,
    /// It failed: an error, a timeout, a panic, an unmet success condition.
    Failed(Failure),
    /// The handler said that trying again is of no use.
    Fatal(Failure),
    /// The handler asked to be called again later; no attempt is burnt.
    Snooze(Duration),
    /// What it called asks for a slower pace; no attempt is burnt.
    SlowDown(Failure),
    /// The handler said that the task is not wanted any more.
    Cancel,
    /// It was not executed, or not to its end, through no fault of its own (shutdown); no attempt is burnt.
    GivenBack,
    /// The stored params could not be read; no attempt is burnt.
    Undecodable(String),
    /// What redrive itself needs for an attempt cannot be read or written on this node: the key of its params is not here, or the journal
    /// of its saga is broken. No attempt is burnt.
    Sealed(String),
    /// The node that held it died; it may or may not have been executed.
    Crashed,
}

/// A failure, or a wish for a slower pace that the policy does not reject.
impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        let is_slow_down = failure.class == Class::Retry && failure.is_slow_down();
        if is_slow_down { Self::SlowDown(failure) } else { Self::Failed(failure) }
    }
}

/// Why a task is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadReason {
    /// Its attempts are used up.
    Exhausted,
    /// Its time is up.
    Expired,
    /// It failed with an error that no retry can mend.
    Rejected,
    /// A person failed it.
    FailedByHand,
    /// Too many nodes died while they held it.
    Crashed,
    /// Its params could not be read, or its row.
    Undecodable,
    /// Its target has asked for a slower pace for too long.
    Postponed,
}

impl DeadReason {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Exhausted,
        Self::Expired,
        Self::Rejected,
        Self::FailedByHand,
        Self::Crashed,
        Self::Undecodable,
        Self::Postponed,
    ];

    /// Its name in the database and the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::Expired => "expired",
            Self::Rejected => "rejected",
            Self::FailedByHand => "failed_by_hand",
            Self::Crashed => "crashed",
            Self::Undecodable => "undecodable",
            Self::Postponed => "postponed",
        }
    }

    /// Whether the policy's `on_exhausted = drop` lets such a task go without a trace. What nobody could
    /// have foreseen (a crash, unreadable params) or what a person did stays to be seen.
    const fn may_be_dropped(self) -> bool {
        matches!(self, Self::Exhausted | Self::Expired | Self::Rejected | Self::Postponed)
    }
}

/// Where a task goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Back to wait until it is due.
    Pending {
        /// When.
        due: Timestamp,
    },
    /// It is done and leaves.
    Done,
    /// It waits among the dead letters for a person.
    Dead(DeadReason),
    /// It is given up and, as its policy asks, leaves without becoming a dead letter.
    Dropped(DeadReason),
    /// It was cancelled and leaves.
    Cancelled,
}

impl To {
    /// Whether the task leaves the task table.
    pub const fn is_final(&self) -> bool {
        !matches!(self, Self::Pending { .. })
    }
}

/// What is to be written about a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Where it goes.
    pub to: To,
    /// Its attempts, this one included if it counts.
    pub attempts: u32,
    /// Nodes that died holding it.
    pub crashes: u32,
    /// How often it was put off.
    pub postponements: u32,
    /// What is to be noted as its last error; `None` leaves that as it was.
    pub failure: Option<Failure>,
    /// People are to be told now that it keeps failing.
    pub notice: bool,
}

/// What becomes of `task` after an attempt with this `outcome`. `random` is from 0 to 1.
///
/// ```
/// use redrive::{settle, Failure, NewTask, Outcome, To};
/// use redrive::testing::task;
/// use std::time::Duration;
///
/// let task = task(NewTask::new("charge", &7)?);
/// let now = task.created_at;
/// assert_eq!(settle(&task, &Outcome::Done, now, 0.0).to, To::Done);
///
/// let timeout = Outcome::Failed(Failure::retry("timeout", "no answer in 10s"));
/// let change = settle(&task, &timeout, now, 0.5);
/// assert_eq!(change.to, To::Pending { due: now + Duration::from_millis(2_500) });
/// assert_eq!(change.attempts, 1);
/// # Ok::<(), redrive::Error>(())
/// ```
pub fn settle(task: &Task, outcome: &Outcome, now: Timestamp, random: f64) -> Change {
    if task.undecodable.is_some() {
        return give_up(task, DeadReason::Undecodable);
    }
    let change = match outcome {
        Outcome::Done => task.unchanged(To::Done),
        Outcome::Failed(failure) => failed(task, failure, now, random),
        Outcome::Fatal(failure) => failed(task, &Failure { class: Class::Reject, ..failure.clone() }, now, random),
        Outcome::Snooze(delay) => postponed(task, now + *delay),
        Outcome::SlowDown(failure) => slowed_down(task, failure, now, random),
        Outcome::Cancel => task.unchanged(To::Cancelled),
        Outcome::GivenBack => task.unchanged(To::Pending { due: task.due }),
        Outcome::Undecodable(why) => undecodable(task, why),
        Outcome::Sealed(why) => {
            let wait = task.unchanged(To::Pending { due: due_within_limit(task, now + SEALED_WAIT) });
            Change { failure: Some(Failure::retry(Kind::SEALED, why)), ..wait }
        }
        Outcome::Crashed => crashed(task),
    };
    change.obeying(task.stop)
}

/// Why a pending task must not run any more, if so: looked at when it is claimed.
pub fn spent(task: &Task, now: Timestamp) -> Option<DeadReason> {
    if task.undecodable.is_some() {
        return Some(DeadReason::Undecodable);
    }
    if task.policy.limit(task.created_at).is_some_and(|limit| limit <= now) {
        return Some(DeadReason::Expired);
    }
    task.policy.max_attempts.is_some_and(|max| task.attempts >= max).then_some(DeadReason::Exhausted)
}

/// The change that ends a task for this reason: a dead letter, or nothing if its policy wants it so.
pub fn give_up(task: &Task, reason: DeadReason) -> Change {
    match &task.undecodable {
        Some(why) => undecodable(task, why),
        None => task.unchanged(given_up(task, reason)),
    }
}

fn undecodable(task: &Task, why: &str) -> Change {
    let change = task.unchanged(To::Dead(DeadReason::Undecodable));
    Change { failure: Some(Failure::reject(Kind::UNDECODABLE, why)), ..change }
}

/// What becomes of a task that was to be given up because of its limits, now that its policy is another: `task` has it. `None`: it was
/// not tried, and is not spent any more; there is nothing to be written.
pub(crate) fn reconsider(task: &Task, change: &Change, now: Timestamp, random: f64) -> Option<Change> {
    match &change.failure {
        // Its kind alone does not say that it asked for a slower pace.
        Some(failure) if matches!(change.to, To::Dead(DeadReason::Postponed) | To::Dropped(DeadReason::Postponed)) => {
            Some(settle(task, &Outcome::SlowDown(failure.clone()), now, random))
        }
        Some(failure) => Some(settle(task, &Outcome::Failed(failure.clone()), now, random)),
        None => spent(task, now).map(|reason| give_up(task, reason)),
    }
}

/// Chance for the jitter: of the task and its version, so that it needs no generator.
pub(crate) fn random(task: &Task) -> f64 {
    let mixed =
        xxhash_rust::xxh3::xxh3_64_with_seed(&task.id.as_i64().to_le_bytes(), u64::from(task.version.unsigned_abs()));
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}

fn given_up(task: &Task, reason: DeadReason) -> To {
    let drop = task.policy.on_exhausted == OnExhausted::Drop && reason.may_be_dropped();
    if drop { To::Dropped(reason) } else { To::Dead(reason) }
}

fn failed(task: &Task, failure: &Failure, now: Timestamp, random: f64) -> Change {
    let attempts = task.attempts.saturating_add(1);
    let to = match failure.class {
        Class::Reject => given_up(task, DeadReason::Rejected),
        Class::Retry => again(task, attempts, failure.retry_after, now, random),
    };
    let notice = task.notified_at.is_none() && notice_is_due(task, attempts, now);
    Change { to, attempts, failure: Some(failure.clone()), notice, ..task.unchanged(to) }
}

/// When it is tried again, or why not.
fn again(task: &Task, attempts: u32, retry_after: Option<Duration>, now: Timestamp, random: f64) -> To {
    let next = task.policy.next(attempts, retry_after, task.created_at, now, random);
    next.map_or_else(|reason| given_up(task, reason), |due| To::Pending { due })
}

fn notice_is_due(task: &Task, attempts: u32, now: Timestamp) -> bool {
    match task.policy.notify {
        None => false,
        Some(Notify::Failures(n)) => attempts >= n,
        Some(Notify::FailingFor(time)) => task.created_at + time <= now,
    }
}

fn postponed(task: &Task, due: Timestamp) -> Change {
    let to = To::Pending { due: due_within_limit(task, due) };
    Change { postponements: task.postponements.saturating_add(1), ..task.unchanged(to) }
}

/// A target that asks for a slower pace has not failed. What it said is noted, and the wait is counted: there is an end to it.
fn slowed_down(task: &Task, failure: &Failure, now: Timestamp, random: f64) -> Change {
    let wait = task.policy.slow_down(failure.retry_after, task.attempts.saturating_add(1), random);
    let mut change = postponed(task, now + wait);
    if task.waited().saturating_add(task.waits_until(now + wait, now)) > task.policy.max_postponed {
        change.to = given_up(task, DeadReason::Postponed);
    }
    Change { failure: Some(failure.clone()), ..change }
}

/// A task that waits is not put off past its limit: there it is found spent when it is claimed.
fn due_within_limit(task: &Task, due: Timestamp) -> Timestamp {
    task.policy.limit(task.created_at).map_or(due, |limit| due.min(limit))
}

/// A crash is not an attempt (it may not have begun), but a task that keeps killing nodes is poison.
/// It keeps its due time: it goes first, and the index entry stays where it is.
fn crashed(task: &Task) -> Change {
    let crashes = task.crashes.saturating_add(1);
    let give_up = task.policy.on_crash == OnCrash::Dead || crashes >= task.policy.max_crashes;
    let to = if give_up { To::Dead(DeadReason::Crashed) } else { To::Pending { due: task.due } };
    let node = task.locked_by.map_or_else(|| "?".into(), |n| n.to_string());
    let failure = Failure::retry(Kind::CRASH, format!("node {node} died while it held the task"));
    Change { crashes, failure: Some(failure), ..task.unchanged(to) }
}

impl Change {
    /// Whether the task is given up because of the limits in its policy: another one may decide otherwise.
    pub(crate) fn is_by_limits(&self) -> bool {
        use DeadReason::{Exhausted, Expired, Postponed};
        matches!(self.to, To::Dead(Exhausted | Expired | Postponed) | To::Dropped(Exhausted | Expired | Postponed))
    }

    /// A person's wish decides over what would otherwise wait on; what has ended has ended.
    pub(crate) fn obeying(mut self, stop: StopRequest) -> Self {
        self.to = match (self.to, stop) {
            (To::Pending { .. }, StopRequest::Cancel) => To::Cancelled,
            (To::Pending { .. }, StopRequest::Fail) => To::Dead(DeadReason::FailedByHand),
            (to, _) => to,
        };
        self
    }
}

impl Task {
    /// A change of place only.
    pub(crate) fn unchanged(&self, to: To) -> Change {
        Change {
            to,
            attempts: self.attempts,
            crashes: self.crashes,
            postponements: self.postponements,
            failure: None,
            notice: false,
        }
    }

    /// The task as it is after a change: what the store writes, waiting again or as it leaves.
    pub fn after(&self, change: &Change, now: Timestamp) -> Self {
        let mut task = self.clone();
        // What cannot be decoded may have any version, and a dead letter needs none.
        task.version = if task.undecodable.is_some() { 0 } else { task.version.wrapping_add(1) };
        (task.attempts, task.crashes, task.postponements) = (change.attempts, change.crashes, change.postponements);
        task.updated_at = now;
        if let To::Pending { due } = change.to {
            task.status = Status::Pending;
            task.due = due;
        }
        if let Some(failure) = &change.failure {
            let error = LastError::new(failure, now);
            let waited = match change.to {
                To::Pending { due } if change.postponements > self.postponements => self.waits_until(due, now),
                _ => Duration::ZERO,
            };
            let n = if change.postponements > self.postponements { self.attempts + 1 } else { change.attempts };
            task.remember(Attempt { waited, ..Attempt::new(n, &error, self.locked_by) });
            task.last_error = Some(error);
            task.first_failed_at.get_or_insert(now);
        }
        task
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::backoff::{Backoff, Jitter};
    use crate::new_task::NewTask;
    use crate::policy::Policy;
    use crate::task::limits;
    use crate::testing::task;

    const MINUTE: Duration = Duration::from_secs(60);

    fn task_with(policy: Policy) -> Task {
        task(NewTask::new("m", &1).unwrap().policy(policy))
    }

    fn timeout() -> Outcome {
        Outcome::Failed(Failure::retry(Kind::TIMEOUT, "no answer"))
    }

    #[test]
    fn source_1_success_deletes_the_record() {
        let t = task_with(Policy::default());
        assert_eq!(settle(&t, &Outcome::Done, t.created_at, 0.0), t.unchanged(To::Done));
    }

    #[test]
    fn source_1_a_failure_adds_one_to_failed_num() {
        let t = Task { attempts: 4, ..task_with(Policy::default()) };
        assert_eq!(settle(&t, &timeout(), t.created_at, 0.0).attempts, 5);
    }

    #[test]
    fn source_1_terminated_when_failed_num_reaches_a_positive_retry_limit() {
        let t = task_with(Policy { max_attempts: Some(3), ..Policy::default() });
        let to = |attempts| settle(&Task { attempts, ..t.clone() }, &timeout(), t.created_at, 0.0).to;
        assert!(!to(1).is_final());
        assert_eq!(to(2), To::Dead(DeadReason::Exhausted));
    }

    #[test]
    fn source_1_terminated_when_retry_duration_has_passed_and_retry_limit_is_zero() {
        let policy = Policy { max_attempts: None, max_duration: Some(MINUTE), ..Policy::default() };
        let t = Task {
            attempts: 1000,
            ..task_with(Policy { backoff: Backoff::fixed(Duration::from_secs(1)), jitter: Jitter::None, ..policy })
        };
        let to = |seconds| settle(&t, &timeout(), t.created_at + Duration::from_secs(seconds), 0.0).to;
        assert!(!to(58).is_final());
        assert_eq!(to(59), To::Dead(DeadReason::Expired), "the next one would come when it is over");
        assert_eq!(to(61), To::Dead(DeadReason::Expired));
    }

    #[test]
    fn source_1_never_terminated_with_a_negative_retry_limit() {
        let t = Task { attempts: 2_000_000, ..task_with(Policy { max_attempts: None, ..Policy::default() }) };
        assert!(!settle(&t, &timeout(), t.created_at + 500_000 * MINUTE, 0.0).to.is_final());
    }

    #[test]
    fn source_1_notice_after_notify_failed_num_failures_once() {
        let t = task_with(Policy { notify: Some(Notify::Failures(3)), ..Policy::default() });
        let notice = |attempts| settle(&Task { attempts, ..t.clone() }, &timeout(), t.created_at, 0.0).notice;
        assert_eq!([0, 1, 2, 3].map(notice), [false, false, true, true], "asked for again until it was sent");
        let told = Task { attempts: 5, notified_at: Some(t.created_at), ..t };
        assert!(!settle(&told, &timeout(), told.created_at, 0.0).notice);
    }

    #[test]
    fn source_1_notice_after_notify_retry_duration_counts_from_gmt_create() {
        let t = task_with(Policy { notify: Some(Notify::FailingFor(MINUTE)), ..Policy::default() });
        let notice = |seconds| settle(&t, &timeout(), t.created_at + Duration::from_secs(seconds), 0.0).notice;
        assert_eq!([59, 60, 61].map(notice), [false, true, true]);
        assert!(!settle(&t, &Outcome::Done, t.created_at + 2 * MINUTE, 0.0).notice, "a success is not a failure");
    }

    #[test]
    fn source_1_notice_is_looked_at_on_the_last_failure_too() {
        let t = task_with(Policy { max_attempts: Some(1), notify: Some(Notify::Failures(1)), ..Policy::default() });
        let change = settle(&t, &timeout(), t.created_at, 0.0);
        assert!(change.notice && change.to == To::Dead(DeadReason::Exhausted));
    }

    #[test]
    fn a_rejected_error_is_not_tried_again() {
        let t = task_with(Policy::default());
        let rejected = Outcome::Failed(Failure::reject("invalid_data", "no such card"));
        assert_eq!(settle(&t, &rejected, t.created_at, 0.0).to, To::Dead(DeadReason::Rejected));
    }

    #[test]
    fn a_task_whose_row_cannot_be_decoded_is_dead_whatever_came_of_it() {
        let policy = Policy { on_exhausted: OnExhausted::Drop, ..Policy::default() };
        let t = Task { undecodable: Some("max_attempts holds -1".into()), ..task_with(policy) };
        assert_eq!(spent(&t, t.created_at), Some(DeadReason::Undecodable));
        for outcome in [Outcome::Crashed, Outcome::GivenBack, timeout()] {
            let change = settle(&t, &outcome, t.created_at, 0.0);
            assert_eq!(change.to, To::Dead(DeadReason::Undecodable));
            assert_eq!(change.failure.unwrap().message, "max_attempts holds -1");
            assert!(!give_up(&t, DeadReason::Expired).is_by_limits());
        }
    }

    #[test]
    fn drop_lets_the_foreseeable_go_and_keeps_the_rest() {
        let t = task_with(Policy { max_attempts: Some(1), on_exhausted: OnExhausted::Drop, ..Policy::default() });
        let to = |outcome| settle(&t, &outcome, t.created_at, 0.0).to;
        assert_eq!(to(timeout()), To::Dropped(DeadReason::Exhausted));
        assert_eq!(to(Outcome::Undecodable("?".into())), To::Dead(DeadReason::Undecodable));
    }

    #[test]
    fn retry_after_is_never_shortened() {
        let t = task_with(Policy { jitter: Jitter::None, ..Policy::default() });
        let due = |after| settle(&t, &Failure::retry("http.500", "").after(after).into(), t.created_at, 0.0).to;
        assert_eq!(due(10 * MINUTE), To::Pending { due: t.created_at + 10 * MINUTE });
        assert_eq!(due(Duration::from_secs(1)), To::Pending { due: t.created_at + Duration::from_secs(2) });
    }

    fn slow_down(after: Option<Duration>) -> Outcome {
        Failure { retry_after: after, ..Failure::retry("http.429", "too many requests") }.into()
    }

    #[test]
    fn a_wish_for_a_slower_pace_burns_no_attempt() {
        let t = Task { attempts: 3, ..task_with(Policy { jitter: Jitter::None, ..Policy::default() }) };
        let change = |after| settle(&t, &slow_down(after), t.created_at, 0.0);
        let due = |after| match change(after).to {
            To::Pending { due } => due.since(t.created_at).as_secs(),
            to => panic!("{to:?}"),
        };
        let named = |seconds| due(Some(Duration::from_secs(seconds)));
        assert_eq!([1, 30, 299].map(named), [1, 30, 299]);
        assert_eq!([301, 31_536_000, u64::MAX].map(named), [300; 3], "as long as the policy lets it");
        assert_eq!([due(None), named(0)], [16; 2], "by the policy's backoff");
        let one = change(None);
        assert_eq!((one.attempts, one.postponements, one.notice), (3, 1, false));
        assert_eq!(one.failure.unwrap().kind, Kind::http(429));
    }

    #[test]
    fn what_asks_for_a_slower_pace() {
        let is = |kind: &'static str, after: Option<u64>| {
            let failure = Failure { retry_after: after.map(Duration::from_secs), ..Failure::retry(kind, "") };
            matches!(Outcome::from(failure), Outcome::SlowDown(_))
        };
        assert!(is("http.429", None) && is("http.429", Some(1)) && is("slow_down", None) && is("http.503", Some(1)));
        assert!(
            !is("http.503", None) && !is("http.500", Some(1)) && !is("timeout", Some(1)) && !is("slow_downer", None)
        );
        let rejected = Outcome::from(Failure::reject("http.429", ""));
        assert!(matches!(rejected, Outcome::Failed(_)), "a policy may say that it is not tried again");
    }

    #[test]
    fn being_slowed_down_ends_in_time() {
        let policy = Policy { max_postponed: 10 * MINUTE, max_attempts: Some(1), ..Policy::default() };
        // How often it waits if its lane lets it begin so long after it is due.
        let waits = |late: Duration| {
            let (mut t, mut waits) = (task_with(policy.clone()), 0);
            let mut now = t.created_at;
            loop {
                let change = settle(&t, &slow_down(Some(2 * MINUTE)), now, 0.0);
                t = t.after(&change, now);
                match change.to {
                    To::Pending { due } => (now, waits) = (due + late, waits + 1),
                    to => break (t, to, waits),
                }
            }
        };
        let (t, dead, n) = waits(Duration::ZERO);
        assert_eq!((dead, n, t.attempts), (To::Dead(DeadReason::Postponed), 5, 0));
        let noted: Vec<_> = t.history.iter().map(|past| (past.n, past.times, past.waited)).collect();
        assert_eq!(noted, [(1, 5, 10 * MINUTE), (1, 1, Duration::ZERO)]);
        let (t, _, n) = waits(3 * MINUTE);
        assert_eq!((n, t.waited()), (2, 7 * MINUTE), "what its lane makes it wait counts as well");
    }

    #[test]
    fn what_was_postponed_for_too_long_is_reconsidered_without_an_attempt() {
        let t = task_with(Policy { max_postponed: MINUTE, ..Policy::default() });
        let said = Outcome::SlowDown(Failure::retry(Kind::ERROR, "busy").after(2 * MINUTE));
        let change = settle(&t, &said, t.created_at, 0.0);
        assert!(change.to == To::Dead(DeadReason::Postponed) && change.is_by_limits());
        let patient = Task { policy: Policy::default().into(), ..t };
        let again = reconsider(&patient, &change, patient.created_at, 0.0).unwrap();
        assert_eq!((again.attempts, again.to), (0, To::Pending { due: patient.created_at + 2 * MINUTE }));
    }

    #[test]
    fn deadlines_hold_for_what_is_slowed_down_and_old_waits_are_not_forgotten() {
        let t = task_with(Policy { max_duration: Some(MINUTE), ..Policy::default() });
        let to = settle(&t, &slow_down(Some(5 * MINUTE)), t.created_at, 0.0).to;
        assert_eq!(to, To::Pending { due: t.created_at + MINUTE }, "there it is found to have run out of time");
        let mut t = task_with(Policy { max_attempts: None, ..Policy::default() });
        for _ in 0..30 {
            for outcome in [slow_down(Some(MINUTE)), timeout()] {
                t = t.after(&settle(&t, &outcome, t.created_at, 0.0), t.created_at);
            }
        }
        assert_eq!((t.waited(), t.attempts, t.history.len()), (30 * MINUTE, 30, 10));
        let (slow, failed): (Vec<_>, Vec<_>) = t.history.iter().partition(|past| !past.waited.is_zero());
        assert_eq!((slow.len(), slow[0].waited, failed.len()), (1, 30 * MINUTE, 9), "and take no place of failures");
    }

    #[test]
    fn a_crash_burns_no_attempt_and_the_third_is_death() {
        let t = task_with(Policy::default());
        let crash = |crashes| settle(&Task { crashes, ..t.clone() }, &Outcome::Crashed, t.created_at, 0.0);
        assert_eq!((crash(0).to, crash(0).attempts), (To::Pending { due: t.due }, 0));
        assert_eq!(crash(2).to, To::Dead(DeadReason::Crashed));
        let once = task_with(Policy { on_crash: OnCrash::Dead, ..Policy::default() });
        assert_eq!(settle(&once, &Outcome::Crashed, t.created_at, 0.0).to, To::Dead(DeadReason::Crashed));
    }

    #[test]
    fn another_policy_decides_anew_over_what_its_limits_had_ended() {
        let limits = |max_attempts, deadline| Policy { max_attempts, deadline, ..Policy::default() };
        let with = |t: &Task, policy: Policy| Task { policy: policy.into(), ..t.clone() };
        let t = Task { attempts: 2, ..task_with(limits(Some(3), None)) };
        let now = t.created_at + MINUTE;
        let change = settle(&t, &timeout(), now, 0.0);
        assert!(change.is_by_limits());
        let more = reconsider(&with(&t, limits(Some(10), None)), &change, now, 0.0).unwrap();
        assert!(!more.to.is_final() && (more.attempts, &more.failure) == (3, &change.failure), "{more:?}");
        let late = reconsider(&with(&t, limits(Some(10), Some(now))), &change, now, 0.0).unwrap();
        assert_eq!(late.to, To::Dead(DeadReason::Expired));

        let t = task_with(limits(None, Some(now)));
        let change = give_up(&t, spent(&t, now).unwrap());
        assert_eq!(reconsider(&with(&t, limits(None, None)), &change, now, 0.0), None);
        assert_eq!(reconsider(&with(&t, limits(Some(1), Some(now))), &change, now, 0.0), Some(change));
        assert!(!settle(&t, &Outcome::Undecodable("?".into()), now, 0.0).is_by_limits());
    }

    #[test]
    fn a_wish_to_stop_decides_over_waiting_but_not_over_done() {
        let t = Task { stop: StopRequest::Cancel, ..task_with(Policy::default()) };
        let to = |t: &Task, outcome| settle(t, &outcome, t.created_at, 0.0).to;
        assert_eq!(to(&t, timeout()), To::Cancelled);
        assert_eq!(to(&t, Outcome::GivenBack), To::Cancelled);
        assert_eq!(to(&t, Outcome::Done), To::Done);
        let t = Task { stop: StopRequest::Fail, ..t };
        assert_eq!(to(&t, Outcome::Snooze(MINUTE)), To::Dead(DeadReason::FailedByHand));
    }

    fn any_policy() -> impl Strategy<Value = Policy> {
        let duration = || (1u64..100_000).prop_map(Duration::from_millis);
        let backoff = prop_oneof![
            (1u64..5_000, 1.0..10.0, 5_000u64..100_000).prop_map(|(i, f, m)| Backoff::exponential(
                Duration::from_millis(i),
                f,
                Duration::from_millis(m)
            )),
            (1u64..5_000, 5_000u64..100_000)
                .prop_map(|(i, m)| Backoff::linear(Duration::from_millis(i), Duration::from_millis(m))),
            duration().prop_map(Backoff::fixed),
            prop::collection::vec(duration(), 1..5).prop_map(Backoff::list),
        ];
        let jitter = prop_oneof![
            Just(Jitter::None),
            Just(Jitter::Full),
            Just(Jitter::Equal),
            duration().prop_map(Jitter::Add),
            (0.0..=1.0).prop_map(Jitter::Proportional),
        ];
        let limits = (prop::option::of(1u32..20), prop::option::of(duration()), prop::option::of(duration()));
        (limits, backoff, jitter).prop_map(|((max_attempts, max_duration, deadline), backoff, jitter)| Policy {
            max_attempts,
            max_duration,
            deadline: deadline.map(|d| task_with(Policy::default()).created_at + d),
            backoff,
            jitter,
            ..Policy::default()
        })
    }

    fn any_outcome() -> impl Strategy<Value = Outcome> {
        prop_oneof![
            8 => prop::option::of(0u64..60_000).prop_map(|after| Outcome::Failed(Failure {
                retry_after: after.map(Duration::from_millis), ..Failure::retry("timeout", "")
            })),
            1 => (0u64..100_000).prop_map(|d| Outcome::Snooze(Duration::from_millis(d))),
            1 => prop::option::of(0u64..100_000).prop_map(|ms| slow_down(ms.map(Duration::from_millis))),
            1 => Just(Outcome::GivenBack),
            1 => Just(Outcome::Crashed),
            1 => Just(Outcome::Done),
            1 => Just(Outcome::Failed(Failure::reject("invalid_data", ""))),
        ]
    }

    proptest! {
        /// A whole life: it never exceeds its limits, is never due past them, and what has ended stays ended.
        #[test]
        fn a_life_stays_within_its_policy(policy in any_policy(), outcomes in prop::collection::vec((any_outcome(), 0.0..1.0, 0u64..5_000), 1..60)) {
            let mut task = task_with(policy.clone());
            let limit = policy.limit(task.created_at);
            let mut now = task.created_at;
            for (outcome, random, took) in outcomes {
                now = now.max(task.due);
                if let Some(reason) = spent(&task, now) {
                    prop_assert!(give_up(&task, reason).to.is_final());
                    break;
                }
                prop_assert!(limit.is_none_or(|limit| now < limit), "an attempt began past the limit");
                now = now + Duration::from_millis(took);
                let change = settle(&task, &outcome, now, random);
                prop_assert!(policy.max_attempts.is_none_or(|max| change.attempts <= max));
                prop_assert!(change.crashes <= policy.max_crashes);
                if let To::Pending { due } = change.to {
                    prop_assert!(limit.is_none_or(|limit| due <= limit), "due past the limit");
                    if let Outcome::Failed(failure) = &outcome {
                        prop_assert!(due >= now + failure.retry_after.unwrap_or_default());
                        prop_assert!(limit.is_none_or(|limit| due < limit), "tried again when its time is up");
                    }
                } else {
                    break;
                }
                let next = task.after(&change, now);
                prop_assert_eq!((next.version, next.status), (task.version + 1, Status::Pending));
                prop_assert!(next.history.len() <= limits::HISTORY);
                task = next;
            }
        }
    }
}
