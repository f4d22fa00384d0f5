//! Time, as a value.
//!
//! Everything that decides takes `now` as an argument; this file is the only one that reads a clock.
//! A [`Timestamp`] is what the databases store: milliseconds since 1970 in UTC, as an `i64`.
//! [`Clock`] is where the running services get theirs: database time at the last sync plus the time of a
//! [`Stopwatch`] since, so that it never goes backward and never follows a wall clock that is set by hand.
//!
//! A [`Stopwatch`] counts the time during which the machine is suspended, on Linux and Android (`CLOCK_BOOTTIME`). Other
//! nodes count that time too: they declare this one dead after its lease. A call takes as long as one of `Instant::now`
//! (23 ns; both are answered without entering the kernel). Timers, [`pause`] among them, stand still during a suspension
//! and only wake up late: what they wake up looks at a clock. On other systems the stopwatch is an `Instant`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment: milliseconds since 1970-01-01 UTC.
///
/// Shown, parsed and serialised as RFC 3339.
///
/// ```
/// use redrive::Timestamp;
/// use std::time::Duration;
///
/// let t: Timestamp = "2026-02-05T12:00:00Z".parse()?;
/// assert_eq!((t + Duration::from_millis(1500)).to_string(), "2026-02-05T12:00:01.5Z");
/// assert_eq!(Timestamp::MAX + Duration::from_secs(1), Timestamp::MAX); // saturates
/// # Ok::<(), redrive::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self(0);
    /// The last moment that can be shown (9999-01-01T00:00:00Z); arithmetic saturates here.
    pub const MAX: Self = Self(253_370_764_800_000);

    /// From milliseconds since 1970, clamped to 1970–9999.
    pub const fn from_millis(ms: i64) -> Self {
        Self(if ms < 0 {
            0
        } else if ms > Self::MAX.0 {
            Self::MAX.0
        } else {
            ms
        })
    }

    /// Milliseconds since 1970.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self::from_millis(self.0.saturating_add(millis(d)))
    }
}

impl std::ops::Sub<Duration> for Timestamp {
    type Output = Self;
    fn sub(self, d: Duration) -> Self {
        Self::from_millis(self.0.saturating_sub(millis(d)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(t) => t.fmt(f),
            Err(_) => write!(f, "{} ms", self.0),
        }
    }
}

impl FromStr for Timestamp {
    type Err = crate::Error;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let t: jiff::Timestamp = s.parse().map_err(|e| {
            crate::Error::invalid(
                "timestamp",
                format!("{s:?} is not an RFC 3339 time such as 2026-02-05T12:00:00Z: {e}"),
            )
        })?;
        Ok(Self::from_millis(t.as_millisecond()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A duration as whole milliseconds, saturating.
pub(crate) fn millis(d: Duration) -> i64 {
    i64::try_from(d.as_millis()).unwrap_or(i64::MAX)
}

/// Where running services read the time. Cheap to clone; clones share one time.
///
/// [`Clock::manual`] stands still until it is moved: the clock of tests.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Inner>);

#[derive(Debug)]
enum Inner {
    /// `now = base + elapsed since start`; `base` only ever grows.
    Monotonic {
        start: Stopwatch,
        base: AtomicI64,
    },
    Manual(AtomicI64),
}

impl Clock {
    /// A clock that shows `now` and goes on from there by monotonic time.
    pub fn starting_at(now: Timestamp) -> Self {
        Self(Arc::new(Inner::Monotonic { start: Stopwatch::start(), base: AtomicI64::new(now.0) }))
    }

    /// A clock that shows this machine's time. For where there is no database to ask.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn system() -> Self {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self::starting_at(Timestamp::from_millis(millis(since_1970.unwrap_or_default())))
    }

    /// A clock that stands at `now` until [`advance`](Self::advance) or [`sync`](Self::sync) moves it.
    pub fn manual(now: Timestamp) -> Self {
        Self(Arc::new(Inner::Manual(AtomicI64::new(now.0))))
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        match &*self.0 {
            Inner::Monotonic { start, base } => {
                Timestamp::from_millis(base.load(Ordering::Acquire).saturating_add(millis(start.elapsed())))
            }
            Inner::Manual(now) => Timestamp::from_millis(now.load(Ordering::Acquire)),
        }
    }

    /// The database says that it is `now`: follow it if that is forward, else keep going. Never goes back.
    pub fn sync(&self, now: Timestamp) {
        match &*self.0 {
            Inner::Monotonic { start, base } => {
                base.fetch_max(now.0.saturating_sub(millis(start.elapsed())), Ordering::AcqRel);
            }
            Inner::Manual(current) => {
                current.fetch_max(now.0, Ordering::AcqRel);
            }
        }
    }

    /// Moves the clock forward: a manual one in tests, or a running one to inject an offset.
    pub fn advance(&self, by: Duration) {
        let (Inner::Monotonic { base: ms, .. } | Inner::Manual(ms)) = &*self.0;
        ms.fetch_add(millis(by), Ordering::AcqRel);
    }
}

/// Waits. The only sleep of the library: services and retry loops wait here, tests never do.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Time spent since it was started. It never goes back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Moment);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(Moment::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Moment::now().since(self.0)
    }

    /// Has it started earlier by `time`: what a suspension of that length looks like.
    #[cfg(test)]
    pub(crate) fn suspend(&mut self, time: Duration) {
        self.0 = self.0.earlier(time);
    }
}

/// Nanoseconds since the machine was started.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[derive(Clone, Copy, Debug)]
struct Moment(i64);

#[cfg(any(target_os = "linux", target_os = "android"))]
impl Moment {
    fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Self(now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec))
    }

    fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    #[cfg(test)]
    fn earlier(self, time: Duration) -> Self {
        Self(self.0 - i64::try_from(time.as_nanos()).unwrap())
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[derive(Clone, Copy, Debug)]
struct Moment(std::time::Instant);

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl Moment {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn now() -> Self {
        Self(std::time::Instant::now())
    }

    fn since(self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }

    #[cfg(test)]
    fn earlier(self, time: Duration) -> Self {
        Self(self.0 - time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_never_goes_back() {
        let clock = Clock::starting_at(Timestamp::from_millis(1_000_000));
        clock.sync(Timestamp::from_millis(5));
        assert!(clock.now() >= Timestamp::from_millis(1_000_000));
        clock.sync(Timestamp::from_millis(9_000_000));
        assert!(clock.now() >= Timestamp::from_millis(9_000_000));
    }

    /// Nobody suspends this machine, so both clocks must show the same.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the other clock")]
    fn a_stopwatch_agrees_with_the_monotonic_clock_while_nothing_is_suspended() {
        let outer = std::time::Instant::now();
        let stopwatch = Stopwatch::start();
        let inner = std::time::Instant::now();
        while inner.elapsed() < Duration::from_millis(50) {
            let (least, shown, most) = (inner.elapsed(), stopwatch.elapsed(), outer.elapsed());
            assert!(least <= shown && shown <= most, "{least:?} {shown:?} {most:?}");
        }
    }

    #[test]
    fn a_stopwatch_counts_suspended_time() {
        let mut stopwatch = Stopwatch::start();
        stopwatch.suspend(Duration::from_secs(3600));
        let elapsed = stopwatch.elapsed();
        assert!(elapsed >= Duration::from_secs(3600) && elapsed < Duration::from_secs(3660), "{elapsed:?}");
    }

    #[test]
    fn timestamps_round_trip_and_saturate() {
        for ms in [0, 1, -1, 1_770_292_800_000, Timestamp::MAX.as_millis(), i64::MAX, i64::MIN] {
            let t = Timestamp::from_millis(ms);
            assert_eq!(t.to_string().parse::<Timestamp>().unwrap(), t, "{ms}");
        }
        assert_eq!(Timestamp::EPOCH.since(Timestamp::MAX), Duration::ZERO);
    }
}
