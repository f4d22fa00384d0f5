//! Permits, probes and waits.

use futures_util::FutureExt;
use redrive::resilience::{BreakerError, Mode, Reason, State, Trip, Window};

use super::*;

/// Half-open, with three probes to be had.
fn half_open() -> (CircuitBreaker, Clock) {
    let (breaker, clock) = breaker(|b| b.trip(Trip::Consecutive(1)));
    fail(&breaker, 1);
    clock.advance(secs(5));
    (breaker, clock)
}

#[test]
fn a_probe_that_is_dropped_or_ignored_decides_nothing_and_another_may_go() {
    let (breaker, _) = half_open();
    for _ in 0..10 {
        drop(acquire(&breaker));
        acquire(&breaker).ignore();
    }
    let probes: Vec<_> = (0..3).map(|_| acquire(&breaker)).collect();
    assert_eq!(rejected(&breaker).state, State::HalfOpen);
    probes.into_iter().for_each(Permit::success);
    assert_eq!(breaker.state(), State::Closed);
}

#[tokio::test]
async fn a_probe_whose_future_is_dropped_or_panics_decides_nothing() {
    let (breaker, _) = half_open();
    for _ in 0..5 {
        let mut hanging = Box::pin(breaker.call(std::future::pending::<Result<(), ()>>()));
        assert!((&mut hanging).now_or_never().is_none());
        assert_eq!(breaker.snapshot().probes.out, 1);
        drop(hanging);
        let panicking =
            std::panic::AssertUnwindSafe(|| breaker.call_sync(|| -> Result<(), ()> { panic!("on purpose") }));
        assert!(std::panic::catch_unwind(panicking).is_err());
    }
    let probes = breaker.snapshot().probes;
    assert_eq!((breaker.state(), probes.out, probes.failed), (State::HalfOpen, 0, 0));
}

#[test]
fn a_probe_that_takes_too_long_opens_again_and_its_late_end_changes_nothing() {
    let (breaker, clock) = half_open();
    let hanging = acquire(&breaker);
    clock.advance(secs(30) - ms(1));
    assert_eq!(breaker.state(), State::HalfOpen);
    clock.advance(ms(1));
    assert_eq!(breaker.state(), State::Open);
    assert_eq!(breaker.snapshot().open_until, Some(START + secs(5 + 30 + 10)));
    clock.advance(secs(10));
    succeed(&breaker, 2);
    hanging.success(); // would be the third
    assert_eq!((breaker.state(), breaker.snapshot().probes.succeeded), (State::HalfOpen, 2));
}

#[test]
fn looking_late_changes_nothing_about_when_it_opened() {
    let (breaker, clock) = half_open();
    let hanging = acquire(&breaker);
    clock.advance(secs(3600));
    let seen = breaker.snapshot();
    assert_eq!((seen.state, seen.opens, seen.since), (State::HalfOpen, 2, START + secs(5 + 30 + 10)));
    drop(hanging);
}

#[test]
fn late_results_change_nothing() {
    let (breaker, clock) = breaker(|b| b.trip(Trip::Consecutive(2)).probes(1, 1));
    let late: Vec<_> = (0..10).map(|_| acquire(&breaker)).collect();
    let mut late = late.into_iter();
    fail(&breaker, 2);
    let until = rejected(&breaker).open_until;
    late.by_ref().take(3).for_each(Permit::failure); // while it is open
    assert_eq!(rejected(&breaker).open_until, until);
    clock.advance(secs(5));
    late.by_ref().take(3).for_each(Permit::success); // while it is half-open
    assert_eq!(breaker.state(), State::HalfOpen);
    succeed(&breaker, 1);
    late.for_each(Permit::failure); // when it is closed again
    assert_eq!((breaker.state(), breaker.snapshot().rules[0].bad), (State::Closed, 0));
}

#[test]
fn fewer_successes_than_probes_may_be_enough_and_it_is_decided_early() {
    let half_open = || {
        let (breaker, clock) = breaker(|b| b.trip(Trip::Consecutive(1)).probes(5, 3));
        fail(&breaker, 1);
        clock.advance(secs(5));
        breaker
    };
    let breaker = half_open();
    fail(&breaker, 2);
    assert_eq!(breaker.state(), State::HalfOpen, "three can still succeed");
    succeed(&breaker, 3);
    assert_eq!(breaker.state(), State::Closed);
    let breaker = half_open();
    succeed(&breaker, 2);
    fail(&breaker, 3);
    assert_eq!(breaker.state(), State::Open);
}

#[test]
fn the_wait_grows_and_is_the_first_one_again_once_it_was_stable() {
    let (breaker, clock) = breaker(|b| b.trip(Trip::Consecutive(1)).probes(1, 1).stable_after(secs(60)));
    let mut waits = Vec::new();
    let mut cycle = |closed_for| {
        clock.advance(secs(closed_for));
        fail(&breaker, 1);
        let wait = rejected(&breaker).retry_after.unwrap();
        clock.advance(wait);
        succeed(&breaker, 1);
        waits.push(wait.as_secs());
    };
    [0, 59, 0, 59, 0, 0, 0, 60, 59].into_iter().for_each(&mut cycle);
    assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 5, 10]);
}

#[test]
fn waits_are_spread_by_chance_and_the_same_for_the_same_seed() {
    let wait = |seed| {
        let jitter = |b: BreakerBuilder| b.open_wait(Backoff::fixed(secs(100)), Jitter::Proportional(0.2)).seed(seed);
        let (breaker, _) = breaker(|b| jitter(b.trip(Trip::Consecutive(1))));
        fail(&breaker, 1);
        rejected(&breaker).retry_after.unwrap()
    };
    let waits: Vec<_> = (0..100).map(wait).collect();
    assert!(waits.iter().all(|w| (secs(80)..=secs(120)).contains(w)));
    assert!(waits.iter().any(|w| *w < secs(90)) && waits.iter().any(|w| *w > secs(110)), "{waits:?}");
    assert_eq!(wait(7), wait(7));
}

#[test]
fn slow_calls_open_it_whether_they_succeed_or_not() {
    let slow = Trip::slow_rate(secs(2), 0.5, Window::default(), 4);
    let (breaker, clock) = breaker(|b| b.trip(slow));
    let call = |took, ok: bool| {
        let permit = acquire(&breaker);
        clock.advance(took);
        if ok { permit.success() } else { permit.failure() }
    };
    call(ms(1999), false);
    call(ms(0), true);
    call(secs(2), true);
    assert_eq!(breaker.state(), State::Closed);
    call(secs(2), false);
    assert_eq!(breaker.state(), State::Open);
}

#[test]
fn a_count_window_slides_call_by_call() {
    let (breaker, _) = breaker(|b| b.trip(Trip::failure_rate(0.5, Window::Count(10), 10)));
    fail(&breaker, 4);
    succeed(&breaker, 6); // 4 of 10
    fail(&breaker, 4); // the first four are forgotten: still 4 of 10
    assert_eq!(breaker.state(), State::Closed);
    fail(&breaker, 1); // 5 of 10
    assert_eq!(breaker.state(), State::Open);
}

#[test]
fn forced_open_rejects_and_forced_closed_lets_through_until_it_is_reset() {
    let (breaker, clock) = breaker(|b| b.trip(Trip::Consecutive(1)));
    breaker.force_open();
    clock.advance(secs(3600));
    let refused = rejected(&breaker);
    assert_eq!((refused.state, refused.open_until), (State::ForcedOpen, None));
    breaker.force_closed();
    fail(&breaker, 100);
    assert_eq!(breaker.state(), State::ForcedClosed);
    let before = acquire(&breaker);
    breaker.reset();
    before.failure();
    assert_eq!((breaker.state(), breaker.snapshot().opens), (State::Closed, 0));
    fail(&breaker, 1);
    assert_eq!(breaker.state(), State::Open);
    breaker.reset();
    assert_eq!(breaker.state(), State::Closed);
}

#[test]
fn one_that_only_observes_goes_through_its_states_and_rejects_nobody() {
    let (breaker, clock) = breaker(|b| b.trip(Trip::Consecutive(2)).mode(Mode::Observe).probes(1, 1));
    fail(&breaker, 2);
    assert_eq!(breaker.state(), State::Open);
    fail(&breaker, 10);
    assert_eq!(breaker.snapshot().rejected, 10, "would have been");
    clock.advance(secs(5));
    let probe = acquire(&breaker);
    fail(&breaker, 5); // beside the probe: they say nothing
    assert_eq!(breaker.state(), State::HalfOpen);
    probe.success();
    assert_eq!(breaker.state(), State::Closed);
    fail(&breaker, 2);
    breaker.set_mode(Mode::Enforce);
    assert_eq!(rejected(&breaker).state, State::Open);
}

#[tokio::test]
async fn a_judge_says_what_an_end_means() {
    use redrive::resilience::HttpAnswer;
    let (breaker, _) = breaker(|b| b.trip(Trip::Consecutive(2)));
    let answer = async |status| {
        let judge = |ended: &Result<u16, ()>| HttpAnswer::new(*ended.as_ref().unwrap()).health();
        breaker.call_judged(async move { Ok(status) }, judge).await
    };
    for status in [404, 200, 503, 400, 503] {
        assert_eq!(answer(status).await, Ok(status));
    }
    assert_eq!(breaker.state(), State::Closed);
    assert_eq!(answer(500).await, Ok(500));
    assert!(matches!(answer(200).await, Err(BreakerError::Rejected(_))));
}

#[test]
fn an_event_says_why() {
    let (breaker, clock) = breaker(|b| b.trip(Trip::failure_rate(0.5, Window::default(), 4)).probes(1, 1));
    let mut events = breaker.events();
    succeed(&breaker, 2);
    fail(&breaker, 2);
    clock.advance(secs(5));
    fail(&breaker, 1);
    breaker.reset();
    let told: Vec<_> = std::iter::from_fn(|| events.try_next()).collect();
    let why: Vec<_> = told.iter().map(|e| e.reason.to_string()).collect();
    let tripped = "2 of 4 calls (at least 50 % failed within 10s)";
    assert_eq!(why, [tripped, "the wait is over", "a probe failed", "by hand"]);
    assert!(matches!(&told[0].reason, Reason::Tripped(tally) if (tally.bad, tally.total) == (2, 4)));
    assert_eq!(told[0].open_until, Some(START + secs(5)));
}
