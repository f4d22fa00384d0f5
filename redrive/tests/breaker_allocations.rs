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
    let before = dhat::HeapStats::get().total_blocks;
    let succeeded =
        (0..100_000).filter(|n| breaker.call_sync(|| if n % 10 == 0 { Err(()) } else { Ok(()) }).is_ok()).count();
    for _ in 0..10_000 {
        breaker.call(async { Ok::<_, ()>(()) }).now_or_never().unwrap().unwrap();
    }
    assert_eq!(dhat::HeapStats::get().total_blocks - before, 0);
    assert_eq!(succeeded, 90_000);
}
