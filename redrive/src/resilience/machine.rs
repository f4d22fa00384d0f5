//! The states of a breaker and what moves it between them: a value without clock, chance or lock. Source 4's state machine.
//!
//! *State.* Closed; open until a moment; half-open with so many probes out, succeeded and failed; or held by hand, open or
//! closed. Each change makes a new *generation*. `opens` counts how often it has opened without having been stable since.
//!
//! *Invariants.* What moves with time alone (open → half-open, a probe that takes too long) has moved whenever anything is asked
//! or told: [`advance`](Machine::advance) comes first, and dates a change by when it was due, so it does not matter how
//! often one looks. In one half-open cycle there are never more than `probes` probes out or ended. Whatever is told of another
//! generation changes nothing.
//!
//! *Failure.* A probe that is dropped or ignored gives its permit back and decides nothing. One that never ends opens the breaker
//! again after `probe_limit`. A half-open breaker that nobody calls waits.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::config::BreakerConfig;
use super::samples::Tally;
use crate::clock::Timestamp;

/// Where a breaker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Calls go through and are counted.
    Closed,
    /// Calls are rejected until its time is over.
    Open,
    /// Some calls go through, to see how they fare.
    HalfOpen,
    /// Held open by hand: calls are rejected until it is released.
    ForcedOpen,
    /// Held closed by hand: calls go through whatever becomes of them.
    ForcedClosed,
}

impl State {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
            Self::ForcedOpen => "forced open",
            Self::ForcedClosed => "forced closed",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a breaker has changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// A rule was tripped: closed → open.
    Tripped(Tally),
    /// Its time was over: open → half-open.
    WaitOver,
    /// Enough probes have succeeded: half-open → closed.
    ProbesSucceeded,
    /// Too many probes have failed: half-open → open.
    ProbesFailed,
    /// A probe has taken too long: half-open → open.
    ProbeOverdue,
    /// Somebody said so.
    ByHand,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tripped(tally) => tally.fmt(f),
            Self::WaitOver => f.write_str("the wait is over"),
            Self::ProbesSucceeded => f.write_str("the probes succeeded"),
            Self::ProbesFailed => f.write_str("a probe failed"),
            Self::ProbeOverdue => f.write_str("a probe took too long"),
            Self::ByHand => f.write_str("by hand"),
        }
    }
}

/// One change of state.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    pub from: State,
    pub to: State,
    pub reason: Reason,
    pub at: Timestamp,
    pub until: Option<Timestamp>,
    pub generation: u64,
}

/// How a call, or a probe, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Health {
    /// What was called is well.
    Success,
    /// It is not.
    Failure,
    /// This says nothing about it: the caller's own mistake, a call that was given up.
    Ignore,
}

/// The right to one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub generation: u64,
    pub since: Timestamp,
}

#[derive(Clone, Debug)]
enum Phase {
    Closed,
    Open { until: Timestamp },
    HalfOpen(Probes),
    ForcedOpen,
    ForcedClosed,
}

/// The probes of a half-open cycle.
#[derive(Clone, Debug, Default)]
struct Probes {
    /// When each of those that are out began.
    out: Vec<Timestamp>,
    succeeded: u32,
    failed: u32,
}

/// A breaker, without what it counts.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    config: Arc<BreakerConfig>,
    phase: Phase,
    since: Timestamp,
    generation: u64,
    opens: u32,
    /// What has changed and was not fetched yet.
    changes: Vec<Change>,
}

impl Machine {
    pub(crate) fn new(config: Arc<BreakerConfig>, now: Timestamp) -> Self {
        Self { config, phase: Phase::Closed, since: now, generation: 0, opens: 0, changes: Vec::new() }
    }

    /// Does what is due by time. `random` is from 0 to 1, for the wait if it opens.
    pub(crate) fn advance(&mut self, now: Timestamp, random: f64) {
        if let Some(overdue) = self.overdue_from().filter(|overdue| *overdue <= now) {
            self.open(Reason::ProbeOverdue, overdue, random);
        }
        if let Some(until) = self.open_until().filter(|until| *until <= now) {
            self.enter(Phase::HalfOpen(Probes::default()), Reason::WaitOver, until);
        }
    }

    /// When a probe that is out will have taken too long.
    fn overdue_from(&self) -> Option<Timestamp> {
        match &self.phase {
            Phase::HalfOpen(probes) => probes.out.iter().min().map(|oldest| *oldest + self.config.probe_limit),
            _ => None,
        }
    }

    /// A rule was tripped by a call of this generation.
    pub(crate) fn trip(&mut self, generation: u64, tally: Tally, now: Timestamp, random: f64) {
        if generation != self.generation || !matches!(self.phase, Phase::Closed) {
            return;
        }
        if self.since + self.config.stable_after <= now {
            self.opens = 0;
        }
        self.open(Reason::Tripped(tally), now, random);
    }

    /// A probe, if one may go.
    pub(crate) fn probe(&mut self, now: Timestamp, random: f64) -> Option<Probe> {
        self.advance(now, random);
        let most = self.config.probes;
        match &mut self.phase {
            Phase::HalfOpen(probes) if probes.taken() < most => {
                probes.out.push(now);
                Some(Probe { generation: self.generation, since: now })
            }
            _ => None,
        }
    }

    /// What became of a probe. [`Health::Ignore`]: nothing; another may go in its stead.
    pub(crate) fn probe_ended(&mut self, probe: Probe, health: Health, now: Timestamp, random: f64) {
        self.advance(now, random);
        let (most, needed) = (self.config.probes, self.config.successes_needed());
        let Phase::HalfOpen(probes) = &mut self.phase else { return };
        if probe.generation != self.generation || !probes.take_back(probe.since) {
            return;
        }
        match health {
            Health::Ignore => {}
            Health::Success => probes.succeeded += 1,
            Health::Failure => probes.failed += 1,
        }
        if probes.succeeded >= needed {
            self.enter(Phase::Closed, Reason::ProbesSucceeded, now);
        } else if probes.failed > most.saturating_sub(needed) {
            self.open(Reason::ProbesFailed, now, random);
        }
    }

    /// Open until it is released.
    pub(crate) fn force_open(&mut self, now: Timestamp, random: f64) {
        self.advance(now, random);
        self.enter(Phase::ForcedOpen, Reason::ByHand, now);
    }

    /// Closed until it is released.
    pub(crate) fn force_closed(&mut self, now: Timestamp, random: f64) {
        self.advance(now, random);
        self.enter(Phase::ForcedClosed, Reason::ByHand, now);
    }

    /// As if it were new: closed, and the next wait is the first one.
    pub(crate) fn reset(&mut self, now: Timestamp, random: f64) {
        self.advance(now, random);
        self.opens = 0;
        self.enter(Phase::Closed, Reason::ByHand, now);
    }

    fn open(&mut self, reason: Reason, at: Timestamp, random: f64) {
        self.opens = self.opens.saturating_add(1);
        let until = at + self.config.open_wait(self.opens, random);
        self.enter(Phase::Open { until }, reason, at);
    }

    fn enter(&mut self, phase: Phase, reason: Reason, at: Timestamp) {
        let from = self.state();
        self.phase = phase;
        self.since = at;
        self.generation += 1;
        let (to, until, generation) = (self.state(), self.open_until(), self.generation);
        self.changes.push(Change { from, to, reason, at, until, generation });
    }

    pub(crate) fn state(&self) -> State {
        match self.phase {
            Phase::Closed => State::Closed,
            Phase::Open { .. } => State::Open,
            Phase::HalfOpen(_) => State::HalfOpen,
            Phase::ForcedOpen => State::ForcedOpen,
            Phase::ForcedClosed => State::ForcedClosed,
        }
    }

    pub(crate) fn open_until(&self) -> Option<Timestamp> {
        if let Phase::Open { until } = self.phase { Some(until) } else { None }
    }

    pub(crate) fn since(&self) -> Timestamp {
        self.since
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// How often it has opened in a row.
    pub(crate) fn opens(&self) -> u32 {
        self.opens
    }

    /// Probes of this cycle: out, succeeded, failed.
    pub(crate) fn probes(&self) -> (usize, u32, u32) {
        match &self.phase {
            Phase::HalfOpen(probes) => (probes.out.len(), probes.succeeded, probes.failed),
            _ => (0, 0, 0),
        }
    }

    /// What has changed since this was last asked.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }
}

impl Probes {
    fn taken(&self) -> u32 {
        u32::try_from(self.out.len()).unwrap_or(u32::MAX).saturating_add(self.succeeded).saturating_add(self.failed)
    }

    fn take_back(&mut self, since: Timestamp) -> bool {
        let place = self.out.iter().position(|began| *began == since);
        place.map(|place| self.out.swap_remove(place)).is_some()
    }
}
