//! Long healthy runs, then an outage: whatever was good for hours must not keep it from opening.

use redrive::resilience::{Health, State, Trip, Window};

use super::*;

/// Six hours of a hundred calls a second, one in two hundred failing; then all fail. After how many calls does it open?
fn calls_until_open(trip: Trip) -> u32 {
    let (breaker, clock) = breaker(|b| b.trip(trip));
    for n in 0..6 * 3600 * 100 {
        acquire(&breaker).ended(if n % 200 == 0 { Health::Failure } else { Health::Success });
        clock.advance(ms(10));
    }
    assert_eq!(breaker.snapshot().generation, 0, "it never opened");
    (1..100_000)
        .find(|_| {
            fail(&breaker, 1);
            clock.advance(ms(10));
            breaker.state() == State::Open
        })
        .unwrap()
}

#[test]
fn by_time_it_opens_within_half_a_window() {
    // Of the last 10 s, half a bucket in the mean are still to come: 950 calls, of which 5 have failed by chance.
    let calls = calls_until_open(Trip::failure_rate(0.5, Window::time(secs(10), 10), 20));
    assert!((440..=500).contains(&calls), "{calls}");
}

#[test]
fn by_count_it_opens_at_half_of_the_window() {
    let calls = calls_until_open(Trip::failure_rate(0.5, Window::Count(100), 100));
    assert!((49..=50).contains(&calls), "{calls}");
}

#[test]
fn by_failures_in_a_row_it_opens_at_once() {
    assert_eq!(calls_until_open(Trip::Consecutive(5)), 5);
}

#[test]
fn by_failures_within_a_time_it_opens_at_once() {
    // One failure every two seconds by chance: five of the last ten seconds are still counted.
    let calls = calls_until_open(Trip::failures(30, secs(10)));
    assert!((25..=26).contains(&calls), "{calls}");
}
