//! Gates: circuit breakers that the whole cluster shares, one for each lane that has one.
//!
//! *State.* A [`Gate`] is a row of `redrive_gate`: closed, open until a time, or half-open with so many probes given away and
//! passed. Each change of state has a new `generation`. A lane without a row is closed. What calls fare like is counted by each
//! node for itself; only what follows from it is shared.
//!
//! *Invariants.* Every change is a compare-and-set on lane and generation, so of two nodes that want one, one has it. In a cycle
//! (from half-open to the next change) no more probes are given than the config says: a probe is taken in the row before its
//! task is claimed, and is given back only when it has ended and says nothing of its target. *Open is back pressure, not an attempt*: while a gate is open its lane is not
//! read, nothing is written because of what waits, and no attempt is used up. A probe is an attempt like others.
//!
//! *Failure.* A probe whose node died is neither success nor failure: when none has been given for `probe_limit` and one is missing,
//! the gate opens again for another wait. Late results carry the generation in which they began, and change nothing in another
//! one. A node that cannot reach the database holds its own calls back until its wait is over.
//!
//! Here is what is decided, by pure functions; the store writes it, the engine acts on it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::duration;
use crate::error::Problems;
use crate::resilience::{BreakerConfig, Mode};
use crate::task::Lane;

/// How the gate of a lane behaves: `[methods.charge.gate]`, `[targets.billing.gate]`, `[http.gate]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct GateConfig {
    /// Whether there is one. Default: yes, where it is given at all.
    pub enabled: bool,
    /// When it opens, for how long, and what it takes to close again. Default: see there.
    pub breaker: BreakerConfig,
    /// A target that has failed for so long is suspended: its gate stays open until a person says otherwise, its tasks are kept, and people
    /// are told. Default: 5 days.
    #[serde(with = "duration")]
    pub suspend_after: Duration,
}

impl Default for GateConfig {
    fn default() -> Self {
        let suspend_after = Duration::from_secs(5 * 24 * 3600);
        Self { enabled: true, breaker: BreakerConfig::default(), suspend_after }
    }
}

impl GateConfig {
    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if let Err(crate::Error::Invalid(breaker)) = self.breaker.validate() {
            problems.nest("breaker", breaker);
        }
        duration::check(self.suspend_after, "suspend_after", &mut problems);
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

/// What a person has decided about a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// It stays open: nothing goes through.
    Open,
    /// It stays closed: everything goes through, whatever comes of it.
    Closed,
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
    /// Grows with each change.
    pub generation: i64,
    /// When it changed, or gave a probe away.
    pub changed_at: Timestamp,
    /// Until when it is open.
    pub open_until: Option<Timestamp>,
    /// Since when its target has been failing, without a close in between.
    pub failing_since: Option<Timestamp>,
    /// How often it has opened in a row, without having been closed for long.
    pub opens: u32,
    /// Probes of this cycle that were given away.
    pub probes_given: u32,
    /// And those that succeeded.
    pub probes_passed: u32,
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
            probes_given: 0,
            probes_passed: 0,
            why: None,
        }
    }

    /// What it lets through now: what a person has decided, or else its state.
    pub fn effective(&self) -> GateState {
        match self.held {
            Some(Hold::Open) => GateState::Open,
            Some(Hold::Closed) => GateState::Closed,
            None => self.state,
        }
    }

    fn next(&self, state: GateState, now: Timestamp) -> Self {
        let (generation, changed_at) = (self.generation + 1, now);
        Self { state, generation, changed_at, probes_given: 0, probes_passed: 0, open_until: None, ..self.clone() }
    }

    /// It opens: too many calls failed, or a probe did. `random` is from 0 to 1.
    pub(crate) fn opened(&self, config: &GateConfig, random: f64, why: &str, now: Timestamp) -> Self {
        let was_stable = self.state == GateState::Closed && now.since(self.changed_at) >= config.breaker.stable_after;
        let opens = if was_stable { 1 } else { self.opens.saturating_add(1) };
        let failing_since = self.failing_since.or(Some(now));
        let is_watched = config.breaker.mode == Mode::Observe; // it holds nothing back, however long it fails
        let too_long = !is_watched && failing_since.is_some_and(|since| now.since(since) >= config.suspend_after);
        Self {
            opens,
            failing_since,
            open_until: Some(now + config.breaker.open_wait(opens, random)),
            held: if too_long { Some(Hold::Open) } else { self.held },
            why: Some(if too_long {
                format!("suspended, it has been failing for too long: {why}")
            } else {
                why.to_owned()
            }),
            ..self.next(GateState::Open, now)
        }
    }

    /// Its wait is over: it gives probes away.
    pub(crate) fn half_opened(&self, now: Timestamp) -> Option<Self> {
        let is_over = self.state == GateState::Open && self.held.is_none() && self.open_until.is_none_or(|t| t <= now);
        is_over.then(|| self.next(GateState::HalfOpen, now))
    }

    /// The same where it is only watched: nothing was held back, so nothing need be tried.
    pub(crate) fn let_go(&self, now: Timestamp) -> Option<Self> {
        let closed =
            |next: Self| Self { failing_since: None, why: None, ..self.next(GateState::Closed, next.changed_at) };
        self.half_opened(now).map(closed)
    }

    /// A probe is missing for too long.
    pub(crate) fn has_lost_a_probe(&self, config: &GateConfig, now: Timestamp) -> bool {
        self.state == GateState::HalfOpen
            && self.probes_given > self.probes_passed
            && now.since(self.changed_at) >= config.breaker.probe_limit
    }

    /// Enough probes have passed: it closes.
    pub(crate) fn closed(&self, config: &GateConfig, now: Timestamp) -> Option<Self> {
        let is_enough = self.state == GateState::HalfOpen && self.probes_passed >= config.breaker.successes_needed();
        is_enough.then(|| Self { failing_since: None, why: None, ..self.next(GateState::Closed, now) })
    }

    /// A person holds it, or lets it go.
    pub(crate) fn held(&self, hold: Option<Hold>, why: Option<&str>, now: Timestamp) -> Self {
        // Let go, it is as it was; one that was suspended may probe at once.
        let state = if self.state == GateState::HalfOpen { GateState::Open } else { self.state };
        let open_until = (state == GateState::Open).then_some(now);
        Self { held: hold, why: why.map(str::to_owned), open_until, ..self.next(state, now) }
    }

    /// A person says that all is well.
    pub(crate) fn reset(&self, now: Timestamp) -> Self {
        Self { held: None, opens: 0, failing_since: None, why: None, ..self.next(GateState::Closed, now) }
    }
}

/// How many may run at once on a node, so long after its gate has closed: first as many as there were probes, then twice as many every
/// second.
pub(crate) fn ramp(probes: u32, since: Duration) -> usize {
    let doubled = u32::try_from(since.as_secs()).unwrap_or(u32::MAX).min(20);
    (probes.max(1) as usize) << doubled
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_millis(1_000_000);

    fn after(seconds: u64) -> Timestamp {
        START + Duration::from_secs(seconds)
    }

    fn passed(gate: &Gate, n: u32) -> Gate {
        Gate { probes_given: n, probes_passed: n, ..gate.clone() }
    }

    #[test]
    fn it_opens_probes_and_closes() {
        let config = GateConfig::default();
        let open = Gate::new(Lane(1), "billing", START).opened(&config, 0.5, "down", after(1));
        assert_eq!((open.state, open.opens, open.open_until), (GateState::Open, 1, Some(after(6))));
        assert_eq!(open.half_opened(after(5)), None);
        let half = open.half_opened(after(6)).unwrap();
        assert_eq!((half.state, half.generation), (GateState::HalfOpen, 2));
        assert_eq!(passed(&half, 2).closed(&config, after(7)), None);
        let closed = passed(&half, 3).closed(&config, after(7)).unwrap();
        assert_eq!((closed.state, closed.failing_since, closed.probes_given), (GateState::Closed, None, 0));
    }

    #[test]
    fn its_wait_grows_until_it_was_closed_for_long() {
        let config = GateConfig::default();
        let mut gate = Gate::new(Lane(1), "billing", START).opened(&config, 0.5, "down", after(0));
        gate = gate.half_opened(after(5)).unwrap().opened(&config, 0.5, "a probe failed", after(6));
        assert_eq!((gate.opens, gate.open_until), (2, Some(after(16))));
        let closed = passed(&gate.half_opened(after(16)).unwrap(), 3).closed(&config, after(17)).unwrap();
        assert_eq!(closed.opened(&config, 0.5, "down", after(20)).opens, 3, "it flaps");
        assert_eq!(closed.opened(&config, 0.5, "down", after(80)).opens, 1);
    }

    #[test]
    fn a_probe_that_is_lost_opens_it_again_and_one_that_nobody_needs_does_not() {
        let config = GateConfig::default();
        let half = Gate::new(Lane(1), "x", START).opened(&config, 0.5, "down", START).half_opened(after(9)).unwrap();
        assert!(!half.has_lost_a_probe(&config, after(9_999)), "there was nothing to try");
        let given = Gate { probes_given: 1, ..half };
        assert!(!given.has_lost_a_probe(&config, after(38)) && given.has_lost_a_probe(&config, after(39)));
    }

    #[test]
    fn what_fails_for_days_is_suspended_until_a_person_says_otherwise() {
        let config = GateConfig { suspend_after: Duration::from_secs(100), ..GateConfig::default() };
        let open = Gate::new(Lane(1), "x", START).opened(&config, 0.5, "down", START);
        let again = open.half_opened(after(99)).unwrap().opened(&config, 0.5, "down", after(99));
        assert_eq!(again.held, None);
        let suspended = again.half_opened(after(999)).unwrap().opened(&config, 0.5, "down", after(999));
        assert_eq!((suspended.held, suspended.half_opened(after(99_999))), (Some(Hold::Open), None));
        let freed = suspended.held(None, None, after(1_000));
        assert!(freed.half_opened(after(1_000)).is_some());
        assert_eq!(suspended.reset(after(1_000)).effective(), GateState::Closed);
    }

    #[test]
    fn one_that_is_only_watched_is_never_suspended() {
        let mut config = GateConfig { suspend_after: Duration::from_secs(100), ..GateConfig::default() };
        config.breaker.mode = Mode::Observe;
        let open = Gate::new(Lane(1), "billing", START).opened(&config, 0.5, "down", after(1));
        let let_go = open.let_go(after(50)).unwrap();
        assert_eq!((let_go.state, let_go.failing_since), (GateState::Closed, None), "that was one outage");
        assert_eq!(open.opened(&config, 0.5, "still down", after(999)).held, None);
    }

    #[test]
    fn after_a_close_more_and_more_may_run() {
        assert_eq!([0, 1, 2, 5].map(|s| ramp(3, Duration::from_secs(s))), [3, 6, 12, 96]);
        assert!(ramp(u32::MAX, Duration::MAX) > 1_000_000);
    }
}
