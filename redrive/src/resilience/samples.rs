//! What has lately become of calls, as far as a breaker's rules ask for it. No clock, no states: whoever keeps these, a breaker
//! in this process or the engine's gates, asks after each call whether it is time to open.

use std::time::Duration;

use serde::Serialize;

use super::config::{Trip, Window};
use super::window::{CountWindow, Counts, Limit, Recent, Streak, TimeWindow, stripes};
use crate::clock::Timestamp;

/// The calls of late, counted for each rule. Shared between threads; nothing in it waits or allocates.
#[derive(Debug)]
pub(crate) struct Samples {
    rules: Box<[Rule]>,
    streak: Streak,
    /// Whether a rule asks how long calls take.
    timed: bool,
}

/// A call that has ended, as rules see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub failed: bool,
    /// How long it took; only asked for if [`Samples::timed`].
    pub took: Duration,
    /// The [mark](Samples::mark) that was taken when it began.
    pub mark: u32,
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
    /// The streak of all rules counts it.
    InARow(u32),
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
    /// For these rules, from `now` on, shared by many threads.
    pub(crate) fn shared(trips: &[Trip], now: Timestamp) -> Self {
        Self::new(trips, now, stripes())
    }

    /// For these rules, from `now` on, behind a lock: a few hundred bytes.
    pub(crate) fn plain(trips: &[Trip], now: Timestamp) -> Self {
        Self::new(trips, now, 1)
    }

    fn new(trips: &[Trip], now: Timestamp, stripes: usize) -> Self {
        let rule = |trip: &Trip| Rule { trip: trip.clone(), counted: Counted::new(trip, now, stripes) };
        let timed = trips.iter().any(|trip| matches!(trip, Trip::SlowRate { .. }));
        Self { rules: trips.iter().map(rule).collect(), streak: Streak::default(), timed }
    }

    /// Whether it must be known how long calls take.
    pub(crate) fn timed(&self) -> bool {
        self.timed
    }

    /// To be taken when a call begins, and given back with its [`Sample`].
    #[inline]
    pub(crate) fn mark(&self) -> u32 {
        self.streak.mark()
    }

    /// Counts a call for every rule, and says which one it has tripped, if any.
    #[inline]
    pub(crate) fn record(&self, now: Timestamp, sample: Sample) -> Option<usize> {
        let in_a_row = if sample.failed {
            self.streak.fail(sample.mark)
        } else {
            self.streak.end();
            0
        };
        let mut tripped = None;
        for (i, rule) in self.rules.iter().enumerate() {
            if rule.record(now, sample, in_a_row) && tripped.is_none() {
                tripped = Some(i);
            }
        }
        tripped
    }

    /// Failures in a row, of calls that began one after the other.
    pub(crate) fn in_a_row(&self) -> u32 {
        self.streak.count()
    }

    /// How a rule stands.
    pub(crate) fn tally(&self, rule: usize, now: Timestamp) -> Option<Tally> {
        self.rules.get(rule).map(|rule| rule.tally(now, &self.streak))
    }

    /// How all rules stand.
    pub(crate) fn tallies(&self, now: Timestamp) -> Vec<Tally> {
        self.rules.iter().map(|rule| rule.tally(now, &self.streak)).collect()
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.streak.end();
        self.rules.iter().for_each(|rule| rule.counted.clear());
    }
}

impl Rule {
    #[inline]
    fn record(&self, now: Timestamp, sample: Sample, in_a_row: u32) -> bool {
        let bad = match self.trip {
            Trip::SlowRate { slower_than, .. } => sample.took >= slower_than,
            _ => sample.failed,
        };
        match &self.counted {
            Counted::InTime(window, limit) => window.record(now, bad, limit),
            Counted::InNumber(window, limit) => window.record(bad, limit),
            Counted::InARow(most) => bad && in_a_row >= *most,
            Counted::Recent(recent) => bad && recent.record(now),
        }
    }

    fn tally(&self, now: Timestamp, streak: &Streak) -> Tally {
        let only = |bad| Counts { bad, total: bad };
        let counts = match &self.counted {
            Counted::InTime(window, _) => window.counts(now),
            Counted::InNumber(window, _) => window.counts(),
            Counted::InARow(_) => only(u64::from(streak.count())),
            Counted::Recent(recent) => only(recent.count(now)),
        };
        Tally { trip: self.trip.clone(), bad: counts.bad, total: counts.total }
    }
}

impl Counted {
    fn new(trip: &Trip, now: Timestamp, stripes: usize) -> Self {
        match *trip {
            Trip::FailureRate { share, window, min_calls } | Trip::SlowRate { share, window, min_calls, .. } => {
                let limit = Limit { share, min_calls: u64::from(min_calls.max(1)) };
                match window {
                    Window::Time { length, buckets } => {
                        Self::InTime(TimeWindow::new(length, buckets, now, stripes), limit)
                    }
                    Window::Count(size) => Self::InNumber(CountWindow::new(size), limit),
                }
            }
            Trip::Consecutive(most) => Self::InARow(most),
            Trip::Failures { count, within } => Self::Recent(Recent::new(count, within)),
        }
    }

    fn clear(&self) {
        match self {
            Self::InTime(window, _) => window.clear(),
            Self::InNumber(window, _) => window.clear(),
            Self::InARow(_) => {}
            Self::Recent(recent) => recent.clear(),
        }
    }
}
