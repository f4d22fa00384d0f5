//! A call through a closed breaker allocates nothing, and neither does its failure.

use std::time::Duration;

use futures_util::FutureExt;
use redrive::resilience::{CircuitBreaker, Trip, Window};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

#[test]
fn a_call_through_a_closed_breaker_allocates_nothing() {
    let breaker = CircuitBreaker::builder("target")
        .trip(Trip::failure_rate(0.5, Window::time(Duration::from_secs(10), 10), 20))
        .trip(Trip::failure_rate(0.5, Window::Count(100), 100))
        .trip(Trip::slow_rate(Duration::from_secs(1), 0.5, Window::time(Duration::from_secs(60), 60), 20))
        .trip(Trip::Consecutive(5))
        .trip(Trip::failures(10_000, Duration::from_millis(1)))
        .build()
        .unwrap();
    let _profiler = dhat::Profiler::builder().testing().build();
    // The test program's own threads are counted, too: not every round is disturbed by them.
    let blocks = (0..5).map(|_| blocks_of(|| call_often(&breaker))).min();
    assert_eq!(blocks, Some(0));
}

fn call_often(breaker: &CircuitBreaker) {
    let succeeded =
        (0..20_000).filter(|n| breaker.call_sync(|| if n % 10 == 0 { Err(()) } else { Ok(()) }).is_ok()).count();
    assert_eq!(succeeded, 18_000);
    for _ in 0..10_000 {
        breaker.call(async { Ok::<_, ()>(()) }).now_or_never().unwrap().unwrap();
    }
}

fn blocks_of(calls: impl Fn()) -> u64 {
    let before = dhat::HeapStats::get().total_blocks;
    calls();
    dhat::HeapStats::get().total_blocks - before
}
