//! Retries in memory, and their budget.

use redrive::resilience::{BreakerError, GaveUp, Retry, RetryBudget, Trip};
use redrive::{Cause, Failure, Kind, Notify, Policy};

use super::*;

fn quick() -> Policy {
    Policy { backoff: Backoff::fixed(ms(1)), jitter: Jitter::None, max_attempts: Some(4), ..Policy::default() }
}

#[tokio::test]
async fn it_tries_as_often_as_the_policy_says_and_tells_which_attempt_it_is() {
    let retry = Retry::new(quick()).unwrap();
    let mut seen = Vec::new();
    let failed = retry.call(|attempt| {
        seen.push(attempt);
        async { Err::<(), _>(std::fmt::Error) }
    });
    let failed = failed.await.unwrap_err();
    assert_eq!((failed.attempts, failed.why), (4, GaveUp::Exhausted));
    assert!(matches!(failed.cause, Cause::Error(std::fmt::Error)));
    assert_eq!(seen, [1, 2, 3, 4]);
}

#[tokio::test]
async fn a_call_that_a_breaker_rejected_is_not_tried_again() {
    let (breaker, _) = breaker(|b| b.trip(Trip::Consecutive(2)));
    let retry = Retry::new(quick()).unwrap();
    let failed = retry.call(|_| breaker.call(async { Err::<(), _>(std::fmt::Error) })).await.unwrap_err();
    assert_eq!((failed.attempts, failed.why), (3, GaveUp::Rejected), "two failed, the third was rejected");
    assert!(matches!(failed.cause, Cause::Error(BreakerError::Rejected(_))));
}

#[tokio::test]
async fn kinds_and_judges_decide_what_is_worth_a_retry() {
    let retry = Retry::new(Policy { no_retry_for: vec![Kind::of("http")], ..quick() }).unwrap();
    let judge = |ended: &Result<u16, ()>| redrive::resilience::HttpAnswer::new(ended.unwrap()).failure();
    let failed = retry.call_judged(|_| async { Ok(503) }, judge).await.unwrap_err();
    assert_eq!((failed.attempts, failed.why), (1, GaveUp::Rejected));
    assert!(matches!(failed.cause, Cause::Unmet(503)));
    let reject = |_: &Result<(), ()>| Some(Failure::reject("mine", "no"));
    assert_eq!(retry.call_judged(|_| async { Ok(()) }, reject).await.unwrap_err().attempts, 1);
}

#[tokio::test]
async fn an_attempt_has_a_time_limit_and_the_whole_has_one() {
    let limited = Retry::new(Policy { timeout: Some(ms(1)), max_attempts: Some(2), ..quick() }).unwrap();
    let failed = limited.call(|_| std::future::pending::<Result<(), std::fmt::Error>>()).await.unwrap_err();
    assert_eq!(failed.to_string(), "given up after 2 attempts: no result within 1ms");
    let clock = Clock::manual(START);
    let policy = Policy { max_duration: Some(secs(10)), max_attempts: None, ..quick() };
    let late = Retry::new(policy).unwrap().clock(clock.clone());
    let failed = late.call(|_| {
        clock.advance(secs(4));
        async { Err::<(), _>(std::fmt::Error) }
    });
    let failed = failed.await.unwrap_err();
    assert_eq!((failed.attempts, failed.why), (3, GaveUp::Expired), "a fourth would begin after 12 s");
}

#[test]
fn what_is_only_for_durable_calls_is_refused() {
    let policy = Policy {
        success_if: Some("result == 1".into()),
        notify: Some(Notify::Failures(1)),
        on_success: Some("a".into()),
        on_final_failure: Some("b".into()),
        keep: true,
        ..Policy::default()
    };
    let said = Retry::new(policy).unwrap_err().to_string();
    for field in ["success_if", "notify", "on_success", "on_final_failure", "keep"] {
        assert!(said.contains(&format!("{field}: is for calls that are written down")), "{said}");
    }
    assert!(Retry::new(Policy { max_attempts: Some(0), ..Policy::default() }).is_err());
}

#[test]
fn a_budget_is_a_share_of_the_calls_of_late_and_so_many_a_second() {
    let clock = Clock::manual(START);
    let budget = RetryBudget::with_clock(0.2, 3, clock.clone());
    let withdraw = |most: u32| (0..most).filter(|_| budget.withdraw()).count();
    (0..1000).for_each(|_| budget.deposit());
    assert_eq!(withdraw(500), 230, "a fifth of 1,000, and 3 a second for 10 s");
    clock.advance(secs(9));
    assert_eq!(withdraw(10), 0);
    clock.advance(secs(1)); // all of that is over
    assert_eq!(withdraw(500), 30);
    (0..10).for_each(|_| budget.deposit());
    assert_eq!(withdraw(500), 2);
}

#[tokio::test]
async fn in_an_outage_retries_do_not_multiply_the_load() {
    let clock = Clock::manual(START);
    let retry = Retry::new(quick()).unwrap().budget(RetryBudget::with_clock(0.2, 0, clock));
    let (mut attempts, mut without) = (0, 0);
    for _ in 0..100 {
        let failed = retry.call(|_| async { Err::<(), _>(std::fmt::Error) }).await.unwrap_err();
        attempts += failed.attempts;
        without += u32::from(failed.why == GaveUp::NoBudget);
    }
    assert_eq!(attempts, 120, "without a budget it would be 400");
    assert!(without > 90);
}
