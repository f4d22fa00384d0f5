//! What a breaker tells of itself: events for the program, log lines for people, metrics for dashboards. Install a recorder for
//! metrics before a breaker is made.
//!
//! | metric | what |
//! | --- | --- |
//! | `redrive_breaker_calls` | counter by `breaker` and `outcome`: `success`, `failure`, `ignore`; `late` counts those again that ended after a change |
//! | `redrive_breaker_rejected` | counter by `breaker`: calls that were not made, or, where it only observes, would not have been |
//! | `redrive_breaker_changes` | counter by `breaker` and `to` |
//! | `redrive_breaker_open` | gauge by `breaker`: 0 closed, 0.5 half-open, 1 open |

use std::sync::Arc;

use metrics::{Counter, Gauge, counter, gauge};
use serde::Serialize;
use tokio::sync::broadcast::{self, error::RecvError, error::TryRecvError};

use super::machine::{Change, Health, Reason, State};
use crate::clock::Timestamp;

/// A breaker has changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct BreakerEvent {
    /// Which one.
    #[serde(serialize_with = "as_text")]
    pub breaker: Arc<str>,
    /// Where it stood.
    pub from: State,
    /// Where it stands.
    pub to: State,
    /// Why.
    pub reason: Reason,
    /// Since when.
    pub at: Timestamp,
    /// Until when it is open.
    pub open_until: Option<Timestamp>,
    /// Its how-manieth change this is. Changes that follow each other closely may be told in another order.
    pub generation: i64,
}

pub(super) fn as_text<S: serde::Serializer>(name: &Arc<str>, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(name)
}

impl BreakerEvent {
    pub(super) fn new(breaker: &Arc<str>, change: Change) -> Self {
        let Change { from, to, reason, at, until, generation } = change;
        Self { breaker: breaker.clone(), from, to, reason, at, open_until: until, generation }
    }

    pub(super) fn log(&self) {
        let (breaker, to, reason, until) = (&*self.breaker, self.to.as_str(), &self.reason, self.open_until);
        match self.to {
            State::Open | State::ForcedOpen => {
                let until = until.map(tracing::field::display);
                tracing::warn!(breaker, to, %reason, until, "a circuit breaker has opened");
            }
            State::Closed | State::HalfOpen | State::ForcedClosed => {
                tracing::info!(breaker, to, %reason, "a circuit breaker has changed");
            }
        }
    }
}

/// A breaker's changes as they come. Whoever takes them too slowly misses the oldest.
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<BreakerEvent>,
    missed: u64,
}

impl Events {
    pub(super) fn new(receiver: broadcast::Receiver<BreakerEvent>) -> Self {
        Self { receiver, missed: 0 }
    }

    /// The next one; `None` when the breaker is gone.
    pub async fn next(&mut self) -> Option<BreakerEvent> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => return Some(event),
                Err(RecvError::Lagged(n)) => self.missed += n,
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// The next one, if it is there already.
    pub fn try_next(&mut self) -> Option<BreakerEvent> {
        loop {
            match self.receiver.try_recv() {
                Ok(event) => return Some(event),
                Err(TryRecvError::Lagged(n)) => self.missed += n,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return None,
            }
        }
    }

    /// How many were missed so far.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

/// A breaker's metrics, looked up once.
pub(super) struct Meters {
    success: Counter,
    failure: Counter,
    ignore: Counter,
    pub late: Counter,
    pub rejected: Counter,
    open: Gauge,
}

impl Meters {
    pub(super) fn new(breaker: &Arc<str>) -> Self {
        let name = || breaker.to_string();
        let calls = |outcome| counter!("redrive_breaker_calls", "breaker" => name(), "outcome" => outcome);
        let meters = Self {
            success: calls("success"),
            failure: calls("failure"),
            ignore: calls("ignore"),
            late: calls("late"),
            rejected: counter!("redrive_breaker_rejected", "breaker" => name()),
            open: gauge!("redrive_breaker_open", "breaker" => name()),
        };
        meters.open.set(0.0);
        meters
    }

    #[inline]
    pub(super) fn count(&self, health: Health) {
        match health {
            Health::Success => self.success.increment(1),
            Health::Failure => self.failure.increment(1),
            Health::Ignore => self.ignore.increment(1),
        }
    }

    pub(super) fn changed(&self, event: &BreakerEvent) {
        counter!("redrive_breaker_changes", "breaker" => event.breaker.to_string(), "to" => event.to.as_str())
            .increment(1);
        self.open.set(match event.to {
            State::Closed | State::ForcedClosed => 0.0,
            State::HalfOpen => 0.5,
            State::Open | State::ForcedOpen => 1.0,
        });
    }
}
