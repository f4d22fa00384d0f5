//! How many retries there may be, beside so many first tries: when everything fails, retries must not multiply the load on
//! what is failing. For retries in memory; durable ones are held back by gates instead.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::window::{TimeWindow, stripes};
use crate::clock::{Clock, Timestamp};

/// First tries and retries of the last 10 s are looked at.
const WINDOW: Duration = Duration::from_secs(10);

/// A budget for retries, shared by all calls that could overload the same target. Cheap to clone; clones share it.
///
/// By default a retry is allowed for every fifth call (20 %), and three a second in any case, both over the last 10 s.
///
/// ```
/// use redrive::resilience::RetryBudget;
///
/// let budget = RetryBudget::new(0.2, 3);
/// assert_eq!((0..100).filter(|_| budget.withdraw()).count(), 30); // three a second in any case
/// (0..50).for_each(|_| budget.deposit());
/// assert_eq!((0..100).filter(|_| budget.withdraw()).count(), 10); // and a fifth of the calls
/// ```
#[derive(Clone, Debug)]
pub struct RetryBudget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    share: f64,
    least: f64,
    clock: Clock,
    /// Calls are first tries, bad ones are retries.
    window: TimeWindow,
    /// Two withdrawals at once must not take the same allowance.
    withdrawing: Mutex<()>,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self::new(0.2, 3)
    }
}

impl RetryBudget {
    /// Retries up to this share of calls, and `per_second` in any case.
    pub fn new(share: f64, per_second: u32) -> Self {
        Self::with_clock(share, per_second, Clock::system())
    }

    /// The same by another clock.
    pub fn with_clock(share: f64, per_second: u32, clock: Clock) -> Self {
        let share = if share.is_finite() { share.max(0.0) } else { 0.0 };
        let least = f64::from(per_second) * WINDOW.as_secs_f64();
        let window = TimeWindow::new(WINDOW, 10, clock.now(), stripes());
        Self(Arc::new(Inner { share, least, clock, window, withdrawing: Mutex::new(()) }))
    }

    /// A first try is made. Once a call, not once an attempt.
    pub fn deposit(&self) {
        self.0.window.count_call(self.0.clock.now());
    }

    /// Whether a retry may be made; it is then counted.
    pub fn withdraw(&self) -> bool {
        let inner = &self.0;
        let now = inner.clock.now();
        let _alone = inner.withdrawing.lock().unwrap_or_else(PoisonError::into_inner);
        let allowed = inner.left(now) >= 1.0;
        if allowed {
            inner.window.count_bad(now);
        }
        allowed
    }
}

impl Inner {
    fn left(&self, now: Timestamp) -> f64 {
        let counts = self.window.counts(now);
        self.least + self.share * counts.total as f64 - counts.bad as f64
    }
}
