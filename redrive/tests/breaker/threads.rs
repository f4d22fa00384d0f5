//! Many threads at once.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use redrive::resilience::{State, Trip, Window};

use super::*;

const THREADS: usize = 4;

/// Runs it on several threads, all beginning at once.
fn together(run: impl Fn(usize) + Sync) {
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for n in 0..THREADS {
            let (run, start) = (&run, &start);
            scope.spawn(move || {
                start.wait();
                run(n);
            });
        }
    });
}

#[test]
fn no_more_probes_go_than_there_are() {
    for _ in 0..200 {
        let (breaker, clock) = breaker(|b| b.trip(Trip::Consecutive(1)).probes(3, 3));
        fail(&breaker, 1);
        clock.advance(secs(5));
        let (went, opened) = (AtomicU32::new(0), breaker.events());
        together(|_| {
            for _ in 0..50 {
                if let Ok(permit) = breaker.try_acquire() {
                    went.fetch_add(1, Ordering::SeqCst);
                    std::mem::forget(permit);
                }
            }
        });
        assert_eq!(went.load(Ordering::SeqCst), 3);
        let half_opened = { opened }.try_next().unwrap();
        assert_eq!((half_opened.to, half_opened.generation), (State::HalfOpen, 2));
    }
}

/// Whoever counts last sees what all have counted: the threads together reach the limit exactly.
#[test]
fn what_threads_count_together_is_seen() {
    let rules = [
        Trip::failure_rate(0.5, Window::time(secs(10), 10), 80),
        Trip::failure_rate(0.5, Window::Count(80), 80),
        Trip::failures(40, secs(10)),
    ];
    for rule in rules {
        for _ in 0..200 {
            let (breaker, _) = breaker(|b| b.trip(rule.clone()));
            together(|_| {
                // Each has its permits first: which of the calls is the last one must not decide about who may call.
                let permits: Vec<_> = (0..20).map(|_| acquire(&breaker)).collect();
                for (n, permit) in permits.into_iter().enumerate() {
                    if n % 2 == 0 { permit.failure() } else { permit.success() }
                }
            });
            assert_eq!(breaker.state(), State::Open, "{rule}");
        }
    }
}

#[test]
fn one_less_is_not_enough() {
    for _ in 0..200 {
        let (breaker, _) = breaker(|b| b.trip(Trip::failure_rate(0.5, Window::default(), 80)));
        fail(&breaker, 39);
        together(|thread| succeed(&breaker, if thread == 0 { 11 } else { 10 }));
        assert_eq!(breaker.state(), State::Closed);
        let rule = &breaker.snapshot().rules[0];
        assert_eq!((rule.bad, rule.total), (39, 80));
    }
}

#[test]
fn it_opens_once_however_many_fail_at_once() {
    for _ in 0..200 {
        let (breaker, _) = breaker(|b| b.trip(Trip::Consecutive(3)));
        let mut events = breaker.events();
        together(|_| {
            for _ in 0..50 {
                if let Ok(permit) = breaker.try_acquire() {
                    permit.failure();
                }
            }
        });
        let seen = breaker.snapshot();
        assert_eq!((seen.state, seen.generation, seen.opens), (State::Open, 1, 1));
        assert_eq!(std::iter::from_fn(|| events.try_next()).count(), 1);
    }
}
