//! What a circuit breaker costs a call that succeeds, beside one read of the clock and beside recloser, on one thread and on two.
//!
//! ```sh
//! cargo bench -p redrive --bench breaker
//! ```

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use recloser::Recloser;
use redrive::resilience::{CircuitBreaker, Trip, Window};
use redrive::{Backoff, Clock, Jitter};

fn works() -> Result<u32, std::fmt::Error> {
    Ok(black_box(7))
}

/// One call in a hundred fails.
fn mostly_works(n: u64) -> Result<u32, std::fmt::Error> {
    if n.is_multiple_of(100) { Err(std::fmt::Error) } else { works() }
}

fn by_count() -> CircuitBreaker {
    CircuitBreaker::builder("count").trip(Trip::failure_rate(0.5, Window::Count(100), 100)).build().unwrap()
}

fn open() -> CircuitBreaker {
    let for_long = Backoff::fixed(Duration::from_secs(3600));
    let breaker = CircuitBreaker::builder("open").trip(Trip::Consecutive(1)).open_wait(for_long, Jitter::None).build();
    let breaker = breaker.unwrap();
    breaker.try_acquire().unwrap().failure();
    breaker
}

/// The time that each of two threads needs for so many calls, both at once. They wait for each other before every few thousand
/// calls, so that neither runs alone for long.
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn two_threads(calls: u64, call: impl Fn(u64) + Sync) -> Duration {
    const TOGETHER: u64 = 20_000;
    let arrived = AtomicU64::new(0);
    let run = || {
        let mut took = Duration::ZERO;
        for round in 0..calls.div_ceil(TOGETHER) {
            arrived.fetch_add(1, Ordering::SeqCst);
            while arrived.load(Ordering::SeqCst) < 2 * (round + 1) {
                std::thread::yield_now();
            }
            let began = Instant::now();
            (round * TOGETHER..calls.min((round + 1) * TOGETHER)).for_each(&call);
            took += began.elapsed();
        }
        took
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(run);
        (run() + other.join().unwrap()) / 2
    })
}

fn breakers(c: &mut Criterion) {
    let clock = Clock::system();
    let (ours, count, open, recloser) = (CircuitBreaker::new("time"), by_count(), open(), Recloser::default());
    let (ours_failing, recloser_failing) = (CircuitBreaker::new("failing"), Recloser::default());
    let calls: [(&str, &(dyn Fn(u64) + Sync)); 8] = [
        ("nothing", &|_| _ = black_box(works())),
        ("clock", &|_| _ = black_box(clock.now())),
        ("closed", &|_| _ = black_box(ours.call_sync(works))),
        ("closed_by_count", &|_| _ = black_box(count.call_sync(works))),
        ("recloser", &|_| _ = black_box(recloser.call(works))),
        ("closed_one_percent_fail", &|n| _ = black_box(ours_failing.call_sync(|| mostly_works(n)))),
        ("recloser_one_percent_fail", &|n| _ = black_box(recloser_failing.call(|| mostly_works(n)))),
        ("open", &|_| _ = black_box(open.call_sync(works))),
    ];
    let mut group = c.benchmark_group("one_thread");
    for (name, call) in calls {
        let mut n = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                n += 1;
                call(n);
            });
        });
    }
    group.finish();
    let mut group = c.benchmark_group("two_threads");
    for (name, call) in calls {
        group.bench_function(name, |b| b.iter_custom(|n| two_threads(n, call)));
    }
    group.finish();
}

criterion_group!(benches, breakers);
criterion_main!(benches);
