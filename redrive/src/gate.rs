//! Gates: circuit breakers that the whole cluster shares, one for each lane that has one.
//!
//! *State.* A [`Gate`] is a row of `redrive_gate`: the [machine](crate::resilience) of a breaker with the numbers of a round of
//! probes. A lane without a row is closed. Each node counts its own calls; only what follows from them is shared.
//!
//! *Time.* An open gate whose wait is over is half-open, whether its row says so or not: the row is written by whoever takes the
//! first probe. A gate that nobody has needed for ten minutes is closed in the same way, and begins anew: that
//! nobody calls is no evidence of failure. Rows that say nothing any more are deleted.
//!
//! *Invariants.* Every change is a compare-and-set on lane and generation, so of two nodes that want one, one has it. In a round
//! no more probes are out or ended than the row allows: a probe is taken in the row, by a compare-and-set on its numbers, before
//! its task is claimed, and is given back only when it has ended and says nothing of its target. *Open is back pressure, not an
//! attempt*: while a gate is open its lane is not read, nothing is written because of what waits, and no attempt is used up. A
//! probe is an attempt like others. A generation is never used again, not even by a row that was deleted and made anew.
//!
//! *Failure.* A probe whose node died is neither success nor failure: at `probes_until` its place is free again (gradual), or the
//! gate opens for the same wait (strict). A late success of the same round still counts. Late results of other generations
//! change nothing. A node that cannot reach the database holds its own calls back until its wait is over. A wait that lies
//! further ahead than any can was noted by a clock that was ahead, and is over.
//!
//! The functions here decide; the store writes, the engine acts.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::duration;
use crate::error::Problems;
pub use crate::resilience::Hold;
use crate::resilience::machine::{Machine, Phase, Round};
use crate::resilience::{BreakerConfig, HalfOpen, Mode, Tally};
use crate::task::Lane;

/// A gate that nobody has needed for this long is forgotten.
pub(crate) const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// The longest wait of a gate: one that is longer might as well be closed by hand.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);
/// A shorter limit would call probes lost that are on their way.
const SHORTEST_PROBE_LIMIT: Duration = Duration::from_secs(1);

/// How the gate of a lane behaves: `[methods.charge.gate]`, `[targets.billing.gate]`, `[http.gate]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct GateConfig {
    /// False: there is none. Default: true, where a gate is given at all.
    pub enabled: bool,
    /// When it opens, for how long, and what it takes to close again. Default: as the table of a breaker says "of a gate".
    #[serde(deserialize_with = "over_defaults")]
    pub breaker: BreakerConfig,
    /// A target that has failed for this long without a pause is suspended: its gate stays open until a person says otherwise, its
    /// tasks are kept, and people are told. Default: 5 days.
    #[serde(with = "duration")]
    pub suspend_after: Duration,
}

impl Default for GateConfig {
    fn default() -> Self {
        let suspend_after = Duration::from_secs(5 * 24 * 3600);
        Self { enabled: true, breaker: BreakerConfig::for_gate(), suspend_after }
    }
}

/// Reads the settings of a breaker; fields that are missing have the defaults of a gate.
fn over_defaults<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<BreakerConfig, D::Error> {
    use serde::de::Error;
    let given = serde_json::Map::deserialize(deserializer)?;
    let mut all = serde_json::to_value(BreakerConfig::for_gate()).map_err(D::Error::custom)?;
    if let Some(all) = all.as_object_mut() {
        all.extend(given);
    }
    serde_json::from_value(all).map_err(D::Error::custom)
}

impl GateConfig {
    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if let Err(crate::Error::Invalid(breaker)) = self.breaker.validate() {
            problems.nest("breaker", breaker);
        }
        duration::check(self.suspend_after, "suspend_after", &mut problems);
        let longest = self.breaker.longest_wait();
        problems.require(longest <= LONGEST_WAIT, "breaker.open_wait", || {
            "must be at most 1day, or the gate stays open long after its target is back; to keep it open, hold it"
                .into()
        });
        problems.require(
            (SHORTEST_PROBE_LIMIT..=LONGEST_WAIT).contains(&self.breaker.probe_limit),
            "breaker.probe_limit",
            || "must be from 1s to 1day, or every probe is lost, or one that is lost is waited for too long".into(),
        );
        problems.require(self.suspend_after > longest + self.breaker.probe_limit, "suspend_after", || {
            "must be longer than the longest wait and a probe, or the gate is suspended before it is probed".into()
        });
        problems
    }
}

/// What a gate lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateState {
    /// Everything.
    Closed,
    /// Nothing, until a time.
    Open,
    /// A few probes.
    HalfOpen,
}

/// A gate, as the cluster has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Gate {
    /// Its lane.
    pub lane: Lane,
    /// For people: the method or the host.
    pub name: String,
    /// What it lets through, unless it is held.
    pub state: GateState,
    /// What a person has decided.
    pub held: Option<Hold>,
    /// Grows with each change and each round of probes.
    pub generation: i64,
    /// When its state changed.
    pub changed_at: Timestamp,
    /// The end of its wait: it is probed from then on.
    pub open_until: Option<Timestamp>,
    /// The beginning of the outage: when it first opened, without a close in between.
    pub failing_since: Option<Timestamp>,
    /// Number of waits in a row without a successful probe.
    pub opens: u32,
    /// Size of this round of probes; of the next one, while it is open.
    pub probes_allowed: u32,
    /// Probes of this round that were given away; of the last one, while it is open.
    pub probes_given: u32,
    /// Probes of that round that succeeded.
    pub probes_passed: u32,
    /// Probes of that round that failed.
    pub probes_failed: u32,
    /// A probe that is out is lost from then on.
    pub probes_until: Timestamp,
    /// Why it is as it is.
    pub why: Option<String>,
}

impl GateState {
    const ALL: [Self; 3] = [Self::Closed, Self::Open, Self::HalfOpen];

    /// Its name in the database and the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }

    pub(crate) fn read(name: &str) -> Self {
        Self::ALL.into_iter().find(|state| state.as_str() == name).unwrap_or(Self::Closed)
    }
}

impl Hold {
    /// Its name in the database and the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }

    pub(crate) fn read(name: &str) -> Option<Self> {
        [Self::Open, Self::Closed].into_iter().find(|hold| hold.as_str() == name)
    }
}

impl Gate {
    /// One that has never opened.
    pub(crate) fn new(lane: Lane, name: &str, now: Timestamp) -> Self {
        Self {
            lane,
            name: name.to_owned(),
            state: GateState::Closed,
            held: None,
            generation: 0,
            changed_at: now,
            open_until: None,
            failing_since: None,
            opens: 0,
            probes_allowed: 1,
            probes_given: 0,
            probes_passed: 0,
            probes_failed: 0,
            probes_until: Timestamp::EPOCH,
            why: None,
        }
    }

    /// What it lets through: what a person has decided, or else its state. For a row as it was read, ask [`at`](Self::at) first.
    pub fn effective(&self) -> GateState {
        match self.held {
            Some(Hold::Open) => GateState::Open,
            Some(Hold::Closed) => GateState::Closed,
            None => self.state,
        }
    }

    /// The gate at this moment: half-open when its wait is over, closed when nobody has needed it for ten minutes.
    pub fn at(&self, now: Timestamp) -> Self {
        let mut gate = self.clone();
        if self.is_forgotten(now) {
            (gate.state, gate.open_until, gate.failing_since, gate.opens) = (GateState::Closed, None, None, 0);
            gate.why = None;
        } else if self.is_wait_over(now) {
            gate.state = GateState::HalfOpen;
            (gate.probes_given, gate.probes_passed, gate.probes_failed) = (0, 0, 0);
        }
        gate
    }

    /// True if nothing holds its lane back, and nothing has for a while.
    pub(crate) fn is_calm(&self, now: Timestamp) -> bool {
        self.held.is_none() && (self.state == GateState::Closed || self.is_forgotten(now))
    }

    /// The share of the probes of this round, or of the last one, that succeeded.
    pub fn probe_success(&self) -> Option<f64> {
        let ended = self.probes_passed + self.probes_failed;
        (ended > 0).then(|| f64::from(self.probes_passed) / f64::from(ended))
    }

    /// What it lets through at this moment under its config.
    pub(crate) fn lets_through(&self, config: &GateConfig, now: Timestamp) -> GateState {
        if self.held.is_some() || self.state == GateState::Closed {
            return self.effective();
        }
        if self.is_forgotten(now) {
            return GateState::Closed;
        }
        let is_too_far = |until: Timestamp| until.since(now) > config.breaker.longest_wait();
        if self.is_wait_over(now) || self.open_until.is_some_and(is_too_far) { GateState::HalfOpen } else { self.state }
    }

    fn is_wait_over(&self, now: Timestamp) -> bool {
        self.state == GateState::Open && self.held.is_none() && self.open_until.is_none_or(|until| until <= now)
    }

    fn is_forgotten(&self, now: Timestamp) -> bool {
        self.state != GateState::Closed && self.held.is_none() && self.forgotten_at() <= now
    }

    /// When it is forgotten if nobody needs it.
    fn forgotten_at(&self) -> Timestamp {
        self.changed_at.max(self.probes_until).max(self.open_until.unwrap_or(Timestamp::EPOCH)) + FORGOTTEN_AFTER
    }

    /// Since when it lets everything through after it held its lane back.
    pub(crate) fn closed_since(&self, now: Timestamp) -> Option<Timestamp> {
        match self.state {
            _ if self.held.is_some() || self.generation == 0 => None,
            GateState::Closed => Some(self.changed_at),
            _ => self.is_forgotten(now).then(|| self.forgotten_at()),
        }
    }

    /// True if a build that knows no rounds has made it half-open: then `probes_until` is of an earlier round, or was never set.
    fn is_foreign(&self) -> bool {
        self.state == GateState::HalfOpen && self.probes_until <= self.changed_at
    }

    /// Its machine, as of the last write.
    fn machine(&self, config: &GateConfig) -> Machine {
        let limit = config.breaker.probe_limit;
        let out = self.probes_given.saturating_sub(self.probes_passed + self.probes_failed);
        let round = || Round {
            out: vec![
                Timestamp::from_millis(self.probes_until.as_millis() - crate::clock::millis(limit));
                out as usize
            ],
            succeeded: self.probes_passed,
            failed: self.probes_failed,
        };
        Machine {
            phase: match self.state {
                GateState::Closed => Phase::Closed,
                // A round of our own follows.
                GateState::HalfOpen if self.is_foreign() => Phase::Open { until: self.changed_at },
                GateState::Open => Phase::Open { until: self.open_until.unwrap_or(self.changed_at) },
                GateState::HalfOpen => Phase::HalfOpen(round()),
            },
            held: self.held,
            since: self.changed_at,
            generation: self.generation,
            opens: self.opens,
            round: match config.breaker.half_open {
                HalfOpen::Strict => config.breaker.probes,
                HalfOpen::Gradual => self.probes_allowed.clamp(1, config.breaker.probes),
            },
            failing_since: self.failing_since,
            ..Machine::new(Arc::new(config.breaker.clone()), self.changed_at)
        }
    }

    /// The gate with its machine moved on. The numbers of a round stay to be seen while it is open.
    fn with(&self, machine: &Machine) -> Self {
        let mut next = self.clone();
        next.generation = match (self.generation, machine.generation) {
            // A row that was deleted and made anew has no generation of before.
            (0, moved) if moved > 0 => machine.since.as_millis().max(1),
            (_, generation) => generation,
        };
        next.changed_at = if machine.changes.is_empty() { self.changed_at } else { machine.since };
        (next.held, next.opens, next.failing_since) = (machine.held, machine.opens, machine.failing_since);
        next.probes_allowed = machine.round;
        next.open_until = None;
        next.state = match &machine.phase {
            Phase::Closed => GateState::Closed,
            Phase::Open { until } => {
                next.open_until = Some(*until);
                GateState::Open
            }
            Phase::HalfOpen(round) => {
                next.probes_given = round.taken();
                (next.probes_passed, next.probes_failed) = (round.succeeded, round.failed);
                GateState::HalfOpen
            }
        };
        next
    }

    /// Opens it from the closed state: a rule was tripped. `random` is from 0 to 1. `None`: it is not closed.
    pub(crate) fn tripped(&self, config: &GateConfig, tally: &Tally, random: f64, now: Timestamp) -> Option<Self> {
        let gate = self.at(now);
        let mut machine = gate.machine(config);
        machine.trip(gate.generation, tally.clone(), now, random);
        (machine.phase != Phase::Closed).then(|| gate.with(&machine).opened(config, &tally.to_string(), now))
    }

    /// What an opening says of itself; and a target that has failed for too long is suspended.
    fn opened(mut self, config: &GateConfig, why: &str, now: Timestamp) -> Self {
        let failing_for = self.failing_since.map_or(Duration::ZERO, |since| now.since(since));
        // One that is only watched holds nothing back, however long it fails.
        let is_suspended = config.breaker.mode == Mode::Enforce && failing_for >= config.suspend_after;
        self.why = Some(if is_suspended {
            format!("suspended, it has been failing for too long: {why}")
        } else {
            why.to_owned()
        });
        if is_suspended {
            self.held = Some(Hold::Open);
        }
        self
    }

    /// What time has made of it, if that is to be written: a strict gate whose probe is lost opens for the same wait again, one
    /// that is only watched closes after its wait, and a round that was decided when its node died is followed by the next.
    pub(crate) fn due(&self, config: &GateConfig, random: f64, now: Timestamp) -> Option<Self> {
        if self.is_calm(now) || self.held.is_some() {
            return None;
        }
        if config.breaker.mode == Mode::Observe && self.is_wait_over(now) {
            let mut machine = self.machine(config);
            machine.reset(now);
            return Some(Self { opens: self.opens, why: None, ..self.with(&machine) });
        }
        let has_news = self.probes_passed + self.probes_failed > 0 || self.probes_until <= now;
        if self.state != GateState::HalfOpen || self.is_foreign() || !has_news {
            return None;
        }
        let mut machine = self.machine(config);
        machine.decide(now, random);
        let is_decided = machine.generation != self.generation;
        if !is_decided {
            machine.opens = machine.opens.saturating_sub(1); // nothing failed: the same wait again
            machine.advance(now, random);
            machine.opens = machine.opens.max(self.opens);
        }
        // A wait that is over already is the next node's to see.
        let why = if is_decided { "its probes failed" } else { "a probe was lost" };
        (machine.generation != self.generation).then(|| self.ended(config, &machine, why, now))
    }

    fn ended(&self, config: &GateConfig, machine: &Machine, why: &str, now: Timestamp) -> Self {
        let next = self.with(machine);
        match next.state {
            GateState::Open => next.opened(config, why, now),
            GateState::Closed => Self { why: None, ..next },
            GateState::HalfOpen => next,
        }
    }

    /// Number of probes that may be taken now.
    pub(crate) fn probes_left(&self, config: &GateConfig, now: Timestamp) -> u32 {
        if self.state == GateState::HalfOpen && self.held.is_none() && !self.is_foreign() && now < self.probes_until {
            return self.probes_allowed.saturating_sub(self.probes_given);
        }
        self.probing(config, now).map_or(0, |gate| gate.probes_allowed.saturating_sub(gate.probes_given))
    }

    /// The gate with `n` more of its probes given away, if it has them. Of a gate whose wait is over this is the change to
    /// half-open.
    pub(crate) fn taken(&self, config: &GateConfig, n: u32, now: Timestamp) -> Option<Self> {
        let gate = self.probing(config, now)?;
        let probes_given = gate.probes_given + n;
        let probes_until = now + config.breaker.probe_limit;
        (probes_given <= gate.probes_allowed).then_some(Self { probes_given, probes_until, ..gate })
    }

    /// The gate, if it is half-open now; without probes that are lost.
    fn probing(&self, config: &GateConfig, now: Timestamp) -> Option<Self> {
        if self.is_forgotten(now) || self.held.is_some() || self.state == GateState::Closed {
            return None;
        }
        let mut machine = self.machine(config);
        machine.advance(now, 0.0);
        let gate = self.with(&machine);
        (gate.state == GateState::HalfOpen).then_some(gate)
    }

    /// What follows from the numbers of its round, a probe having ended. `why`: what the probe said, if it failed.
    pub(crate) fn decided(&self, config: &GateConfig, why: &str, random: f64, now: Timestamp) -> Option<Self> {
        let mut machine = self.machine(config);
        if self.is_forgotten(now) {
            // A clock that jumped ahead: for how long it fails is not known.
            (machine.failing_since, machine.opens) = (None, 0);
        }
        machine.decide(now, random);
        (machine.generation != self.generation).then(|| self.ended(config, &machine, why, now))
    }

    /// A person holds it, or lets it go.
    pub(crate) fn held(&self, hold: Option<Hold>, why: Option<&str>, now: Timestamp) -> Self {
        let mut machine = self.machine(&GateConfig::default());
        machine.hold(hold, now);
        Self { why: why.map(str::to_owned), ..self.with(&machine) }
    }

    /// A person says that all is well.
    pub(crate) fn reset(&self, now: Timestamp) -> Self {
        let mut machine = self.machine(&GateConfig::default());
        machine.reset(now);
        Self { why: None, ..self.with(&machine) }
    }
}

/// How many may run at once on a node, so long after its gate has closed: first as many as there were probes, then twice as many every
/// second.
pub(crate) fn ramp(probes: u32, since: Duration) -> usize {
    let doubled = u32::try_from(since.as_secs()).unwrap_or(u32::MAX).min(20);
    (probes.max(1) as usize) << doubled
}

#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backoff::{Backoff, Jitter};
    use crate::resilience::Trip;

    const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn after(seconds: u64) -> Timestamp {
        START + Duration::from_secs(seconds)
    }

    fn strict() -> GateConfig {
        GateConfig { breaker: BreakerConfig::default(), ..GateConfig::default() }
    }

    fn tally() -> Tally {
        Tally { trip: Trip::Consecutive(5), bad: 5, total: 5 }
    }

    fn open(config: &GateConfig, at: Timestamp) -> Gate {
        Gate::new(Lane(1), "billing", START).tripped(config, &tally(), 0.5, at).unwrap()
    }

    /// The gate after a round of `n` probes of which `failed` failed, if they can be had.
    fn round(gate: &Gate, config: &GateConfig, n: u32, failed: u32, now: Timestamp) -> Gate {
        let taken = gate.taken(config, n, now).unwrap();
        let ended = Gate { probes_passed: n - failed, probes_failed: failed, ..taken };
        ended.decided(config, "a probe failed", 0.5, now).unwrap_or(ended)
    }

    #[test]
    fn a_strict_gate_opens_probes_and_closes() {
        let config = strict();
        let open = open(&config, after(1));
        assert_eq!((open.state, open.opens, open.open_until), (GateState::Open, 1, Some(after(6))));
        assert_eq!((open.probes_left(&config, after(5)), open.probes_left(&config, after(6))), (0, 3));
        assert_eq!(open.taken(&config, 4, after(6)), None);
        let two = round(&open, &config, 2, 0, after(6));
        assert_eq!((two.state, two.probes_left(&config, after(6))), (GateState::HalfOpen, 1));
        let closed = round(&two, &config, 1, 0, after(7));
        assert_eq!(closed.state, GateState::HalfOpen, "the three are counted together");
        let ended = Gate { probes_passed: 3, ..two.taken(&config, 1, after(7)).unwrap() };
        let closed = ended.decided(&config, "", 0.5, after(7)).unwrap();
        assert_eq!((closed.state, closed.failing_since), (GateState::Closed, None));
    }

    #[test]
    fn the_wait_of_a_strict_gate_grows_until_it_was_closed_for_long() {
        let config = strict();
        let again = round(&open(&config, START), &config, 3, 1, after(6));
        assert_eq!((again.state, again.opens, again.open_until), (GateState::Open, 2, Some(after(16))));
        let closed = round(&again, &config, 3, 0, after(17));
        assert_eq!(closed.tripped(&config, &tally(), 0.5, after(20)).unwrap().opens, 3, "it flaps");
        assert_eq!(closed.tripped(&config, &tally(), 0.5, after(80)).unwrap().opens, 1);
    }

    #[test]
    fn a_gradual_gate_lets_more_and_more_through_and_closes() {
        let config = GateConfig::default();
        let mut gate = open(&config, START);
        assert_eq!((gate.open_until, gate.probes_allowed), (Some(after(1)), 1));
        let mut rounds = Vec::new();
        while gate.state != GateState::Closed {
            rounds.push(gate.probes_allowed);
            gate = round(&gate, &config, gate.probes_allowed, 0, after(2));
        }
        assert_eq!(rounds, [1, 6, 10]);
        let mut gate = open(&config, START);
        gate = round(&gate, &config, 1, 0, after(2));
        gate = round(&gate, &config, 6, 3, after(3));
        assert_eq!((gate.state, gate.probes_allowed), (GateState::HalfOpen, 9), "half of them succeeded");
    }

    #[test]
    fn the_wait_of_a_gradual_gate_grows_only_while_all_probes_fail() {
        let config = GateConfig::default();
        let mut gate = open(&config, START);
        let mut waits = Vec::new();
        for _ in 0..7 {
            let now = gate.open_until.unwrap();
            gate = round(&gate, &config, 1, 1, now);
            waits.push(gate.open_until.unwrap().since(now).as_secs());
        }
        assert_eq!(waits, [2, 4, 8, 12, 12, 12, 12]);
        gate = round(&gate, &config, 1, 0, gate.open_until.unwrap());
        gate = round(&gate, &config, 6, 6, after(100));
        assert_eq!((gate.opens, gate.probes_allowed, gate.open_until), (1, 3, Some(after(101))));
        assert_eq!(gate.probe_success(), Some(0.0));
        gate = round(&gate, &config, 3, 3, after(102));
        assert_eq!((gate.opens, gate.probes_allowed), (1, 1));
        gate = round(&gate, &config, 1, 1, after(104));
        assert_eq!(gate.opens, 2, "all have failed since");
        let long = Gate { failing_since: Some(START), opens: 40, open_until: Some(after(3599)), ..gate };
        let next = round(&long, &config, 1, 1, after(3600));
        assert_eq!(next.open_until, Some(after(3600 + 144)), "a twenty-fifth of the outage");
    }

    #[test]
    fn a_probe_that_is_lost_gives_its_place_to_another_or_opens_a_strict_gate_for_the_same_wait() {
        let (gradual, strict) = (GateConfig::default(), strict());
        let taken = open(&gradual, START).taken(&gradual, 1, after(1)).unwrap();
        assert_eq!((taken.probes_left(&gradual, after(30)), taken.probes_left(&gradual, after(31))), (0, 1));
        let again = taken.taken(&gradual, 1, after(31)).unwrap();
        assert_eq!((again.generation, again.probes_given), (taken.generation, 1), "the first may still end");

        let half = open(&strict, START).taken(&strict, 1, after(5)).unwrap();
        assert_eq!((half.due(&strict, 0.5, after(34)), half.probes_left(&strict, after(34))), (None, 2));
        let lost = half.due(&strict, 0.5, after(35)).unwrap();
        assert_eq!((lost.state, lost.opens, lost.open_until), (GateState::Open, 1, Some(after(40))));
        let extended = Gate { probes_until: after(500), ..half };
        assert_eq!(extended.due(&strict, 0.5, after(499)), None);
    }

    #[test]
    fn a_round_whose_node_died_before_it_was_decided_is_decided_by_another() {
        let config = GateConfig::default();
        let taken = open(&config, START).taken(&config, 1, after(1)).unwrap();
        let passed = Gate { probes_passed: 1, ..taken };
        let next = passed.due(&config, 0.5, after(2)).unwrap();
        assert_eq!((next.state, next.probes_allowed, next.probes_given), (GateState::HalfOpen, 6, 0));
    }

    #[test]
    fn a_gate_that_nobody_needs_is_forgotten_and_begins_anew() {
        let config = GateConfig::default();
        let gate = round(&open(&config, START), &config, 1, 1, after(60));
        let idle = gate.probes_until + FORGOTTEN_AFTER;
        assert_eq!(gate.lets_through(&config, idle - Duration::from_millis(1)), GateState::HalfOpen);
        assert_eq!((gate.lets_through(&config, idle), gate.is_calm(idle)), (GateState::Closed, true));
        assert_eq!(gate.at(idle).state, GateState::Closed);
        assert_eq!((gate.closed_since(idle), gate.closed_since(after(90))), (Some(idle), None));
        // Days later it fails again: that is an outage of its own.
        let days = after(6 * 24 * 3600);
        let again = gate.tripped(&config, &tally(), 0.5, days).unwrap();
        assert_eq!((again.held, again.opens, again.failing_since), (None, 1, Some(days)));
    }

    #[test]
    fn what_fails_for_days_is_suspended_until_a_person_says_otherwise() {
        let config = GateConfig { suspend_after: Duration::from_secs(400), ..GateConfig::default() };
        let mut gate = open(&config, START);
        while gate.held.is_none() {
            let now = gate.open_until.unwrap();
            assert!(now < after(500));
            gate = round(&gate, &config, 1, 1, now);
        }
        assert!(gate.changed_at >= after(400) && gate.why.as_ref().unwrap().starts_with("suspended"));
        assert_eq!(gate.probes_left(&config, after(99_999)), 0);
        let freed = gate.held(None, None, after(1_000));
        assert_eq!(freed.probes_left(&config, after(1_000)), 1);
        assert_eq!(gate.reset(after(1_000)).effective(), GateState::Closed);
    }

    #[test]
    fn one_that_is_only_watched_closes_after_its_wait_and_is_never_suspended() {
        let mut config = GateConfig { suspend_after: Duration::from_secs(100), ..strict() };
        config.breaker.mode = Mode::Observe;
        let open = open(&config, after(1));
        assert_eq!(open.due(&config, 0.5, after(5)), None);
        let let_go = open.due(&config, 0.5, after(6)).unwrap();
        assert_eq!((let_go.state, let_go.failing_since), (GateState::Closed, None), "that was one outage");
        let still = Gate { failing_since: Some(START), ..let_go };
        assert_eq!(still.tripped(&config, &tally(), 0.5, after(999)).unwrap().held, None);
    }

    #[test]
    fn a_clock_that_was_ahead_prolongs_no_wait_and_suspends_nothing() {
        let config = GateConfig::default();
        let hour_ahead = open(&config, after(3600));
        assert_eq!(hour_ahead.lets_through(&config, after(1)), GateState::HalfOpen);
        let probed = hour_ahead.taken(&config, 1, after(1)).unwrap();
        let ended = Gate { probes_failed: 1, ..probed };
        let next = ended.decided(&config, "a probe failed", 0.5, after(2)).unwrap();
        assert_eq!((next.failing_since, next.open_until), (Some(after(2)), Some(after(4))));
        // A node whose clock runs six days ahead for a moment opens it; to the others it is an opening like any other.
        let days_ahead = open(&config, after(6 * 24 * 3600));
        assert_eq!((days_ahead.held, days_ahead.lets_through(&config, after(1))), (None, GateState::HalfOpen));
        // And one whose clock is behind finds the wait longer, by no more than a wait.
        assert_eq!(open(&config, after(10)).lets_through(&config, after(0)), GateState::Open);
    }

    #[test]
    fn a_clock_that_jumps_ahead_while_a_probe_runs_suspends_nothing() {
        let config = GateConfig::default();
        let probed = open(&config, START).taken(&config, 1, after(1)).unwrap();
        let week = after(7 * 24 * 3600);
        let failed = Gate { probes_failed: 1, ..probed }.decided(&config, "a probe failed", 0.5, week).unwrap();
        assert_eq!((failed.state, failed.held, failed.failing_since), (GateState::Open, None, Some(week)));
    }

    /// A build of before rounds sets `probes_given` and `probes_passed`, and knows nothing of the other numbers.
    #[test]
    fn what_an_older_build_made_half_open_is_probed_in_a_round_of_its_own() {
        for config in [GateConfig::default(), strict()] {
            let failed = round(&open(&config, START), &config, 1, 1, after(10));
            let now = after(60);
            let (state, probes_given, probes_passed) = (GateState::HalfOpen, 0, 0);
            let generation = failed.generation + 1;
            let foreign =
                Gate { state, probes_given, probes_passed, changed_at: now, generation, open_until: None, ..failed };
            assert_eq!(
                (foreign.due(&config, 0.5, now), foreign.lets_through(&config, now)),
                (None, GateState::HalfOpen)
            );
            assert_eq!(foreign.probes_left(&config, now), if config == strict() { 3 } else { 1 });
            let taken = foreign.taken(&config, 1, now).unwrap();
            assert_eq!((taken.generation, taken.probes_given, taken.probes_failed), (generation + 1, 1, 0));
        }
    }

    #[test]
    fn a_row_that_is_made_anew_has_a_generation_of_its_own() {
        let config = GateConfig::default();
        let first = open(&config, after(1));
        let later = round(&round(&first, &config, 1, 1, after(3)), &config, 1, 1, after(20));
        assert!(later.generation < open(&config, after(4_000)).generation);
    }

    #[test]
    fn settings_with_which_it_could_not_close_are_refused() {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        let problems = |change: fn(&mut GateConfig)| {
            let mut config = GateConfig::default();
            change(&mut config);
            config.problems().into_result().map_err(|e| e.to_string())
        };
        let refused = |change: fn(&mut GateConfig), said: &str| {
            assert!(problems(change).is_err_and(|why| why.contains(said)), "{said}");
        };
        refused(|c| c.breaker.open_wait = Backoff::fixed(2 * DAY), "breaker.open_wait: must be at most 1day");
        refused(|c| c.breaker.probe_limit = Duration::from_millis(1), "breaker.probe_limit: must be from 1s to 1day");
        refused(|c| c.breaker.probe_limit = 4 * DAY, "breaker.probe_limit: must be from 1s to 1day");
        refused(|c| c.suspend_after = Duration::from_secs(60), "suspend_after: must be longer");
        refused(|c| c.breaker.successes = Some(11), "breaker.successes: must be from 1");
        assert_eq!(problems(|_| ()), Ok(()));
        let day =
            |c: &mut GateConfig| (c.breaker.open_wait, c.breaker.open_jitter) = (Backoff::fixed(DAY), Jitter::None);
        assert_eq!(problems(day), Ok(()));
    }

    #[test]
    fn fields_that_are_left_out_are_those_of_a_gate() {
        let config: GateConfig = serde_json::from_str(r#"{"breaker":{"probes":4}}"#).unwrap();
        assert_eq!(config.breaker, BreakerConfig { probes: 4, ..BreakerConfig::for_gate() });
        assert_eq!(serde_json::from_str::<GateConfig>("{}").unwrap(), GateConfig::default());
        let unknown = serde_json::from_str::<GateConfig>(r#"{"breaker":{"probe":4}}"#).unwrap_err().to_string();
        assert!(unknown.contains("probe"), "{unknown}");
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<GateConfig>(&json).unwrap(), config);
    }

    #[test]
    fn after_a_close_more_and_more_may_run() {
        assert_eq!([0, 1, 2, 5].map(|s| ramp(3, Duration::from_secs(s))), [3, 6, 12, 96]);
        assert!(ramp(u32::MAX, Duration::MAX) > 1_000_000);
    }
}
