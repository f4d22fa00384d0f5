//! A policy in words, and the times at which a task will be tried.

use std::time::Duration;

use redrive::{Backoff, Jitter, Notify, OnCrash, OnExhausted, Policy, Task, Timestamp};

use super::html::duration;
use super::words::{Words, fill};

/// Coming attempts that are drawn.
const MOST_COMING: usize = 12;
/// Waits that are added up one by one; those after them are all alike.
const MOST_ADDED: u32 = 10_000;

/// What it says, a sentence each, the most important first.
pub(super) fn in_words(policy: &Policy, w: &Words) -> Vec<String> {
    let mut all = vec![tries(policy, w)];
    all.extend((policy.max_attempts != Some(1)).then(|| waits(policy, w)));
    let span = |time: Duration| duration(time, w);
    all.extend(policy.timeout.map(|time| fill(w.policy_timeout, &[&span(time)])));
    let slower = [policy.max_retry_after, policy.max_postponed];
    let usual = Policy::default();
    if slower != [usual.max_retry_after, usual.max_postponed] {
        let [once, all_in_all] = slower.map(span);
        all.push(fill(w.policy_retry_after, &[&once, &all_in_all]));
    }
    all.extend(policy.max_duration.map(|time| fill(w.policy_duration, &[&span(time)])));
    all.extend(policy.deadline.map(|time| fill(w.policy_deadline, &[&time])));
    for (kinds, word) in [(&policy.retry_for, w.policy_retry_for), (&policy.no_retry_for, w.policy_no_retry_for)] {
        let kinds = kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        all.extend((!kinds.is_empty()).then(|| fill(word, &[&kinds])));
    }
    all.extend(policy.success_if.as_ref().map(|condition| fill(w.policy_success_if, &[condition])));
    all.extend(policy.notify.map(|notify| match notify {
        Notify::Failures(n) => fill(w.policy_notify_failures, &[&n]),
        Notify::FailingFor(time) => fill(w.policy_notify_for, &[&span(time)]),
    }));
    all.extend(policy.on_success.as_ref().map(|method| fill(w.policy_on_success, &[method])));
    all.extend(policy.on_final_failure.as_ref().map(|method| fill(w.policy_on_failure, &[method])));
    all.extend((policy.on_crash == OnCrash::Dead).then(|| w.policy_on_crash.to_owned()));
    all.extend(policy.keep.then(|| w.policy_keep.to_owned()));
    all
}

fn tries(policy: &Policy, w: &Words) -> String {
    let then = match policy.on_exhausted {
        OnExhausted::Dead => w.policy_then_dead,
        OnExhausted::Escalate => w.policy_then_escalate,
        OnExhausted::Drop => w.policy_then_drop,
    };
    match policy.max_attempts {
        None => fill(w.policy_unlimited, &[]),
        Some(1) => fill(w.policy_once, &[&then]),
        Some(n) => fill(w.policy_tries, &[&n, &duration(whole(policy, n), w), &then]),
    }
}

/// How long all of its attempts take if each fails at once.
fn whole(policy: &Policy, attempts: u32) -> Duration {
    let waits = attempts.saturating_sub(1);
    let added = waits.min(MOST_ADDED);
    let sum = (1..=added).map(|n| policy.delay(n, 0.5)).fold(Duration::ZERO, Duration::saturating_add);
    sum.saturating_add(policy.delay(added.max(1), 0.5).saturating_mul(waits - added))
}

fn waits(policy: &Policy, w: &Words) -> String {
    let span = |time: &Duration| duration(*time, w);
    let firsts = || [1, 2, 3].map(|n| duration(policy.backoff.delay(n), w)).join(", ");
    let waits = match &policy.backoff {
        Backoff::Fixed(every) => fill(w.policy_fixed, &[&span(every)]),
        Backoff::List(all) => fill(w.policy_list, &[&all.iter().map(span).collect::<Vec<_>>().join(", ")]),
        Backoff::Exponential { max, .. } | Backoff::Linear { max, .. } => {
            fill(w.policy_grows, &[&firsts(), &span(max)])
        }
    };
    let chance = match &policy.jitter {
        Jitter::None => w.policy_no_jitter.to_owned(),
        Jitter::Add(most) => fill(w.policy_jitter_add, &[&span(most)]),
        _ => w.policy_jitter.to_owned(),
    };
    waits + &chance
}

/// When it will be tried if it goes on failing: the next time, and those after it as the policy has them on average.
pub(super) fn coming(task: &Task, now: Timestamp) -> Vec<Timestamp> {
    let (mut due, mut failures) = (task.due.max(now), task.attempts);
    let mut all = Vec::new();
    if task.policy.limit(task.created_at).is_some_and(|limit| limit <= due) {
        return all;
    }
    while all.len() < MOST_COMING && task.policy.max_attempts.is_none_or(|most| failures < most) {
        all.push(due);
        failures = failures.saturating_add(1);
        match task.policy.next(failures, None, task.created_at, due, 0.5) {
            Ok(next) => due = next,
            Err(_) => break,
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::words::Lang;
    use super::*;

    fn said(policy: &Policy) -> Vec<String> {
        in_words(policy, Lang::En.words())
    }

    #[test]
    fn a_policy_reads_as_a_sentence() {
        let policy = Policy { max_attempts: Some(5), jitter: Jitter::None, ..Policy::default() };
        assert_eq!(said(&policy)[0], "Tries up to 5 times over about 30 s, then it is a dead letter.");
        assert_eq!(said(&policy)[1], "Waits 2 s, 4 s, 8 s … up to 10 min after a failure.");
        let policy = Policy { max_attempts: Some(1), on_exhausted: OnExhausted::Drop, ..Policy::default() };
        assert!(said(&policy)[0].starts_with("Tries once, then it goes"), "{:?}", said(&policy));
        assert!(said(&policy).iter().all(|sentence| !sentence.starts_with("Waits")), "{:?}", said(&policy));
        let ever = Policy { max_attempts: None, backoff: Backoff::fixed(Duration::from_secs(3)), ..Policy::default() };
        assert_eq!(said(&ever)[0], "Tries until it succeeds.");
        assert_eq!(said(&ever)[1], "Waits 3 s after each failure, and up to 1 s more by chance.");
    }

    #[test]
    fn many_attempts_are_added_up_quickly() {
        let policy =
            Policy { backoff: Backoff::fixed(Duration::from_secs(1)), jitter: Jitter::None, ..Policy::default() };
        assert_eq!(whole(&policy, 1_000_000).as_secs(), 999_999);
        assert_eq!(whole(&policy, 1).as_secs(), 0);
    }
}
