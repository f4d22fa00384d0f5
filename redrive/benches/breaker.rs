//! What a circuit breaker costs a call that succeeds, beside one read of the clock and beside recloser, on one thread and on two.
//!
//! ```sh
//! cargo bench -p redrive --bench breaker
//! ```

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use recloser::Recloser;
use redrive::Clock;
use redrive::resilience::{CircuitBreaker, Trip, Window};

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
    let breaker = CircuitBreaker::new("open");
    while breaker.call_sync(|| Err::<(), _>(std::fmt::Error)).is_err_and(|e| e.into_failed().is_some()) {}
    breaker
}

/// The time that each of two threads needs for so many calls, both at once.
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn two_threads(calls: u64, call: impl Fn(u64) + Sync) -> Duration {
    let start = Barrier::new(2);
    let run = || {
        start.wait();
        let began = Instant::now();
        (0..calls).for_each(&call);
        began.elapsed()
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(run);
        (run() + other.join().unwrap()) / 2
    })
}

fn breakers(c: &mut Criterion) {
    let clock = Clock::system();
    let (ours, count, open, recloser) = (CircuitBreaker::new("time"), by_count(), open(), Recloser::default());
    let calls: [(&str, &(dyn Fn(u64) + Sync)); 8] = [
        ("nothing", &|_| drop(black_box(works()))),
        ("clock", &|_| drop(black_box(clock.now()))),
        ("closed", &|_| drop(black_box(ours.call_sync(works)))),
        ("closed_by_count", &|_| drop(black_box(count.call_sync(works)))),
        ("recloser", &|_| drop(black_box(recloser.call(works)))),
        ("closed_one_percent_fail", &|n| drop(black_box(ours.call_sync(|| mostly_works(n))))),
        ("recloser_one_percent_fail", &|n| drop(black_box(recloser.call(|| mostly_works(n))))),
        ("open", &|_| drop(black_box(open.call_sync(works)))),
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
