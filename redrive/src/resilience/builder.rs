//! How a breaker is made.

use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::breaker::CircuitBreaker;
use super::config::{BreakerConfig, Mode, Trip};
use crate::backoff::{Backoff, Jitter};
use crate::clock::Clock;
use crate::error::Result;

/// Makes a [`CircuitBreaker`].
#[derive(Clone, Debug)]
#[must_use = "a builder builds nothing until it is told to"]
pub struct BreakerBuilder {
    pub(super) name: Arc<str>,
    pub(super) config: BreakerConfig,
    pub(super) clock: Clock,
    pub(super) seed: u64,
    pub(super) events: usize,
    has_own_trips: bool,
}

impl BreakerBuilder {
    pub(super) fn new(name: Arc<str>) -> Self {
        let clock = Clock::system();
        let seed = xxh3_64_with_seed(name.as_bytes(), clock.now().as_millis().cast_unsigned());
        Self { name, config: BreakerConfig::default(), clock, seed, events: 64, has_own_trips: false }
    }

    /// Everything at once, such as from settings.
    pub fn config(mut self, config: BreakerConfig) -> Self {
        self.has_own_trips = true;
        Self { config, ..self }
    }

    /// Opens by this rule, too. The first one that is given takes the place of those that are there by default.
    pub fn trip(mut self, trip: Trip) -> Self {
        if !std::mem::replace(&mut self.has_own_trips, true) {
            self.config.trips.clear();
        }
        self.config.trips.push(trip);
        self
    }

    /// How long it stays open, the n-th time in a row, and how chance spreads that.
    pub fn open_wait(mut self, wait: Backoff, jitter: Jitter) -> Self {
        (self.config.open_wait, self.config.open_jitter) = (wait, jitter);
        self
    }

    /// Once it has stayed closed for this long, the next wait is the first one again.
    pub fn stable_after(mut self, time: Duration) -> Self {
        self.config.stable_after = time;
        self
    }

    /// Lets this many probes through when half-open, of which so many must succeed.
    pub fn probes(mut self, probes: u32, successes: u32) -> Self {
        (self.config.probes, self.config.successes) = (probes, Some(successes));
        self
    }

    /// A probe that takes longer opens it again.
    pub fn probe_limit(mut self, limit: Duration) -> Self {
        self.config.probe_limit = limit;
        self
    }

    /// Whether it holds calls back.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.config.mode = mode;
        self
    }

    /// The clock it goes by. Default: this machine's.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// What its chance begins with, for tests.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How many events are kept for those who are slow to take them. Default: 64.
    pub fn event_capacity(mut self, events: usize) -> Self {
        self.events = events.clamp(1, 65_536);
        self
    }

    /// The breaker, or all that is wrong with what it was told.
    pub fn build(self) -> Result<CircuitBreaker> {
        self.config.validate()?;
        Ok(CircuitBreaker::make(self))
    }
}
