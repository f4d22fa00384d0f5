//! Source 4's state machine, transition by transition.

use redrive::resilience::{BreakerError, LastGood, Served, State, Trip, Window};

use super::*;

#[test]
fn source_4_closed_opens_when_more_fail_within_the_time_than_are_allowed() {
    let (breaker, clock) = breaker(|b| b.trip(Trip::failures(3, secs(10))));
    fail(&breaker, 1);
    clock.advance(secs(4));
    fail(&breaker, 1);
    clock.advance(secs(5));
    assert_eq!(breaker.state(), State::Closed);
    fail(&breaker, 1);
    assert_eq!(breaker.state(), State::Open);
}

#[test]
fn source_4_the_error_counter_goes_by_time_so_that_chance_errors_do_not_open() {
    let (breaker, clock) = breaker(|b| b.trip(Trip::failures(3, secs(10))));
    for _ in 0..100 {
        fail(&breaker, 1);
        clock.advance(secs(5)); // two within any 10 s
    }
    assert_eq!(breaker.state(), State::Closed);
}

#[test]
fn source_4_or_it_opens_by_failures_in_a_row() {
    let (breaker, _) = breaker(|b| b.trip(Trip::Consecutive(5)));
    for _ in 0..10 {
        fail(&breaker, 4);
        succeed(&breaker, 1); // begins anew
    }
    fail(&breaker, 4);
    acquire(&breaker).ignore(); // neither counts nor begins anew
    assert_eq!(breaker.state(), State::Closed);
    fail(&breaker, 1);
    assert_eq!(breaker.state(), State::Open);
}

#[test]
fn source_4_while_open_calls_are_answered_at_once_and_nobody_is_called() {
    let (breaker, clock) = breaker(|b| b.trip(Trip::Consecutive(1)));
    fail(&breaker, 1);
    let mut called = 0;
    for _ in 0..5 {
        let answer: Result<(), BreakerError<()>> = breaker.call_sync(|| {
            called += 1;
            Ok(())
        });
        let Err(BreakerError::Rejected(rejected)) = answer else { panic!("{answer:?}") };
        assert_eq!(rejected.open_until, Some(START + secs(5)));
        assert_eq!(rejected.retry_after, Some(secs(5) - clock.now().since(START)));
        clock.advance(ms(999));
    }
    assert_eq!(called, 0);
}

#[tokio::test]
async fn source_4_while_open_the_last_good_answer_may_be_given_instead_or_else_the_error() {
    let (breaker, clock) = breaker(|b| b.trip(Trip::Consecutive(1)));
    let prices = LastGood::new().clock(clock.clone());
    let ask = async |key: &'static str, answer: Result<u32, std::fmt::Error>| {
        prices.call(key, breaker.call(async move { answer })).await
    };
    assert_eq!(ask("book", Ok(12)).await, Ok(Served::Fresh(12)));
    assert_eq!(ask("book", Err(std::fmt::Error)).await, Err(BreakerError::Failed(std::fmt::Error)));
    clock.advance(secs(3));
    assert_eq!(ask("book", Ok(13)).await, Ok(Served::Stale { value: 12, age: secs(3) }));
    assert!(matches!(ask("pen", Ok(2)).await, Err(BreakerError::Rejected(_))), "there was none");
}

#[test]
fn source_4_open_becomes_half_open_when_its_time_is_over_even_if_nobody_calls() {
    let (breaker, clock) = breaker(|b| b.trip(Trip::Consecutive(1)));
    let mut events = breaker.events();
    fail(&breaker, 1);
    clock.advance(secs(5) - ms(1));
    assert_eq!(breaker.state(), State::Open);
    clock.advance(ms(1));
    assert_eq!(breaker.state(), State::HalfOpen);
    assert_eq!(breaker.snapshot().state, State::HalfOpen);
    clock.advance(secs(3600)); // nor does it stop waiting for somebody who calls
    assert_eq!(breaker.state(), State::HalfOpen);
    let told: Vec<_> = std::iter::from_fn(|| events.try_next()).map(|e| (e.to, e.at)).collect();
    assert_eq!(told, [(State::Open, START), (State::HalfOpen, START + secs(5))]);
}

#[test]
fn source_4_half_open_lets_so_many_calls_through_and_no_more() {
    let (breaker, clock) = breaker(|b| b.trip(Trip::Consecutive(1)).probes(3, 3));
    fail(&breaker, 1);
    clock.advance(secs(5));
    let probes: Vec<_> = (0..3).map(|_| acquire(&breaker)).collect();
    let over = rejected(&breaker);
    assert_eq!((over.state, over.open_until), (State::HalfOpen, None));
    drop(probes);
}

#[test]
fn source_4_half_open_closes_when_they_succeed_and_the_counter_is_reset() {
    let (breaker, clock) = breaker(|b| b.trip(Trip::failures(2, secs(60))).probes(3, 3));
    fail(&breaker, 2);
    clock.advance(secs(5));
    succeed(&breaker, 2);
    assert_eq!(breaker.state(), State::HalfOpen);
    succeed(&breaker, 1);
    assert_eq!(breaker.state(), State::Closed);
    fail(&breaker, 1); // the two of before would make it three within a minute
    assert_eq!(breaker.state(), State::Closed);
}

#[test]
fn source_4_half_open_opens_again_when_any_fails_and_the_clock_begins_anew() {
    let (breaker, clock) = breaker(|b| b.trip(Trip::Consecutive(1)).probes(3, 3));
    fail(&breaker, 1);
    clock.advance(secs(7));
    let (first, second) = (acquire(&breaker), acquire(&breaker));
    first.success();
    second.failure();
    assert_eq!(breaker.state(), State::Open);
    assert_eq!(rejected(&breaker).open_until, Some(START + secs(7 + 10)), "and waits for longer than before");
}

#[test]
fn source_4_every_change_of_state_is_told() {
    let (breaker, clock) = breaker(|b| b.trip(Trip::Consecutive(1)).probes(1, 1));
    let mut events = breaker.events();
    fail(&breaker, 1);
    clock.advance(secs(5));
    fail(&breaker, 1);
    clock.advance(secs(10));
    succeed(&breaker, 1);
    let told: Vec<_> = std::iter::from_fn(|| events.try_next()).map(|e| (e.generation, e.from, e.to)).collect();
    use State::{Closed, HalfOpen, Open};
    assert_eq!(
        told,
        [(1, Closed, Open), (2, Open, HalfOpen), (3, HalfOpen, Open), (4, Open, HalfOpen), (5, HalfOpen, Closed)]
    );
}

/// Hystrix, as source 4 draws it: `failure / (success + failure)` over periods of which old ones are removed.
#[test]
fn source_4_it_opens_by_the_share_of_failures_in_the_last_periods() {
    let rate = Trip::failure_rate(0.5, Window::time(secs(10), 10), 20);
    let (breaker, clock) = breaker(|b| b.trip(rate));
    fail(&breaker, 9);
    clock.advance(secs(1));
    succeed(&breaker, 10); // 9 of 19: too few calls
    assert_eq!(breaker.state(), State::Closed);
    succeed(&breaker, 1); // 9 of 20
    assert_eq!(breaker.state(), State::Closed);
    clock.advance(secs(9) - ms(1)); // the failures are in the last period but one
    fail(&breaker, 1); // 10 of 21
    assert_eq!(breaker.state(), State::Closed);
    clock.advance(ms(1)); // and now in none
    fail(&breaker, 9); // 10 of 21 again
    assert_eq!(breaker.state(), State::Closed);
    fail(&breaker, 1); // 11 of 22
    assert_eq!(breaker.state(), State::Open);
}

#[test]
fn source_4_a_success_can_be_the_call_that_makes_it_enough_calls() {
    let (breaker, _) = breaker(|b| b.trip(Trip::failure_rate(0.5, Window::default(), 20)));
    fail(&breaker, 10);
    succeed(&breaker, 9);
    assert_eq!(breaker.state(), State::Closed);
    succeed(&breaker, 1); // 10 of 20
    assert_eq!(breaker.state(), State::Open);
}
