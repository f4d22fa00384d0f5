//! What has lately become of calls, as far as a breaker's rules ask for it. No clock, no states: whoever keeps these, a breaker
//! in this process or the engine's gates, asks after each call whether it is time to open.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use serde::Serialize;

use super::config::{Trip, Window};
use super::window::{CountWindow, Counts, Limit, Recent, TimeWindow};
use crate::clock::Timestamp;

/// The calls of late, counted for each rule. Shared between threads; nothing in it waits or allocates.
#[derive(Debug)]
pub(crate) struct Samples {
    rules: Box<[Rule]>,
    /// Whether a rule asks how long calls take.
    timed: bool,
}

/// A call that has ended, as rules see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub failed: bool,
    /// How long it took; only asked for if [`Samples::timed`].
    pub took: Duration,
}

#[derive(Debug)]
struct Rule {
    trip: Trip,
    counted: Counted,
}

#[derive(Debug)]
enum Counted {
    InTime(TimeWindow, Limit),
    InNumber(CountWindow, Limit),
    InARow(AtomicU32),
    Recent(Recent),
}

/// How a rule stands: what it asks for, and what it has counted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tally {
    /// The rule.
    pub trip: Trip,
    /// Calls that failed, or were slow.
    pub bad: u64,
    /// Of so many; the same as `bad` where a rule looks at failures only.
    pub total: u64,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.trip {
            Trip::FailureRate { .. } | Trip::SlowRate { .. } => {
                write!(f, "{} of {} calls ({})", self.bad, self.total, self.trip)
            }
            Trip::Consecutive(_) | Trip::Failures { .. } => write!(f, "{} failures ({})", self.bad, self.trip),
        }
    }
}

impl Samples {
    /// For these rules, from `now` on.
    pub(crate) fn new(trips: &[Trip], now: Timestamp) -> Self {
        let rules = trips.iter().map(|trip| Rule { trip: trip.clone(), counted: Counted::new(trip, now) }).collect();
        Self { rules, timed: trips.iter().any(|trip| matches!(trip, Trip::SlowRate { .. })) }
    }

    /// Whether it must be known how long calls take.
    pub(crate) fn timed(&self) -> bool {
        self.timed
    }

    /// Counts a call for every rule, and says which one it has tripped, if any.
    #[inline]
    pub(crate) fn record(&self, now: Timestamp, sample: Sample) -> Option<usize> {
        let mut tripped = None;
        for (i, rule) in self.rules.iter().enumerate() {
            if rule.record(now, sample) && tripped.is_none() {
                tripped = Some(i);
            }
        }
        tripped
    }

    /// How a rule stands.
    pub(crate) fn tally(&self, rule: usize, now: Timestamp) -> Option<Tally> {
        self.rules.get(rule).map(|rule| rule.tally(now))
    }

    /// How all rules stand.
    pub(crate) fn tallies(&self, now: Timestamp) -> Vec<Tally> {
        self.rules.iter().map(|rule| rule.tally(now)).collect()
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.rules.iter().for_each(|rule| rule.counted.clear());
    }
}

impl Rule {
    #[inline]
    fn record(&self, now: Timestamp, sample: Sample) -> bool {
        let bad = match self.trip {
            Trip::SlowRate { slower_than, .. } => sample.took >= slower_than,
            _ => sample.failed,
        };
        match &self.counted {
            Counted::InTime(window, limit) => window.record(now, bad, limit),
            Counted::InNumber(window, limit) => window.record(bad, limit),
            Counted::InARow(n) if bad => n.fetch_add(1, SeqCst) + 1 >= self.in_a_row(),
            Counted::InARow(n) => {
                // Most calls succeed: then this is only read, and no thread waits for another's cache line.
                if n.load(SeqCst) != 0 {
                    n.store(0, SeqCst);
                }
                false
            }
            Counted::Recent(recent) => bad && recent.record(now),
        }
    }

    fn in_a_row(&self) -> u32 {
        if let Trip::Consecutive(n) = self.trip { n } else { u32::MAX }
    }

    fn tally(&self, now: Timestamp) -> Tally {
        let only = |bad| Counts { bad, total: bad };
        let counts = match &self.counted {
            Counted::InTime(window, _) => window.counts(now),
            Counted::InNumber(window, _) => window.counts(),
            Counted::InARow(n) => only(u64::from(n.load(SeqCst))),
            Counted::Recent(recent) => only(recent.count(now)),
        };
        Tally { trip: self.trip.clone(), bad: counts.bad, total: counts.total }
    }
}

impl Counted {
    fn new(trip: &Trip, now: Timestamp) -> Self {
        match *trip {
            Trip::FailureRate { share, window, min_calls } | Trip::SlowRate { share, window, min_calls, .. } => {
                let limit = Limit { share, min_calls: u64::from(min_calls.max(1)) };
                match window {
                    Window::Time { length, buckets } => Self::InTime(TimeWindow::new(length, buckets, now), limit),
                    Window::Count(size) => Self::InNumber(CountWindow::new(size), limit),
                }
            }
            Trip::Consecutive(_) => Self::InARow(AtomicU32::new(0)),
            Trip::Failures { count, within } => Self::Recent(Recent::new(count, within)),
        }
    }

    fn clear(&self) {
        match self {
            Self::InTime(window, _) => window.clear(),
            Self::InNumber(window, _) => window.clear(),
            Self::InARow(n) => n.store(0, SeqCst),
            Self::Recent(recent) => recent.clear(),
        }
    }
}
