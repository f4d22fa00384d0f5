//! How long to wait after a failed attempt. Arithmetic only: chance comes in as a number.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration;
use crate::error::Problems;

/// The longest wait that arithmetic can give; more than any policy may ask for.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The wait after the n-th failed attempt, before [`Jitter`].
///
/// The default is source 2's: 2 s, 4 s, 8 s … up to 10 minutes.
///
/// ```
/// use redrive::Backoff;
/// use std::time::Duration;
///
/// let s = Duration::from_secs;
/// let ms = Duration::from_millis;
/// let delays = |b: Backoff| [1, 2, 3].map(|n| b.delay(n));
///
/// assert_eq!(delays(Backoff::default()), [s(2), s(4), s(8)]);
/// assert_eq!(delays(Backoff::exponential(ms(200), 2.0, s(30))), [ms(200), ms(400), ms(800)]);
/// assert_eq!(delays(Backoff::linear(s(5), s(12))), [s(5), s(10), s(12)]);
/// assert_eq!(delays(Backoff::fixed(s(3))), [s(3), s(3), s(3)]);
/// assert_eq!(delays(Backoff::list([s(1), s(60)])), [s(1), s(60), s(60)]);
/// assert_eq!(Backoff::default().delay(u32::MAX), s(600)); // never overflows
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Backoff {
    /// `initial * factor^(n-1)`, at most `max`.
    Exponential {
        /// The first wait.
        #[serde(with = "duration", default = "default_initial")]
        initial: Duration,
        /// How much longer each next one is.
        #[serde(default = "default_factor")]
        factor: f64,
        /// The longest.
        #[serde(with = "duration", default = "default_max")]
        max: Duration,
    },
    /// `initial * n`, at most `max`.
    Linear {
        /// The first wait, and by how much each next one is longer.
        #[serde(with = "duration", default = "default_initial")]
        initial: Duration,
        /// The longest.
        #[serde(with = "duration", default = "default_max")]
        max: Duration,
    },
    /// Always the same.
    Fixed(#[serde(with = "duration")] Duration),
    /// One after the other; the last one is repeated.
    List(#[serde(with = "duration::list")] Vec<Duration>),
}

fn default_initial() -> Duration {
    Duration::from_secs(2)
}
fn default_factor() -> f64 {
    2.0
}
fn default_max() -> Duration {
    Duration::from_secs(600)
}

impl Default for Backoff {
    fn default() -> Self {
        Self::exponential(default_initial(), default_factor(), default_max())
    }
}

impl Backoff {
    /// `initial * factor^(n-1)`, at most `max`.
    pub const fn exponential(initial: Duration, factor: f64, max: Duration) -> Self {
        Self::Exponential { initial, factor, max }
    }

    /// `initial * n`, at most `max`.
    pub const fn linear(initial: Duration, max: Duration) -> Self {
        Self::Linear { initial, max }
    }

    /// Always `every`.
    pub const fn fixed(every: Duration) -> Self {
        Self::Fixed(every)
    }

    /// One after the other, the last one repeated.
    pub fn list(delays: impl Into<Vec<Duration>>) -> Self {
        Self::List(delays.into())
    }

    /// The wait after the `n`-th failed attempt, `n` from 1.
    pub fn delay(&self, n: u32) -> Duration {
        let n = n.max(1);
        match self {
            Self::Exponential { initial, factor, max } => {
                let exponent = i32::try_from(n - 1).unwrap_or(i32::MAX);
                scaled(*initial, factor.powi(exponent)).min(*max)
            }
            Self::Linear { initial, max } => initial.saturating_mul(n).min(*max),
            Self::Fixed(every) => *every,
            Self::List(delays) => {
                let i = usize::try_from(n - 1).unwrap_or(usize::MAX).min(delays.len().saturating_sub(1));
                delays.get(i).copied().unwrap_or_default()
            }
        }
    }

    /// The longest wait it gives.
    pub(crate) fn longest(&self) -> Duration {
        match self {
            Self::Exponential { .. } | Self::Linear { .. } | Self::Fixed(_) => self.delay(u32::MAX),
            Self::List(delays) => delays.iter().max().copied().unwrap_or_default(),
        }
    }

    /// The name in the column `backoff_strategy`, as source 2 spells it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Exponential { .. } => "EXPONENTIAL",
            Self::Linear { .. } => "LINEAR",
            Self::Fixed(_) => "FIXED",
            Self::List(_) => "LIST",
        }
    }

    pub(crate) fn check(&self, problems: &mut Problems) {
        match self {
            Self::Exponential { initial, factor, max } => {
                check_range(*initial, *max, problems);
                problems.require((1.0..=1000.0).contains(factor), "backoff.factor", || {
                    format!("must be from 1 to 1000, is {factor}")
                });
            }
            Self::Linear { initial, max } => check_range(*initial, *max, problems),
            Self::Fixed(every) => duration::check(*every, "backoff.fixed", problems),
            Self::List(delays) => {
                problems.require((1..=100).contains(&delays.len()), "backoff.list", || {
                    format!("must have from 1 to 100 delays, has {}", delays.len())
                });
                delays.iter().for_each(|d| duration::check(*d, "backoff.list", problems));
            }
        }
    }
}

fn check_range(initial: Duration, max: Duration, problems: &mut Problems) {
    duration::check(initial, "backoff.initial", problems);
    duration::check(max, "backoff.max", problems);
    problems.require(initial <= max, "backoff.max", || "must not be less than backoff.initial".into());
}

/// `d * by`, to the millisecond, saturating; nonsense factors give the longest wait, never a shorter one.
fn scaled(d: Duration, by: f64) -> Duration {
    Duration::try_from_secs_f64(d.as_secs_f64() * by).map_or(LONGEST, whole_millis).min(LONGEST)
}

fn whole_millis(d: Duration) -> Duration {
    Duration::from_millis(u64::try_from((d.as_nanos() + 500_000) / 1_000_000).unwrap_or(u64::MAX))
}

/// How chance spreads the waits, so that what failed together does not come back together.
///
/// It is applied after the cap: a capped wait still spreads.
///
/// ```
/// use redrive::{Backoff, Jitter};
/// use std::time::Duration;
///
/// let (s, ms) = (Duration::from_secs, Duration::from_millis);
/// let (backoff, jitter) = (Backoff::default(), Jitter::default()); // adds 0 to 1 s
/// let between = |n| (jitter.apply(backoff.delay(n), 0.0), jitter.apply(backoff.delay(n), 0.999));
/// assert_eq!(between(1), (s(2), ms(2_999)));
/// assert_eq!(between(2), (s(4), ms(4_999)));
/// assert_eq!(between(3), (s(8), ms(8_999)));
///
/// assert_eq!(Jitter::Full.apply(s(8), 0.5), s(4));
/// assert_eq!(Jitter::Equal.apply(s(8), 0.5), s(6));
/// assert_eq!(Jitter::Proportional(0.25).apply(s(8), 0.0), s(6));
/// assert_eq!(Jitter::None.apply(s(8), 0.5), s(8));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Jitter {
    /// The wait as it is.
    None,
    /// Plus 0 to this much.
    Add(#[serde(with = "duration")] Duration),
    /// Anything from 0 to the wait.
    Full,
    /// Half the wait, plus 0 to the other half.
    Equal,
    /// Up to this share of the wait less or more (0.1 is ±10 %).
    Proportional(f64),
}

impl Default for Jitter {
    fn default() -> Self {
        Self::Add(Duration::from_secs(1))
    }
}

impl Jitter {
    /// The wait with chance in it. `random` is from 0 (inclusive) to 1 (exclusive).
    pub fn apply(&self, delay: Duration, random: f64) -> Duration {
        let random = if random.is_finite() { random.clamp(0.0, 1.0) } else { 0.0 };
        match self {
            Self::None => delay,
            Self::Add(most) => delay.saturating_add(scaled(*most, random)),
            Self::Full => scaled(delay, random),
            Self::Equal => scaled(delay, 0.5 + random / 2.0),
            Self::Proportional(share) => scaled(delay, 1.0 - share + 2.0 * share * random),
        }
    }

    pub(crate) fn check(&self, problems: &mut Problems) {
        match self {
            Self::None | Self::Full | Self::Equal => {}
            Self::Add(most) => duration::check(*most, "jitter.add", problems),
            Self::Proportional(share) => problems.require((0.0..=1.0).contains(share), "jitter.proportional", || {
                format!("must be from 0 to 1, is {share}")
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_duration() -> impl Strategy<Value = Duration> {
        (1u64..=u64::MAX / 2).prop_map(Duration::from_millis)
    }

    fn any_backoff() -> impl Strategy<Value = Backoff> {
        prop_oneof![
            (any_duration(), 1.0..1000.0, any_duration()).prop_map(|(i, f, m)| Backoff::exponential(i, f, m)),
            (any_duration(), any_duration()).prop_map(|(i, m)| Backoff::linear(i, m)),
            any_duration().prop_map(Backoff::fixed),
        ]
    }

    proptest! {
        #[test]
        fn delays_grow_before_jitter_and_saturate(backoff in any_backoff(), n in 1u32..u32::MAX) {
            prop_assert!(backoff.delay(n) <= backoff.delay(n + 1));
            prop_assert!(backoff.delay(u32::MAX) >= backoff.delay(n));
        }

        #[test]
        fn add_never_shortens_and_no_jitter_more_than_doubles_or_adds(delay in any_duration(), random in 0.0..1.0) {
            let most = Duration::from_secs(1);
            let added = Jitter::Add(most).apply(delay, random);
            prop_assert!(added >= delay && added <= delay + most);
            for jitter in [Jitter::Full, Jitter::Equal, Jitter::None] {
                // One millisecond of rounding, and floats lose precision on absurdly long delays.
                prop_assert!(jitter.apply(delay, random) <= delay + delay / 1_000_000 + Duration::from_millis(1));
            }
        }

        #[test]
        fn round_trips_through_json(backoff in any_backoff()) {
            let json = serde_json::to_string(&backoff).unwrap();
            prop_assert_eq!(serde_json::from_str::<Backoff>(&json).unwrap(), backoff);
        }
    }
}
