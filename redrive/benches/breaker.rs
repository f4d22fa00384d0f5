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

/// Calls of a round: short enough for a busy machine to let two threads run side by side now and then.
const ROUND: u64 = 5_000;

/// How long so many calls take on each of two threads that run at once. Rounds in which the machine did not let both run at the same
/// time say nothing about that and are left out.
fn two_threads(calls: u64, call: impl Fn(u64) + Sync) -> Duration {
    let mut together = Vec::new();
    while together.len() < 10 {
        together.extend(rounds(calls / ROUND + 50, &call));
    }
    let mean = together.iter().sum::<Duration>().div_f64(together.len() as f64);
    mean.mul_f64(calls as f64 / ROUND as f64)
}

/// Lets two threads make so many rounds of calls, each begun together.
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn rounds(rounds: u64, call: impl Fn(u64) + Sync) -> Vec<Duration> {
    let arrived = AtomicU64::new(0);
    let run = |round: u64| {
        arrived.fetch_add(1, Ordering::SeqCst);
        let mut waited = 0;
        while arrived.load(Ordering::SeqCst) < 2 * (round + 1) {
            waited += 1;
            if waited < 1_000 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let began = Instant::now();
        (0..ROUND).for_each(&call);
        (began, Instant::now())
    };
    let (one, other): (Vec<_>, Vec<_>) = std::thread::scope(|scope| {
        let other = scope.spawn(|| (0..rounds).map(run).collect());
        ((0..rounds).map(run).collect(), other.join().unwrap())
    });
    one.into_iter().zip(other).filter_map(|(one, other)| both(one, other)).collect()
}

/// How long a round took, if both threads were in it for nearly all of that time.
fn both(one: (Instant, Instant), other: (Instant, Instant)) -> Option<Duration> {
    let longer = (one.1 - one.0).max(other.1 - other.0);
    let together = one.1.min(other.1).saturating_duration_since(one.0.max(other.0));
    (together.as_secs_f64() > 0.9 * longer.as_secs_f64()).then_some(longer)
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
