//! What a breaker is told: when it opens, for how long, and what it takes to close again. A value, with no clock and no
//! chance of its own: [`open_wait`](BreakerConfig::open_wait) is given both.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backoff::{Backoff, Jitter};
use crate::duration;
use crate::error::{Problems, Result};

/// More buckets than this say nothing more.
const MOST_BUCKETS: u32 = 1_000;
/// A longer memory than this is not about now.
const LONGEST_WINDOW: Duration = Duration::from_secs(3600);
const LARGEST_COUNT: u32 = 100_000;
const MOST_FAILURES: u32 = 10_000;
const MOST_PROBES: u32 = 1_000;
const MOST_TRIPS: usize = 10;

/// How a [`CircuitBreaker`](super::CircuitBreaker) behaves.
///
/// ```
/// use redrive::resilience::{BreakerConfig, Trip, Window};
///
/// let config: BreakerConfig = serde_json::from_str(
///     r#"{ "trips": [{ "failure_rate": { "share": 0.3, "window": { "count": 50 } } }, { "consecutive": 10 }], "probes": 1 }"#,
/// )?;
/// assert_eq!(config.trips, [Trip::failure_rate(0.3, Window::Count(50), 20), Trip::Consecutive(10)]);
/// config.validate()?;
///
/// // All problems are listed at once.
/// let wrong = BreakerConfig { trips: vec![Trip::Consecutive(0)], probes: 2, successes: Some(3), ..BreakerConfig::default() };
/// let said = wrong.validate().unwrap_err().to_string();
/// assert!(said.contains("trips[0].consecutive") && said.contains("successes"), "{said}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerConfig {
    /// It opens when any of these holds. Default: half of at least 20 calls in 10 s failed, or 5 in a row did. Of a gate: nine of
    /// ten of at least 20 calls in 10 s failed, or 20 in a row did.
    pub trips: Vec<Trip>,
    /// How long it stays open, the n-th time in a row. Under the gradual rule a wait is at most a twenty-fifth of the outage so
    /// far, or 12 s. Default: exponential, 5 s doubling up to 5 min; of a gate, it begins with 1 s.
    pub open_wait: Backoff,
    /// How chance spreads these waits. Default: ±20 %; of a gate, ±10 %.
    pub open_jitter: Jitter,
    /// Once it has stayed closed for this long, the next wait is the first one again. Default: 1 min.
    #[serde(with = "duration")]
    pub stable_after: Duration,
    /// The rule for leaving the half-open state. Default: `strict`; of a gate, `gradual`.
    pub half_open: HalfOpen,
    /// Number of probes by which a half-open one decides; under the gradual rule, the largest round. Default: 3; of a gate, 10.
    pub probes: u32,
    /// Number of these probes that must succeed for it to close. Default: all of them; under the gradual rule, one tenth more
    /// than would trip the failure rate again.
    pub successes: Option<u32>,
    /// Time after which a probe counts as lost. The strict rule then opens again, the gradual rule gives another probe away. A
    /// gate waits for a probe that runs until the `timeout` of its task, if that is later. Default: 30 s.
    #[serde(with = "duration")]
    pub probe_limit: Duration,
    /// Whether it really holds calls back. Default: `enforce`.
    pub mode: Mode,
}

/// Whether a breaker holds calls back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It does.
    #[default]
    Enforce,
    /// It goes through its states, and says so, but lets every call through: to see what it would do.
    Observe,
}

/// How a half-open breaker decides by its probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HalfOpen {
    /// As source 4 asks: it opens again as soon as too few of its probes can succeed.
    #[default]
    Strict,
    /// Probes go in rounds, the first of one probe. A round in which enough succeed is followed by a larger one, and the largest
    /// closes it; after any other it opens for a short wait and halves the round. The wait grows only while all probes fail.
    Gradual,
}

/// A rule that opens a breaker. It is looked at after every call that succeeded or failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Trip {
    /// Of the calls in a window at least this share failed.
    FailureRate {
        /// From above 0 to 1. Default: 0.5.
        #[serde(default = "default_share")]
        share: f64,
        /// Which calls are looked at. Default: those of the last 10 s, in 10 buckets.
        #[serde(default)]
        window: Window,
        /// Fewer calls than this say nothing. Default: 20.
        #[serde(default = "default_min_calls")]
        min_calls: u32,
    },
    /// Of the calls in a window at least this share was slow, whether they succeeded or failed.
    SlowRate {
        /// A call that took at least this long was slow.
        #[serde(with = "duration")]
        slower_than: Duration,
        /// From above 0 to 1. Default: 0.5.
        #[serde(default = "default_share")]
        share: f64,
        /// Which calls are looked at. Default: those of the last 10 s, in 10 buckets.
        #[serde(default)]
        window: Window,
        /// Fewer calls than this say nothing. Default: 20.
        #[serde(default = "default_min_calls")]
        min_calls: u32,
    },
    /// This many calls in a row failed, each begun after the one before it had failed: calls that run at the same time and fail
    /// together count as one.
    Consecutive(u32),
    /// So many calls failed within a time, however many succeeded.
    Failures {
        /// How many.
        count: u32,
        /// Within how long.
        #[serde(with = "duration")]
        within: Duration,
    },
}

/// Which calls a rate is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Window {
    /// Those of the last `length`, which moves on by a bucket at a time.
    Time {
        /// How far back it reaches. Default: 10 s.
        #[serde(with = "duration", default = "default_length")]
        length: Duration,
        /// In how many buckets. Default: 10.
        #[serde(default = "default_buckets")]
        buckets: u32,
    },
    /// The last so many, exactly: with each new one the oldest is forgotten.
    Count(u32),
}

fn default_share() -> f64 {
    0.5
}
fn default_min_calls() -> u32 {
    20
}
fn default_length() -> Duration {
    Duration::from_secs(10)
}
fn default_buckets() -> u32 {
    10
}

impl Default for Window {
    fn default() -> Self {
        Self::time(default_length(), default_buckets())
    }
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            trips: vec![
                Trip::failure_rate(default_share(), Window::default(), default_min_calls()),
                Trip::Consecutive(5),
            ],
            open_wait: Backoff::exponential(Duration::from_secs(5), 2.0, Duration::from_secs(300)),
            open_jitter: Jitter::Proportional(0.2),
            stable_after: Duration::from_secs(60),
            half_open: HalfOpen::Strict,
            probes: 3,
            successes: None,
            probe_limit: Duration::from_secs(30),
            mode: Mode::default(),
        }
    }
}

/// Failures in the share of calls at which a gate opens: its target is down, not half healthy.
const DOWN: f64 = 0.9;
/// The share of successes that closes a gradual breaker beyond the share at which it would not open again.
const MARGIN: f64 = 0.1;

impl BreakerConfig {
    /// How long it stays open when it opens for the `n`-th time in a row, `n` from 1. `random` is from 0 to 1.
    ///
    /// ```
    /// # use redrive::resilience::BreakerConfig;
    /// let seconds = |n, random| BreakerConfig::default().open_wait(n, random).as_secs();
    /// assert_eq!([1, 2, 3, 100].map(|n| seconds(n, 0.5)), [5, 10, 20, 300]);
    /// assert_eq!([0.0, 1.0].map(|random| seconds(2, random)), [8, 12]);
    /// ```
    pub fn open_wait(&self, n: u32, random: f64) -> Duration {
        self.open_jitter.apply(self.open_wait.delay(n), random).max(Duration::from_millis(1))
    }

    /// The defaults of a gate: they hold back a target that is down, and let one that works in part recover gradually.
    pub fn for_gate() -> Self {
        Self {
            trips: vec![
                Trip::failure_rate(DOWN, Window::time(Duration::from_secs(10), 10), default_min_calls()),
                Trip::Consecutive(20),
            ],
            open_wait: Backoff::exponential(Duration::from_secs(1), 2.0, Duration::from_secs(300)),
            open_jitter: Jitter::Proportional(0.1),
            half_open: HalfOpen::Gradual,
            probes: 10,
            ..Self::default()
        }
    }

    /// Number of probes that must succeed for it to close.
    pub fn successes_needed(&self) -> u32 {
        let gradual = || {
            let share = (1.0 - self.lowest_rate() + MARGIN).clamp(0.0, 1.0);
            ((f64::from(self.probes) * share - 1e-9).ceil() as u32).clamp(1, self.probes.max(1))
        };
        self.successes.unwrap_or_else(|| match self.half_open {
            HalfOpen::Strict => self.probes,
            HalfOpen::Gradual => gradual(),
        })
    }

    /// The smallest share of failures that opens it.
    fn lowest_rate(&self) -> f64 {
        let share = |trip: &Trip| match trip {
            Trip::FailureRate { share, .. } => Some(*share),
            _ => None,
        };
        self.trips.iter().filter_map(share).fold(1.0, f64::min)
    }

    /// The longest time for which it stays open.
    pub(crate) fn longest_wait(&self) -> Duration {
        self.open_jitter.apply(self.open_wait.longest(), 1.0)
    }

    /// Whether these values make sense; if not, all that is wrong with them.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Problems::default();
        let p = &mut problems;
        p.require((1..=MOST_TRIPS).contains(&self.trips.len()), "trips", || {
            format!("must be from 1 to {MOST_TRIPS} rules, are {}", self.trips.len())
        });
        for (i, trip) in self.trips.iter().enumerate() {
            let mut inner = Problems::default();
            trip.check(&mut inner);
            p.nest(&format!("trips[{i}]"), inner);
        }
        let mut wait = Problems::default();
        self.open_wait.check(&mut wait);
        self.open_jitter.check(&mut wait);
        p.nest("open_wait", wait);
        duration::check(self.stable_after, "stable_after", p);
        duration::check(self.probe_limit, "probe_limit", p);
        p.require((1..=MOST_PROBES).contains(&self.probes), "probes", || {
            format!("must be from 1 to {MOST_PROBES}, is {}", self.probes)
        });
        p.require((1..=self.probes.max(1)).contains(&self.successes_needed()), "successes", || {
            format!("must be from 1 to the number of probes, is {}", self.successes_needed())
        });
        problems.into_result()
    }
}

impl Trip {
    /// Of at least `min_calls` calls in the window at least this share failed.
    pub const fn failure_rate(share: f64, window: Window, min_calls: u32) -> Self {
        Self::FailureRate { share, window, min_calls }
    }

    /// Of at least `min_calls` calls in the window at least this share took `slower_than` or longer.
    pub const fn slow_rate(slower_than: Duration, share: f64, window: Window, min_calls: u32) -> Self {
        Self::SlowRate { slower_than, share, window, min_calls }
    }

    /// So many failures within a time.
    pub const fn failures(count: u32, within: Duration) -> Self {
        Self::Failures { count, within }
    }

    fn check(&self, p: &mut Problems) {
        match *self {
            Self::FailureRate { share, window, min_calls } => check_rate("failure_rate", share, window, min_calls, p),
            Self::SlowRate { slower_than, share, window, min_calls } => {
                duration::check(slower_than, "slow_rate.slower_than", p);
                check_rate("slow_rate", share, window, min_calls, p);
            }
            Self::Consecutive(n) => check_number(n, MOST_FAILURES, "consecutive", p),
            Self::Failures { count, within } => {
                check_number(count, MOST_FAILURES, "failures.count", p);
                duration::check(within, "failures.within", p);
            }
        }
    }
}

fn check_number(n: u32, most: u32, field: &str, p: &mut Problems) {
    p.require((1..=most).contains(&n), field, || format!("must be from 1 to {most}, is {n}"));
}

fn check_rate(name: &str, share: f64, window: Window, min_calls: u32, p: &mut Problems) {
    p.require(share > 0.0 && share <= 1.0, &format!("{name}.share"), || {
        format!("must be above 0 and at most 1, is {share}")
    });
    let most = if let Window::Count(n) = window { n.max(1) } else { u32::MAX };
    check_number(min_calls, most, &format!("{name}.min_calls"), p);
    let mut inner = Problems::default();
    window.check(&mut inner);
    p.nest(name, inner);
}

impl Window {
    /// The calls of the last `length`, in so many buckets.
    pub const fn time(length: Duration, buckets: u32) -> Self {
        Self::Time { length, buckets }
    }

    fn check(&self, p: &mut Problems) {
        match *self {
            Self::Count(n) => check_number(n, LARGEST_COUNT, "window.count", p),
            Self::Time { length, buckets } => {
                duration::check(length, "window.length", p);
                p.require(length <= LONGEST_WINDOW, "window.length", || "must be at most an hour".into());
                check_number(buckets, MOST_BUCKETS, "window.buckets", p);
                p.require(length.as_millis().is_multiple_of(u128::from(buckets.max(1))), "window.buckets", || {
                    "must divide the window's length into whole milliseconds".into()
                });
            }
        }
    }
}

impl std::fmt::Display for Trip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = |share: f64| (share * 1000.0).round() / 10.0;
        match self {
            Self::FailureRate { share, window, .. } => write!(f, "at least {} % failed {window}", percent(*share)),
            Self::SlowRate { slower_than, share, window, .. } => {
                let slow = humantime::format_duration(*slower_than);
                write!(f, "at least {} % took {slow} or longer {window}", percent(*share))
            }
            Self::Consecutive(n) => write!(f, "{n} failures in a row"),
            Self::Failures { count, within } => {
                write!(f, "{count} failures within {}", humantime::format_duration(*within))
            }
        }
    }
}

impl std::fmt::Display for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Time { length, .. } => write!(f, "within {}", humantime::format_duration(*length)),
            Self::Count(n) => write!(f, "of the last {n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_listed_at_once() {
        let bad = Window::time(Duration::from_secs(7200), 0);
        let config = BreakerConfig {
            trips: vec![
                Trip::failure_rate(0.0, Window::Count(10), 11),
                Trip::slow_rate(Duration::ZERO, 1.5, bad, 0),
                Trip::Consecutive(0),
                Trip::failures(0, Duration::ZERO),
                Trip::failure_rate(0.5, Window::time(Duration::from_millis(10), 3), 1),
            ],
            open_wait: Backoff::fixed(Duration::ZERO),
            open_jitter: Jitter::Proportional(2.0),
            stable_after: Duration::ZERO,
            probes: 0,
            successes: Some(2),
            probe_limit: Duration::ZERO,
            mode: Mode::Observe,
            half_open: HalfOpen::Gradual,
        };
        let said = config.validate().unwrap_err().to_string();
        for field in [
            "trips[0].failure_rate.share",
            "trips[0].failure_rate.min_calls",
            "trips[1].slow_rate.slower_than",
            "trips[1].slow_rate.share",
            "trips[1].slow_rate.min_calls",
            "trips[1].slow_rate.window.length",
            "trips[1].slow_rate.window.buckets",
            "trips[2].consecutive",
            "trips[3].failures.count",
            "trips[3].failures.within",
            "trips[4].failure_rate.window.buckets",
            "open_wait.backoff.fixed",
            "open_wait.jitter.proportional",
            "stable_after",
            "probes",
            "successes",
            "probe_limit",
        ] {
            assert!(said.contains(&format!("{field}:")), "{field} is missing in: {said}");
        }
        assert!(BreakerConfig { trips: Vec::new(), ..BreakerConfig::default() }.validate().is_err());
        BreakerConfig::default().validate().unwrap();
    }

    #[test]
    fn the_gradual_rule_asks_for_a_little_more_than_would_open_it_again() {
        assert_eq!(BreakerConfig::for_gate().successes_needed(), 2);
        let rate = |share, probes| BreakerConfig {
            trips: vec![Trip::failure_rate(share, Window::default(), 20), Trip::Consecutive(3)],
            probes,
            ..BreakerConfig::for_gate()
        };
        assert_eq!(rate(0.5, 10).successes_needed(), 6);
        assert_eq!(rate(0.01, 10).successes_needed(), 10);
        assert_eq!([1, 2, 3].map(|probes| rate(1.0, probes).successes_needed()), [1, 1, 1]);
        assert_eq!(BreakerConfig { successes: Some(7), ..rate(0.5, 10) }.successes_needed(), 7);
        assert_eq!(BreakerConfig::default().successes_needed(), 3);
        BreakerConfig::for_gate().validate().unwrap();
    }

    #[test]
    fn unknown_fields_are_refused_and_all_fields_round_trip() {
        for json in [r#"{"trip":[]}"#, r#"{"trips":[{"failure_rate":{"shares":0.5}}]}"#, r#"{"trips":[{"rate":1}]}"#] {
            assert!(serde_json::from_str::<BreakerConfig>(json).is_err(), "{json}");
        }
        let config = BreakerConfig {
            trips: vec![
                Trip::failure_rate(0.25, Window::Count(10), 5),
                Trip::slow_rate(Duration::from_secs(2), 0.8, Window::default(), 10),
                Trip::Consecutive(3),
                Trip::failures(50, Duration::from_secs(60)),
            ],
            successes: Some(2),
            mode: Mode::Observe,
            ..BreakerConfig::default()
        };
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<BreakerConfig>(&json).unwrap(), config, "{json}");
        assert_eq!(serde_json::from_str::<BreakerConfig>("{}").unwrap(), BreakerConfig::default());
    }
}
