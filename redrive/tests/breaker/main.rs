//! The circuit breaker and what goes with it, by a clock that is moved by hand. Tests named `source_4_…` are sentences of source 4.

mod healthy;
mod last_good;
#[cfg(feature = "tower")]
mod layers;
mod model;
mod outside;
mod permits;
mod retry;
mod source_4;
mod threads;

use std::time::Duration;

use redrive::resilience::{BreakerBuilder, CircuitBreaker, Permit, Rejected};
use redrive::{Backoff, Clock, Jitter, Timestamp};

const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A breaker whose waits have no chance in them (5 s, 10 s, 20 s …), and its clock.
fn breaker(wishes: impl FnOnce(BreakerBuilder) -> BreakerBuilder) -> (CircuitBreaker, Clock) {
    let clock = Clock::manual(START);
    let wait = Backoff::exponential(secs(5), 2.0, secs(300));
    let plain = CircuitBreaker::builder("target").clock(clock.clone()).open_wait(wait, Jitter::None);
    (wishes(plain).build().unwrap(), clock)
}

fn acquire(breaker: &CircuitBreaker) -> Permit<'_> {
    breaker.try_acquire().unwrap()
}

fn rejected(breaker: &CircuitBreaker) -> Rejected {
    breaker.try_acquire().map(drop).unwrap_err()
}

fn fail(breaker: &CircuitBreaker, times: u32) {
    (0..times).for_each(|_| acquire(breaker).failure());
}

fn succeed(breaker: &CircuitBreaker, times: u32) {
    (0..times).for_each(|_| acquire(breaker).success());
}
