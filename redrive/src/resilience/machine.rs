//! The states of a breaker and what moves it between them: a value without clock, chance or lock. The in-process breaker keeps
//! one behind a lock; a [gate](crate::gate) keeps one in a row that the cluster shares.
//!
//! *State.* Closed; open until a moment; half-open with a round of probes; and, beside that, held open or closed by hand. Each
//! change and each round makes a new *generation*. `opens` counts the waits since some probe last succeeded or it was stable,
//! and `failing_since` is the beginning of the outage.
//!
//! *Two rules.* Under the *strict* rule (source 4's) one round decides: it closes when enough probes succeed, and opens for a
//! longer wait as soon as they cannot. Under the *gradual* rule rounds begin with one probe. When all probes of a round have
//! ended and enough of them succeeded, the next round is larger by as much as the share that succeeded (additive increase), and
//! the largest one closes it. Otherwise the round is halved and it opens (multiplicative decrease): for the shortest wait if
//! some probe of late succeeded, for a longer one if all failed.
//!
//! *Invariants.* What moves with time alone has moved whenever anything is asked or told: [`advance`](Machine::advance) comes
//! first, and dates a change by when it was due, so it does not matter how often one looks. In a round there are never more
//! probes out or ended than its size. A result of another generation changes nothing.
//!
//! *Failure.* A probe that is dropped or ignored gives its place back and decides nothing. One that never ends is lost after
//! `probe_limit`: the strict rule opens again, the gradual rule gives its place to another. A half-open breaker that nobody
//! calls waits. A clock that is set back does not prolong a wait beyond the longest one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::config::{BreakerConfig, HalfOpen};
use super::samples::Tally;
use crate::clock::Timestamp;

/// The shortest limit of a wait under the gradual rule.
const SHORT_WAIT: Duration = Duration::from_secs(12);
/// The share of the outage so far that a wait may take under the gradual rule.
const SHARE_OF_OUTAGE: u32 = 25;
/// The part of the largest round by which a round grows when all its probes succeed.
const STEPS: u32 = 2;

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

/// A decision by hand about a breaker or a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// Stays open: nothing goes through.
    Open,
    /// Stays closed: everything goes through, whatever comes of it.
    Closed,
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
    pub generation: i64,
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
    pub generation: i64,
    pub since: Timestamp,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Phase {
    Closed,
    Open { until: Timestamp },
    HalfOpen(Round),
}

/// A round of probes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Round {
    /// When each of those that are out began.
    pub out: Vec<Timestamp>,
    pub succeeded: u32,
    pub failed: u32,
}

/// A breaker, without what it counts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Machine {
    pub config: Arc<BreakerConfig>,
    pub phase: Phase,
    pub held: Option<Hold>,
    pub since: Timestamp,
    pub generation: i64,
    /// Waits in a row.
    pub opens: u32,
    /// Size of this round of probes, or of the next.
    pub round: u32,
    pub failing_since: Option<Timestamp>,
    /// What has changed and was not fetched yet.
    pub changes: Vec<Change>,
}

impl Machine {
    pub(crate) fn new(config: Arc<BreakerConfig>, now: Timestamp) -> Self {
        Self {
            round: first_round(&config),
            config,
            phase: Phase::Closed,
            held: None,
            since: now,
            generation: 0,
            opens: 0,
            failing_since: None,
            changes: Vec::new(),
        }
    }

    /// Does what is due by time. `random` is from 0 to 1, for the wait if it opens.
    pub(crate) fn advance(&mut self, now: Timestamp, random: f64) {
        if self.held.is_some() {
            return;
        }
        if let Some(overdue) = self.overdue_from().filter(|overdue| *overdue <= now) {
            match self.config.half_open {
                HalfOpen::Strict => self.open(Reason::ProbeOverdue, overdue, random),
                HalfOpen::Gradual => self.forget_lost(now),
            }
        }
        if let Some(over) = self.wait_over(now) {
            self.enter(Phase::HalfOpen(Round::default()), Reason::WaitOver, over);
        }
    }

    /// When a probe that is out will have taken too long.
    fn overdue_from(&self) -> Option<Timestamp> {
        match &self.phase {
            Phase::HalfOpen(round) => round.out.iter().min().map(|oldest| *oldest + self.config.probe_limit),
            _ => None,
        }
    }

    fn forget_lost(&mut self, now: Timestamp) {
        let limit = self.config.probe_limit;
        if let Phase::HalfOpen(round) = &mut self.phase {
            round.out.retain(|began| *began + limit > now);
        }
    }

    /// When the wait ended, if it has. One that is longer than any can be was begun by a clock that was ahead.
    fn wait_over(&self, now: Timestamp) -> Option<Timestamp> {
        let Phase::Open { until } = self.phase else { return None };
        if until <= now {
            return Some(until);
        }
        (until.since(now) > self.config.longest_wait()).then_some(now)
    }

    /// A rule was tripped by a call of this generation.
    pub(crate) fn trip(&mut self, generation: i64, tally: Tally, now: Timestamp, random: f64) {
        if generation == self.generation && self.phase == Phase::Closed && self.held.is_none() {
            self.fail(Reason::Tripped(tally), now, random);
        }
    }

    /// It opens from the closed state.
    pub(crate) fn fail(&mut self, reason: Reason, now: Timestamp, random: f64) {
        if self.since + self.config.stable_after <= now {
            self.opens = 0;
        }
        self.round = first_round(&self.config);
        self.open(reason, now, random);
    }

    /// A probe, if one may go.
    pub(crate) fn probe(&mut self, now: Timestamp, random: f64) -> Option<Probe> {
        self.advance(now, random);
        let (left, generation) = (self.probes_left(), self.generation);
        match &mut self.phase {
            Phase::HalfOpen(round) if left > 0 => {
                round.out.push(now);
                Some(Probe { generation, since: now })
            }
            _ => None,
        }
    }

    /// Number of probes of this round that may still begin.
    pub(crate) fn probes_left(&self) -> u32 {
        match &self.phase {
            Phase::HalfOpen(round) if self.held.is_none() => self.round.saturating_sub(round.taken()),
            _ => 0,
        }
    }

    /// What became of a probe. [`Health::Ignore`]: nothing; another may go in its stead.
    pub(crate) fn probe_ended(&mut self, probe: Probe, health: Health, now: Timestamp, random: f64) {
        self.advance(now, random);
        let is_gradual = self.config.half_open == HalfOpen::Gradual;
        let Phase::HalfOpen(round) = &mut self.phase else { return };
        if probe.generation != self.generation || self.held.is_some() {
            return;
        }
        // One that was given up for lost may end after all; the gradual rule learns from it.
        if !round.take_back(probe.since) && !is_gradual {
            return;
        }
        match health {
            Health::Ignore => {}
            Health::Success => round.succeeded += 1,
            Health::Failure => round.failed += 1,
        }
        self.decide(now, random);
    }

    /// Moves on if the probes that have ended decide.
    pub(crate) fn decide(&mut self, now: Timestamp, random: f64) {
        let Phase::HalfOpen(round) = &self.phase else { return };
        let (succeeded, failed) = (round.succeeded, round.failed);
        match self.config.half_open {
            HalfOpen::Strict => self.decide_strictly(succeeded, failed, now, random),
            HalfOpen::Gradual if succeeded + failed >= self.round => {
                self.decide_gradually(succeeded, failed, now, random);
            }
            HalfOpen::Gradual => {}
        }
    }

    fn decide_strictly(&mut self, succeeded: u32, failed: u32, now: Timestamp, random: f64) {
        let (most, needed) = (self.config.probes, self.config.successes_needed());
        if succeeded >= needed {
            self.close(now);
        } else if failed > most.saturating_sub(needed) {
            self.open(Reason::ProbesFailed, now, random);
        }
    }

    fn decide_gradually(&mut self, succeeded: u32, failed: u32, now: Timestamp, random: f64) {
        let (most, needed) = (self.config.probes, self.config.successes_needed());
        let share = f64::from(succeeded) / f64::from((succeeded + failed).max(1));
        let is_enough = u64::from(succeeded) * u64::from(most) >= u64::from(needed) * u64::from(succeeded + failed);
        if is_enough && self.round >= most {
            return self.close(now);
        }
        if is_enough {
            let step = (share * f64::from(most) / f64::from(STEPS)).ceil() as u32;
            self.round = most.min(self.round.saturating_add(step.max(1)));
            self.generation += 1;
            self.phase = Phase::HalfOpen(Round::default());
            return;
        }
        // A larger round, or a success in this one: some probes of late have succeeded.
        if self.round > 1 || succeeded > 0 {
            self.opens = 0;
        }
        self.round = (self.round / 2).max(1);
        self.open(Reason::ProbesFailed, now, random);
    }

    /// Held by hand, or let go: then it is as it was, and an open one may be probed at once.
    pub(crate) fn hold(&mut self, held: Option<Hold>, now: Timestamp) {
        let phase = if self.phase == Phase::Closed { Phase::Closed } else { Phase::Open { until: now } };
        let from = self.state();
        self.held = held;
        self.moved(from, phase, Reason::ByHand, now);
    }

    /// As if it were new: closed, and the next wait is the first one.
    pub(crate) fn reset(&mut self, now: Timestamp) {
        let from = self.state();
        (self.held, self.opens, self.failing_since) = (None, 0, None);
        self.moved(from, Phase::Closed, Reason::ByHand, now);
    }

    fn close(&mut self, now: Timestamp) {
        self.failing_since = None;
        self.enter(Phase::Closed, Reason::ProbesSucceeded, now);
    }

    fn open(&mut self, reason: Reason, at: Timestamp, random: f64) {
        self.opens = self.opens.saturating_add(1);
        // A beginning that lies ahead was noted by a clock that was ahead.
        let since = self.failing_since.map_or(at, |since| since.min(at));
        self.failing_since = Some(since);
        let mut wait = self.config.open_wait(self.opens, random);
        if self.config.half_open == HalfOpen::Gradual {
            let most = (at.since(since) / SHARE_OF_OUTAGE).max(SHORT_WAIT);
            wait = wait.min(self.config.open_jitter.apply(most, random));
        }
        self.enter(Phase::Open { until: at + wait }, reason, at);
    }

    fn enter(&mut self, phase: Phase, reason: Reason, at: Timestamp) {
        let from = self.state();
        self.moved(from, phase, reason, at);
    }

    fn moved(&mut self, from: State, phase: Phase, reason: Reason, at: Timestamp) {
        self.phase = phase;
        self.since = at;
        self.generation += 1;
        let (to, until, generation) = (self.state(), self.open_until(), self.generation);
        self.changes.push(Change { from, to, reason, at, until, generation });
    }

    pub(crate) fn state(&self) -> State {
        match (self.held, &self.phase) {
            (Some(Hold::Open), _) => State::ForcedOpen,
            (Some(Hold::Closed), _) => State::ForcedClosed,
            (None, Phase::Closed) => State::Closed,
            (None, Phase::Open { .. }) => State::Open,
            (None, Phase::HalfOpen(_)) => State::HalfOpen,
        }
    }

    pub(crate) fn open_until(&self) -> Option<Timestamp> {
        match self.phase {
            Phase::Open { until } if self.held.is_none() => Some(until),
            _ => None,
        }
    }

    pub(crate) fn since(&self) -> Timestamp {
        self.since
    }

    pub(crate) fn generation(&self) -> i64 {
        self.generation
    }

    /// Waits in a row.
    pub(crate) fn opens(&self) -> u32 {
        self.opens
    }

    /// The probes of this round, if there is one.
    pub(crate) fn probes(&self) -> Option<&Round> {
        match &self.phase {
            Phase::HalfOpen(round) => Some(round),
            _ => None,
        }
    }

    /// What has changed since this was last asked.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }
}

/// Size of the first round of probes.
fn first_round(config: &BreakerConfig) -> u32 {
    match config.half_open {
        HalfOpen::Strict => config.probes,
        HalfOpen::Gradual => 1,
    }
}

impl Round {
    pub(crate) fn taken(&self) -> u32 {
        u32::try_from(self.out.len()).unwrap_or(u32::MAX).saturating_add(self.succeeded).saturating_add(self.failed)
    }

    fn take_back(&mut self, since: Timestamp) -> bool {
        let place = self.out.iter().position(|began| *began == since);
        place.map(|place| self.out.swap_remove(place)).is_some()
    }
}
