//! The right to one call through a breaker, and what one is told who does not get it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::breaker::{CircuitBreaker, Ticket};
use super::machine::{Health, State};
use crate::clock::Timestamp;

/// The right to one call. Say how it ended; dropped, it decides nothing.
#[derive(Debug)]
#[must_use = "say how the call ended; dropped, it decides nothing"]
pub struct Permit<'a> {
    pub(super) breaker: &'a CircuitBreaker,
    pub(super) ticket: Option<Ticket>,
}

impl Permit<'_> {
    /// What was called is well.
    #[inline]
    pub fn success(self) {
        self.ended(Health::Success);
    }

    /// It is not.
    #[inline]
    pub fn failure(self) {
        self.ended(Health::Failure);
    }

    /// This call says nothing about it.
    #[inline]
    pub fn ignore(self) {
        self.ended(Health::Ignore);
    }

    /// So the call ended.
    #[inline]
    pub fn ended(mut self, health: Health) {
        if let Some(ticket) = self.ticket.take() {
            self.breaker.0.ended(ticket, health);
        }
    }
}

impl Drop for Permit<'_> {
    #[inline]
    fn drop(&mut self) {
        give_back(self.breaker, self.ticket.take());
    }
}

/// A [`Permit`] that does not borrow its breaker.
#[derive(Debug)]
#[must_use = "say how the call ended; dropped, it decides nothing"]
pub struct OwnedPermit {
    pub(super) breaker: CircuitBreaker,
    pub(super) ticket: Option<Ticket>,
}

impl OwnedPermit {
    /// So the call ended.
    pub fn ended(mut self, health: Health) {
        if let Some(ticket) = self.ticket.take() {
            self.breaker.0.ended(ticket, health);
        }
    }
}

impl Drop for OwnedPermit {
    fn drop(&mut self) {
        give_back(&self.breaker, self.ticket.take());
    }
}

#[inline]
fn give_back(breaker: &CircuitBreaker, ticket: Option<Ticket>) {
    if let Some(Ticket::Probe(probe)) = ticket {
        breaker.0.probe_ended(probe, Health::Ignore);
    }
}

/// A call was not made, because its breaker is open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejected {
    /// The breaker's name.
    pub breaker: Arc<str>,
    /// [`State::Open`]; [`State::HalfOpen`] if all its probes are out; [`State::ForcedOpen`].
    pub state: State,
    /// Until when it is open, as far as that is known.
    pub open_until: Option<Timestamp>,
    /// How long that was when the call was rejected.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the circuit of {} is {}", self.breaker, self.state)?;
        self.open_until.map_or(Ok(()), |until| write!(f, " until {until}"))
    }
}

impl std::error::Error for Rejected {}

/// Why a call through a breaker has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakerError<E> {
    /// It was not made.
    Rejected(Rejected),
    /// It was, and failed.
    Failed(E),
}

impl<E> From<Rejected> for BreakerError<E> {
    fn from(rejected: Rejected) -> Self {
        Self::Rejected(rejected)
    }
}

impl<E: fmt::Display> fmt::Display for BreakerError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(rejected) => rejected.fmt(f),
            Self::Failed(e) => e.fmt(f),
        }
    }
}

/// The cause is the rejection or the call's own error, so that a look along the causes finds either.
impl<E: std::error::Error + 'static> std::error::Error for BreakerError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Rejected(rejected) => Some(rejected),
            Self::Failed(e) => Some(e),
        }
    }
}

/// The rejection in an error or among its causes, if there is one: for layers that see it through others.
pub fn rejection<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Rejected> {
    std::iter::successors(Some(error), |error| error.source()).find_map(|error| error.downcast_ref())
}
