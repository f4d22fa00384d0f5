//! A circuit breaker for many threads: the [machine](super::machine) and its [samples](super::samples) with a clock, and calls
//! around which it stands.
//!
//! *State.* One word says the state and its generation; while open, a second one says until when. They are written under the
//! lock of the machine and read without it. A closed breaker is never locked: a call reads the word, and counts its outcome.
//!
//! *Invariants.* A permit has the word of its beginning; if that is not the word any more when the call ends, its outcome
//! changes nothing. What was counted is forgotten before the word says *closed*. Events, logs and metrics of a change go out
//! after the lock was left; events have the generation, by which they can be put in order.
//!
//! *Failure.* A permit that is dropped (the caller went away, the call panicked) decides nothing, and a probe's is given back.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::builder::BreakerBuilder;
use super::config::{BreakerConfig, Mode};
use super::events::{BreakerEvent, Events, Meters};
use super::machine::{Change, Health, Hold, Machine, Probe, State};
use super::permit::{BreakerError, OwnedPermit, Permit, Rejected};
use super::samples::{Sample, Samples};
use super::snapshot::{ProbeCounts, Snapshot};
use crate::clock::{Clock, Timestamp};

/// Stands between callers and what they call: while that is ill, calls are rejected at once, and now and then a few are let
/// through to see how it is. Cheap to clone; clones are the same breaker.
///
/// ```
/// use redrive::resilience::{BreakerError, CircuitBreaker, State, Trip};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
/// let inventory = CircuitBreaker::builder("inventory").trip(Trip::Consecutive(2)).build()?;
///
/// async fn stock(up: bool) -> Result<u32, std::io::Error> {
///     if up { Ok(3) } else { Err(std::io::ErrorKind::ConnectionRefused.into()) }
/// }
/// assert_eq!(inventory.call(stock(true)).await.unwrap(), 3);
/// for _ in 0..2 {
///     assert!(matches!(inventory.call(stock(false)).await, Err(BreakerError::Failed(_))));
/// }
/// let Err(BreakerError::Rejected(rejected)) = inventory.call(stock(true)).await else { panic!("it is open") };
/// assert!(rejected.open_until.is_some());
/// assert_eq!(inventory.state(), State::Open);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct CircuitBreaker(pub(super) Arc<Inner>);

pub(super) struct Inner {
    /// The generation, and in the lowest bits the state.
    word: AtomicU64,
    /// While open: until when, in milliseconds.
    until: AtomicI64,
    observe: AtomicBool,
    samples: Samples,
    clock: Clock,
    meters: Meters,
    name: Arc<str>,
    config: Arc<BreakerConfig>,
    seed: u64,
    machine: Mutex<Machine>,
    rejected: AtomicU64,
    events: broadcast::Sender<BreakerEvent>,
}

/// The word that callers read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(u64);

impl Word {
    const STATES: [State; 5] = [State::Closed, State::Open, State::HalfOpen, State::ForcedOpen, State::ForcedClosed];

    fn new(state: State, generation: i64) -> Self {
        Self(generation.cast_unsigned() << 3 | state as u64)
    }

    fn is_closed(self) -> bool {
        self.0 & 7 == State::Closed as u64
    }

    fn state(self) -> State {
        Self::STATES.get((self.0 & 7) as usize).copied().unwrap_or(State::Closed)
    }

    fn generation(self) -> i64 {
        (self.0 >> 3).cast_signed()
    }
}

/// What a permit stands for, without its breaker.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ticket {
    /// A call through a closed breaker.
    Sample { word: Word, began: Timestamp, mark: u32 },
    /// A call through a half-open one.
    Probe(Probe),
    /// A call whose outcome decides nothing.
    Free,
}

/// What becomes of a call that comes while it is not plainly closed.
enum Answer {
    Go(Ticket),
    Stop(State, Option<Timestamp>),
}

impl CircuitBreaker {
    /// A breaker with everything as by default.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self::make(BreakerBuilder::new(name.into()))
    }

    /// A breaker to one's own wishes.
    pub fn builder(name: impl Into<Arc<str>>) -> BreakerBuilder {
        BreakerBuilder::new(name.into())
    }

    pub(super) fn make(b: BreakerBuilder) -> Self {
        let now = b.clock.now();
        let config = Arc::new(b.config);
        Self(Arc::new(Inner {
            word: AtomicU64::new(Word::new(State::Closed, 0).0),
            until: AtomicI64::new(i64::MIN),
            observe: AtomicBool::new(config.mode == Mode::Observe),
            samples: Samples::shared(&config.trips, now),
            clock: b.clock,
            meters: Meters::new(&b.name),
            name: b.name,
            machine: Mutex::new(Machine::new(config.clone(), now)),
            config,
            seed: b.seed,
            rejected: AtomicU64::new(0),
            events: broadcast::Sender::new(b.events),
        }))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What it was told.
    pub fn config(&self) -> &BreakerConfig {
        &self.0.config
    }

    /// The right to one call, or why there is none. Whoever has it says how the call ended, or drops it.
    #[inline]
    pub fn try_acquire(&self) -> Result<Permit<'_>, Rejected> {
        Ok(Permit { breaker: self, ticket: Some(self.ticket()?) })
    }

    /// The same for as long as one likes: it does not borrow the breaker.
    pub fn try_acquire_owned(&self) -> Result<OwnedPermit, Rejected> {
        Ok(OwnedPermit { ticket: Some(self.ticket()?), breaker: self.clone() })
    }

    /// Makes a call: an error is a failure, anything else a success.
    pub async fn call<T, E>(&self, call: impl Future<Output = Result<T, E>>) -> Result<T, BreakerError<E>> {
        self.call_judged(call, health_of).await
    }

    /// Makes a call, and lets `judge` say what its end means.
    pub async fn call_judged<T, E>(
        &self,
        call: impl Future<Output = Result<T, E>>,
        judge: impl FnOnce(&Result<T, E>) -> Health,
    ) -> Result<T, BreakerError<E>> {
        let permit = self.try_acquire()?;
        let ended = call.await;
        permit.ended(judge(&ended));
        ended.map_err(BreakerError::Failed)
    }

    /// Makes a call that does not wait: an error is a failure, anything else a success.
    pub fn call_sync<T, E>(&self, call: impl FnOnce() -> Result<T, E>) -> Result<T, BreakerError<E>> {
        let permit = self.try_acquire()?;
        let ended = call();
        permit.ended(health_of(&ended));
        ended.map_err(BreakerError::Failed)
    }

    /// Where it stands now. An open one whose time is over is half-open, whether anybody calls or not.
    pub fn state(&self) -> State {
        let now = self.0.clock.now();
        self.0.decide(|machine, random| {
            machine.advance(now, random);
            machine.state()
        })
    }

    /// Everything about it, for people.
    pub fn snapshot(&self) -> Snapshot {
        let inner = &self.0;
        let now = inner.clock.now();
        inner.decide(|machine, random| {
            machine.advance(now, random);
            let probes = machine.probes().map_or(ProbeCounts::default(), |round| ProbeCounts {
                out: round.out.len(),
                succeeded: round.succeeded,
                failed: round.failed,
                needed: 0,
            });
            Snapshot {
                name: inner.name.clone(),
                state: machine.state(),
                mode: self.mode(),
                since: machine.since(),
                open_until: machine.open_until(),
                opens: machine.opens(),
                generation: machine.generation(),
                rejected: inner.rejected.load(Ordering::Relaxed),
                probes: ProbeCounts { needed: inner.config.successes_needed(), ..probes },
                rules: inner.samples.tallies(now),
            }
        })
    }

    /// Its changes, from now on.
    pub fn events(&self) -> Events {
        Events::new(self.0.events.subscribe())
    }

    /// Whether it holds calls back.
    pub fn mode(&self) -> Mode {
        if self.0.observe.load(Ordering::Acquire) { Mode::Observe } else { Mode::Enforce }
    }

    /// Lets it hold calls back, or only observe, from now on.
    pub fn set_mode(&self, mode: Mode) {
        self.0.observe.store(mode == Mode::Observe, Ordering::Release);
    }

    /// Rejects every call until [`reset`](Self::reset).
    pub fn force_open(&self) {
        self.force(Hold::Open);
    }

    /// Lets every call through, whatever becomes of it, until [`reset`](Self::reset).
    pub fn force_closed(&self) {
        self.force(Hold::Closed);
    }

    /// As if it were new: closed, nothing counted, nothing forced.
    pub fn reset(&self) {
        let now = self.0.clock.now();
        self.0.decide(|machine, random| {
            machine.advance(now, random);
            machine.reset(now);
        });
    }

    fn force(&self, hold: Hold) {
        let now = self.0.clock.now();
        self.0.decide(|machine, random| {
            machine.advance(now, random);
            machine.hold(Some(hold), now);
        });
    }

    #[inline]
    fn ticket(&self) -> Result<Ticket, Rejected> {
        let inner = &*self.0;
        let word = inner.word();
        if word.is_closed() { Ok(inner.sample(word)) } else { inner.ask(word) }
    }
}

impl Inner {
    #[inline]
    fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// A call through a closed breaker. When it began is only looked at where a rule asks how long calls take.
    #[inline]
    fn sample(&self, word: Word) -> Ticket {
        let began = if self.samples.timed() { self.clock.now() } else { Timestamp::EPOCH };
        Ticket::Sample { word, began, mark: self.samples.mark() }
    }

    #[cold]
    fn ask(&self, word: Word) -> Result<Ticket, Rejected> {
        let now = self.clock.now();
        let until = Timestamp::from_millis(self.until.load(Ordering::Acquire));
        let answer = match word.state() {
            State::ForcedClosed => Answer::Go(Ticket::Free),
            State::ForcedOpen => Answer::Stop(State::ForcedOpen, None),
            // Later than any wait: the clock was set back.
            State::Open if now < until && until.since(now) <= self.config.longest_wait() => {
                Answer::Stop(State::Open, Some(until))
            }
            _ => self.decide(|machine, random| match machine.probe(now, random) {
                Some(probe) => Answer::Go(Ticket::Probe(probe)),
                None => self.without_probe(machine),
            }),
        };
        match answer {
            Answer::Go(ticket) => Ok(ticket),
            Answer::Stop(state, open_until) => self.stop(state, open_until, now),
        }
    }

    /// What a call may do that is not given a probe, by the state in which it finds the breaker under its lock.
    fn without_probe(&self, machine: &Machine) -> Answer {
        let state = machine.state();
        match state {
            State::Closed => Answer::Go(self.sample(Word::new(state, machine.generation()))),
            State::ForcedClosed => Answer::Go(Ticket::Free),
            State::Open | State::HalfOpen | State::ForcedOpen => Answer::Stop(state, machine.open_until()),
        }
    }

    fn stop(&self, state: State, open_until: Option<Timestamp>, now: Timestamp) -> Result<Ticket, Rejected> {
        self.rejected.fetch_add(1, Ordering::Relaxed);
        self.meters.rejected.increment(1);
        if self.observe.load(Ordering::Acquire) {
            return Ok(Ticket::Free);
        }
        let retry_after = open_until.map(|until| until.since(now));
        Err(Rejected { breaker: self.name.clone(), state, open_until, retry_after })
    }

    /// A call has ended.
    #[inline]
    pub(super) fn ended(&self, ticket: Ticket, health: Health) {
        self.meters.count(health);
        match (ticket, health) {
            (Ticket::Sample { .. }, Health::Ignore) | (Ticket::Free, _) => {}
            (Ticket::Sample { word, began, mark }, _) => self.count(word, began, mark, health == Health::Failure),
            (Ticket::Probe(probe), _) => self.probe_ended(probe, health),
        }
    }

    /// A call through a closed breaker has ended.
    #[inline]
    fn count(&self, word: Word, began: Timestamp, mark: u32, failed: bool) {
        let now = self.clock.now();
        if self.word() != word {
            return self.meters.late.increment(1);
        }
        let took = if self.samples.timed() { now.since(began) } else { Duration::ZERO };
        if let Some(rule) = self.samples.record(now, Sample { failed, took, mark }) {
            self.trip(rule, word, now);
        }
    }

    #[cold]
    fn trip(&self, rule: usize, word: Word, now: Timestamp) {
        if let Some(tally) = self.samples.tally(rule, now) {
            self.decide(|machine, random| machine.trip(word.generation(), tally, now, random));
        }
    }

    pub(super) fn probe_ended(&self, probe: Probe, health: Health) {
        let now = self.clock.now();
        self.decide(|machine, random| machine.probe_ended(probe, health, now, random));
    }

    /// Asks or tells the machine, lets everybody read what it says now, and tells of what has changed.
    fn decide<T>(&self, ask: impl FnOnce(&mut Machine, f64) -> T) -> T {
        let mut machine = self.lock();
        let random = chance(self.seed, machine.generation().cast_unsigned());
        let before = machine.generation();
        let answer = ask(&mut machine, random);
        let changes = machine.take_changes();
        if machine.generation() != before {
            self.publish(&machine, &changes);
        }
        drop(machine);
        changes.into_iter().for_each(|change| self.tell(change));
        answer
    }

    fn lock(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, machine: &Machine, changes: &[Change]) {
        if changes.iter().any(|change| change.to == State::Closed) {
            self.samples.clear();
        }
        if let Some(until) = machine.open_until() {
            self.until.store(until.as_millis(), Ordering::Release);
        }
        self.word.store(Word::new(machine.state(), machine.generation()).0, Ordering::Release);
    }

    fn tell(&self, change: Change) {
        let event = BreakerEvent::new(&self.name, change);
        self.meters.changed(&event);
        event.log();
        // Without anybody who listens there is nobody to tell.
        _ = self.events.send(event);
    }
}

/// Chance from 0 to 1, the same for the same generation.
fn chance(seed: u64, n: u64) -> f64 {
    (xxh3_64_with_seed(&n.to_le_bytes(), seed) >> 11) as f64 / (1u64 << 53) as f64
}

pub(super) fn health_of<T, E>(ended: &Result<T, E>) -> Health {
    if ended.is_ok() { Health::Success } else { Health::Failure }
}

impl fmt::Debug for CircuitBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.0.word();
        f.debug_struct("CircuitBreaker")
            .field("name", &self.0.name)
            .field("state", &word.state())
            .finish_non_exhaustive()
    }
}
