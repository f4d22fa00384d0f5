//! The breaker against a slow one that is obviously right: it keeps every call it was ever told of, counts anew whenever it is
//! asked, and does what is due by time one thing after the other.

use proptest::prelude::*;
use redrive::resilience::{BreakerConfig, HalfOpen, Health, State, Trip, Window};

use super::*;

/// A call that ended while it was closed.
#[derive(Clone, Copy)]
struct Ended {
    at: Timestamp,
    failed: bool,
    took: Duration,
    /// The number of calls that had ended when it began.
    began_after: usize,
}

/// A probe of this round; one that decides nothing is removed.
#[derive(Clone, Copy)]
struct Probe {
    id: usize,
    began: Timestamp,
    succeeded: Option<bool>,
    /// It took too long, and another may go in its place.
    lost: bool,
}

/// A call that was let through.
#[derive(Clone, Copy)]
struct Call {
    began: Timestamp,
    generation: i64,
    state: State,
    began_after: usize,
}

#[derive(Clone)]
struct Model {
    config: BreakerConfig,
    state: State,
    since: Timestamp,
    until: Option<Timestamp>,
    opens: u32,
    generation: i64,
    failing_since: Option<Timestamp>,
    round: u32,
    ended: Vec<Ended>,
    probes: Vec<Probe>,
    calls: Vec<Call>,
}

impl Model {
    fn new(config: &BreakerConfig) -> Self {
        Self {
            config: config.clone(),
            state: State::Closed,
            since: START,
            until: None,
            opens: 0,
            generation: 0,
            failing_since: None,
            round: 0,
            ended: Vec::new(),
            probes: Vec::new(),
            calls: Vec::new(),
        }
    }

    fn enter(&mut self, state: State, at: Timestamp) {
        (self.state, self.since, self.until) = (state, at, None);
        self.generation += 1;
        self.ended.clear();
        self.probes.clear();
    }

    fn is_gradual(&self) -> bool {
        self.config.half_open == HalfOpen::Gradual
    }

    fn open(&mut self, at: Timestamp) {
        self.opens += 1;
        let since = *self.failing_since.get_or_insert(at);
        let mut wait = self.config.open_wait.delay(self.opens);
        if self.is_gradual() {
            wait = wait.min((at.since(since) / 25).max(secs(12)));
        }
        self.enter(State::Open, at);
        self.until = Some(at + wait);
    }

    fn close(&mut self, at: Timestamp) {
        self.failing_since = None;
        self.enter(State::Closed, at);
    }

    fn pass_time(&mut self, now: Timestamp) {
        loop {
            let limit = self.config.probe_limit;
            let running = self.probes.iter_mut().filter(|p| p.succeeded.is_none() && !p.lost);
            let overdue = running.min_by_key(|p| p.began).filter(|p| p.began + limit <= now);
            let is_gradual = self.config.half_open == HalfOpen::Gradual;
            if let Some(until) = self.until.filter(|until| *until <= now) {
                self.enter(State::HalfOpen, until);
            } else if let Some(probe) = overdue {
                let at = probe.began + limit;
                probe.lost = true;
                if !is_gradual {
                    self.open(at);
                }
            } else {
                return;
            }
        }
    }

    /// Probes of this round that are out or have ended.
    fn taken(&self) -> usize {
        self.probes.iter().filter(|p| p.succeeded.is_some() || !p.lost).count()
    }

    /// Whether a call may go; its number then is that of the call.
    fn begin(&mut self, now: Timestamp) -> bool {
        self.pass_time(now);
        let go = match self.state {
            State::Closed | State::ForcedClosed => true,
            State::Open | State::ForcedOpen => false,
            State::HalfOpen => self.taken() < self.round as usize,
        };
        if go {
            if self.state == State::HalfOpen {
                self.probes.push(Probe { id: self.calls.len(), began: now, succeeded: None, lost: false });
            }
            let (generation, state, began_after) = (self.generation, self.state, self.ended.len());
            self.calls.push(Call { began: now, generation, state, began_after });
        }
        go
    }

    fn end(&mut self, call: usize, health: Health, now: Timestamp) {
        self.pass_time(now);
        let Call { began, generation, state, began_after } = self.calls[call];
        if generation != self.generation {
            return;
        }
        match state {
            State::HalfOpen => self.end_probe(call, health, now),
            State::Closed if health != Health::Ignore => {
                let failed = health == Health::Failure;
                self.ended.push(Ended { at: now, failed, took: now.since(began), began_after });
                if self.config.trips.iter().any(|trip| self.is_tripped(trip, now)) {
                    if now.since(self.since) >= self.config.stable_after {
                        self.opens = 0;
                    }
                    self.round = if self.is_gradual() { 1 } else { self.config.probes };
                    self.open(now);
                }
            }
            _ => {}
        }
    }

    fn end_probe(&mut self, call: usize, health: Health, now: Timestamp) {
        if health == Health::Ignore {
            return self.probes.retain(|p| p.id != call);
        }
        self.probes.iter_mut().filter(|p| p.id == call).for_each(|p| p.succeeded = Some(health == Health::Success));
        let ended = |how| self.probes.iter().filter(|p| p.succeeded == Some(how)).count() as u32;
        let (succeeded, failed) = (ended(true), ended(false));
        let needed = self.config.successes_needed();
        if self.is_gradual() {
            if succeeded + failed >= self.round {
                self.end_round(succeeded, failed, now);
            }
        } else if succeeded >= needed {
            self.close(now);
        } else if self.config.probes - failed < needed {
            self.open(now);
        }
    }

    fn end_round(&mut self, succeeded: u32, failed: u32, now: Timestamp) {
        let (most, ended) = (self.config.probes, succeeded + failed);
        let is_enough = succeeded * most >= self.config.successes_needed() * ended;
        if is_enough && self.round >= most {
            self.close(now);
        } else if is_enough {
            let half_of_the_share = (succeeded * most).div_ceil(2 * ended);
            self.round = most.min(self.round + half_of_the_share.max(1));
            self.generation += 1;
            self.probes.clear();
        } else {
            if self.round > 1 || succeeded > 0 {
                self.opens = 0;
            }
            self.round = (self.round / 2).max(1);
            self.open(now);
        }
    }

    /// Failures in a row at the end, of which each began after the one before it had ended.
    fn in_a_row(&self) -> usize {
        let (mut row, mut counted) = (0, 0);
        for (n, ended) in self.ended.iter().enumerate() {
            if !ended.failed {
                row = 0;
            } else if ended.began_after >= counted {
                (row, counted) = (row + 1, n + 1);
            }
        }
        row
    }

    fn is_tripped(&self, trip: &Trip, now: Timestamp) -> bool {
        let is_over = |window, bad: &dyn Fn(&Ended) -> bool, share: f64, min_calls: u32| {
            let seen = self.seen(window, now);
            let bad = seen.iter().filter(|e| bad(e)).count();
            seen.len() >= min_calls as usize && bad as f64 / seen.len() as f64 >= share
        };
        match *trip {
            Trip::FailureRate { share, window, min_calls } => is_over(window, &|e| e.failed, share, min_calls),
            Trip::SlowRate { slower_than, share, window, min_calls } => {
                is_over(window, &|e| e.took >= slower_than, share, min_calls)
            }
            Trip::Consecutive(n) => self.ended.last().is_some_and(|last| last.failed) && self.in_a_row() >= n as usize,
            Trip::Failures { count, within } => {
                self.ended.iter().filter(|e| e.failed && now.since(e.at) < within).count() >= count as usize
            }
        }
    }

    fn seen(&self, window: Window, now: Timestamp) -> Vec<Ended> {
        match window {
            Window::Count(n) => self.ended.iter().rev().take(n as usize).copied().collect(),
            Window::Time { length, buckets } => {
                let period = |t: Timestamp| t.since(START).as_millis() / (length.as_millis() / u128::from(buckets));
                let is_seen = |e: &&Ended| period(now) - period(e.at) < u128::from(buckets);
                self.ended.iter().filter(is_seen).copied().collect()
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Begin,
    /// The oldest call but so many, of those under way.
    End(usize, Health),
    Drop(usize),
    /// Begin and end at once.
    Call(Health),
    ForceOpen,
    ForceClosed,
    Reset,
}

fn health() -> impl Strategy<Value = Health> {
    prop_oneof![4 => Just(Health::Success), 4 => Just(Health::Failure), 1 => Just(Health::Ignore)]
}

/// In milliseconds. Many are round, so that steps fall on the very moments at which something ends.
fn time(most: u64) -> impl Strategy<Value = u64> {
    prop_oneof![1..most, (1..most / 20).prop_map(|n| n * 20)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => time(60).prop_map(Step::Wait),
        2 => time(2_000).prop_map(Step::Wait),
        6 => Just(Step::Begin),
        8 => (0usize..4, health()).prop_map(|(n, health)| Step::End(n, health)),
        1 => (0usize..4).prop_map(Step::Drop),
        12 => health().prop_map(Step::Call),
        1 => prop_oneof![Just(Step::ForceOpen), Just(Step::ForceClosed), Just(Step::Reset), Just(Step::Reset)],
    ]
}

fn window() -> impl Strategy<Value = Window> {
    prop_oneof![
        (1u32..20).prop_map(Window::Count),
        (1u32..20, 1u64..30).prop_map(|(buckets, width)| Window::time(ms(u64::from(buckets) * width), buckets)),
    ]
}

fn trip() -> impl Strategy<Value = Trip> {
    let shares = || prop_oneof![Just(0.1), Just(0.5), Just(0.7), Just(1.0), 0.01..1.0];
    let fits = |window, calls: u32| if let Window::Count(n) = window { calls.min(n) } else { calls };
    prop_oneof![
        (shares(), window(), 1u32..12).prop_map(move |(share, w, n)| Trip::failure_rate(share, w, fits(w, n))),
        (time(100), shares(), window(), 1u32..12).prop_map(move |(slow, share, w, n)| Trip::slow_rate(
            ms(slow),
            share,
            w,
            fits(w, n)
        )),
        (1u32..8).prop_map(Trip::Consecutive),
        (1u32..8, time(200)).prop_map(|(count, within)| Trip::failures(count, ms(within))),
    ]
}

fn config() -> impl Strategy<Value = BreakerConfig> {
    let probes = prop_oneof![1u32..5, 5u32..12].prop_flat_map(|probes| (Just(probes), prop::option::of(1..=probes)));
    let times = (time(100), time(400), time(200));
    let rule = prop_oneof![Just(HalfOpen::Strict), Just(HalfOpen::Gradual)];
    let all = (prop::collection::vec(trip(), 1..4), probes, times, rule);
    all.prop_map(|(trips, (probes, successes), times, half_open)| BreakerConfig {
        trips,
        half_open,
        open_wait: Backoff::exponential(ms(times.0), 2.0, ms(500)),
        open_jitter: Jitter::None,
        stable_after: ms(times.1),
        probes,
        successes,
        probe_limit: ms(times.2),
        ..BreakerConfig::default()
    })
}

/// A real breaker, its calls under way by their numbers in the model.
struct Real<'a> {
    breaker: &'a CircuitBreaker,
    under_way: Vec<(usize, Permit<'a>)>,
}

impl Real<'_> {
    /// Does the same to both. Gives whether the breaker let a call through, if one was to begin, and whether it should have.
    fn step(&mut self, step: &Step, model: &mut Model, clock: &Clock) -> Option<(bool, bool)> {
        let now = clock.now();
        match *step {
            Step::Wait(time) => clock.advance(ms(time)),
            Step::Begin => return Some(self.begin(model, now)),
            Step::End(n, health) if n < self.under_way.len() => {
                let (call, permit) = self.under_way.remove(n);
                model.end(call, health, now);
                permit.ended(health);
            }
            Step::Drop(n) if n < self.under_way.len() => {
                let (call, permit) = self.under_way.remove(n);
                model.end(call, Health::Ignore, now);
                drop(permit);
            }
            Step::End(..) | Step::Drop(_) => {}
            Step::Call(health) => {
                let went = self.begin(model, now);
                if went == (true, true) {
                    self.step(&Step::End(self.under_way.len() - 1, health), model, clock);
                }
                return Some(went);
            }
            Step::ForceOpen => {
                model.pass_time(now);
                model.enter(State::ForcedOpen, now);
                self.breaker.force_open();
            }
            Step::ForceClosed => {
                model.pass_time(now);
                model.enter(State::ForcedClosed, now);
                self.breaker.force_closed();
            }
            Step::Reset => {
                model.pass_time(now);
                model.opens = 0;
                model.close(now);
                self.breaker.reset();
            }
        }
        None
    }

    fn begin(&mut self, model: &mut Model, now: Timestamp) -> (bool, bool) {
        let should = model.begin(now);
        let went = self.breaker.try_acquire();
        let did = went.is_ok();
        if let Ok(permit) = went {
            self.under_way.push((model.calls.len() - usize::from(should), permit));
        }
        (did, should)
    }
}

fn states(breaker: &CircuitBreaker) -> (State, Timestamp, Option<Timestamp>, u32, i64) {
    let seen = breaker.snapshot();
    (seen.state, seen.since, seen.open_until, seen.opens, seen.generation)
}

impl Model {
    fn states(&self) -> (State, Timestamp, Option<Timestamp>, u32, i64) {
        (self.state, self.since, self.until, self.opens, self.generation)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(512), failure_persistence: None, ..ProptestConfig::default() })]

    /// `looks`: whether somebody looks after each step; it must not matter.
    #[test]
    fn does_what_the_model_does(config in config(), steps in prop::collection::vec(step(), 1..200), looks: bool) {
        config.validate().unwrap();
        let clock = Clock::manual(START);
        let breaker = CircuitBreaker::builder("target").config(config.clone()).clock(clock.clone()).build().unwrap();
        let mut model = Model::new(&config);
        let mut real = Real { breaker: &breaker, under_way: Vec::new() };
        for (n, step) in steps.iter().enumerate() {
            if let Some((did, should)) = real.step(step, &mut model, &clock) {
                prop_assert_eq!(did, should, "step {} {:?} in {:?}", n, step, model.state);
            }
            if looks {
                model.pass_time(clock.now());
                prop_assert_eq!(states(&breaker), model.states(), "after step {} {:?}", n, step);
            }
        }
        model.pass_time(clock.now());
        prop_assert_eq!(states(&breaker), model.states());
    }
}
