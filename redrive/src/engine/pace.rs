//! The pace of a lane whose target has asked for less: with 429, with 503 and `Retry-After`, or in a handler's own words.
//!
//! *State.* One for each such lane, in the memory of each node: until when nothing starts, and, from then on, a rate of starts
//! that grows until the target asks for less again. A node that knows nothing yet begins with one start in a second and doubles
//! that each second. Later it knows a rate: it begins with most of it, passes it after a *stretch*, which is five times the wait or
//! a quarter of a minute, and then doubles it in each stretch. So the node stays near what the target allows, spends little time
//! waiting, and finds out when the target allows more.
//!
//! *Invariants.* A pace decides only when tasks start, never what becomes of them. Calls that were under way when the target
//! asked for less say the same thing once more: only a call that began after the wait cuts again. What was claimed before a cut and
//! has not begun is given back, so that nothing starts but at the new rate.
//!
//! *Failure.* A node that was restarted learns the pace anew, from the first answer that asks for less. So does one whose clock is
//! set back.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::policy::Policy;
use crate::retryable::Retryable;
use crate::settle::Outcome;
use crate::task::{Lane, Task};

use super::executor::is_answer;
use super::gates::chance_of;
use super::{Engine, Shared};

/// Starts in the first second of a lane of which nothing is known.
const FIRST: f64 = 1.0;
/// The slowest rate that is begun with: what must be slower than that is slowed by its waits.
const LEAST: f64 = 0.2;
/// The part of a rate that is left when the target asks for less: of one that was learned, and of the first one.
const CUT: f64 = 0.85;
const FIRST_CUT: f64 = 0.5;
/// The growth in the first stretch, as a part of the rate that was begun with.
const GROWTH: f64 = 0.15;
/// The shortest stretch, and a stretch in waits.
const SHORTEST: Duration = Duration::from_secs(15);
const WAITS: u32 = 5;
/// So many starts after a wait say something of a rate.
const ENOUGH: u32 = 2;
/// Starts that may come together, as a part of those of a second.
const TOGETHER: f64 = 0.1;
/// A pace that has grown for so many stretches is none any more.
const MOST: u32 = 20;

/// The pace of one lane on this node.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// Nothing starts before.
    until: Timestamp,
    /// When it was last cut: what was claimed before is given back.
    cut_at: Timestamp,
    /// Cuts in a row, without an answer in between that did not ask for less.
    in_a_row: u32,
    /// Starts in a second, at the end of the wait. `None`: not known yet.
    rate: Option<f64>,
    stretch: Duration,
    tokens: f64,
    filled: Timestamp,
    /// Starts since the last wait.
    since_wait: u32,
    started: Started,
}

/// Starts of this second and of the one before.
#[derive(Clone, Copy, Debug, Default)]
struct Started {
    second: i64,
    now: u32,
    before: u32,
}

/// What a target that asks for less has said.
pub(super) struct Less<'a> {
    /// When the call began that it answered.
    pub(super) began: Timestamp,
    /// The wait that it named.
    pub(super) named: Option<Duration>,
    /// The wait for the n-th time in a row, if it names none.
    pub(super) backoff: &'a dyn Fn(u32) -> Duration,
}

impl Pace {
    /// A target asks for less for the first time.
    pub(super) fn new(less: &Less<'_>, now: Timestamp) -> Self {
        let (stretch, started) = (SHORTEST, Started::default());
        let mut pace = Self {
            until: now,
            cut_at: now,
            in_a_row: 1,
            rate: None,
            stretch,
            tokens: 1.0,
            filled: now,
            since_wait: 0,
            started,
        };
        pace.wait(now, less.wait(1));
        pace
    }

    /// It asks for less again.
    pub(super) fn cut(&mut self, less: &Less<'_>, now: Timestamp) {
        if less.began >= self.until {
            self.rate = self.rate_after_cut(now);
            (self.in_a_row, self.cut_at) = (self.in_a_row.saturating_add(1), now);
            self.wait(now, less.wait(self.in_a_row));
        } else if let Some(named) = less.named {
            self.wait(now, named);
        }
    }

    /// That the first calls after a wait are refused says that it was too short, and nothing of what the target allows.
    fn rate_after_cut(&self, now: Timestamp) -> Option<f64> {
        let measured = f64::from(self.started.most(now)).max(FIRST).min(self.rate_at(now));
        let rate = match self.rate {
            None if self.since_wait < ENOUGH => return None,
            None => FIRST_CUT * measured,
            Some(rate) if self.since_wait < ENOUGH => CUT * rate,
            Some(_) => CUT * measured,
        };
        Some(rate.max(LEAST))
    }

    fn wait(&mut self, now: Timestamp, wait: Duration) {
        let until = now + wait;
        if until > self.until {
            (self.until, self.filled, self.tokens, self.since_wait) = (until, until, 1.0, 0);
            self.stretch = (WAITS * wait).max(SHORTEST);
        }
    }

    /// It has answered a call that began at `began`, and not asked for less.
    pub(super) fn answered(&mut self, began: Timestamp) {
        if began >= self.until {
            self.in_a_row = 0;
        }
    }

    /// Until when nothing starts, if that lies ahead.
    pub(super) fn waits_until(&self, now: Timestamp) -> Option<Timestamp> {
        (self.until > now).then_some(self.until)
    }

    /// True if a task that was claimed at `claimed` may begin now.
    pub(super) fn lets_begin(&self, claimed: Timestamp, now: Timestamp) -> bool {
        self.until <= now && self.cut_at <= claimed
    }

    /// True if it does not slow anything any more, or was begun by a clock that was ahead.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        now.since(self.until) >= MOST * self.stretch || self.until.since(now) > self.stretch
    }

    /// True if something may start now.
    pub(super) fn has(&mut self, now: Timestamp) -> bool {
        if now < self.until {
            return false;
        }
        let rate = self.rate_at(now);
        let came = rate * now.since(self.filled).as_secs_f64();
        self.filled = self.filled.max(now);
        self.tokens = (self.tokens + came).min((TOGETHER * rate).max(1.0));
        self.tokens >= 1.0
    }

    /// Something starts.
    pub(super) fn take(&mut self, now: Timestamp) {
        self.tokens -= 1.0;
        self.since_wait = self.since_wait.saturating_add(1);
        self.started.count(now);
    }

    /// When the next one may start, if nothing may as of the last look.
    pub(super) fn next(&self) -> Option<Timestamp> {
        let missing = (1.0 - self.tokens).max(0.0) / self.rate_at(self.filled);
        (missing > 0.0 || self.filled <= self.until).then(|| self.filled + Duration::from_secs_f64(missing))
    }

    /// Starts in a second.
    fn rate_at(&self, now: Timestamp) -> f64 {
        let passed = now.since(self.until).min(MOST * self.stretch).as_secs_f64();
        match self.rate {
            None => FIRST * passed.min(f64::from(MOST)).exp2(),
            Some(rate) => {
                let stretches = passed / self.stretch.as_secs_f64();
                rate * (1.0 + GROWTH * stretches.min(1.0)) * (stretches - 1.0).max(0.0).exp2()
            }
        }
    }
}

impl Less<'_> {
    fn wait(&self, n: u32) -> Duration {
        self.named.unwrap_or_else(|| (self.backoff)(n))
    }
}

impl Started {
    fn count(&mut self, now: Timestamp) {
        self.turn(now);
        self.now += 1;
    }

    fn turn(&mut self, now: Timestamp) {
        let second = now.as_millis().div_euclid(1_000);
        if second != self.second {
            let before = if second == self.second + 1 { self.now } else { 0 };
            *self = Self { second, now: 0, before };
        }
    }

    fn most(mut self, now: Timestamp) -> u32 {
        self.turn(now);
        self.now.max(self.before)
    }
}

impl Shared {
    /// Returns whether a task that was claimed has to wait again, because its target has asked for less since.
    pub(super) fn is_too_fast(&self, task: &Task, now: Timestamp) -> bool {
        let claimed = task.locked_at.unwrap_or(now);
        self.has_paces.load(Ordering::Relaxed) && !self.limits().lets_begin(task.lane, claimed, now)
    }

    /// A call of a lane has ended: its target asks for less, or it does not. Where it is not known how long it took, it began before
    /// all that is known of the target.
    pub(super) fn note_pace(&self, lane: Lane, policy: &Policy, outcome: &Outcome, took: Option<Duration>) {
        let now = self.clock.now();
        let began = took.map_or(Timestamp::EPOCH, |took| now - took);
        match outcome {
            Outcome::SlowDown(_) if self.by_hand => {}
            Outcome::SlowDown(failure) => self.slow_down(lane, policy, failure.retry_after, began, now),
            _ if self.has_paces.load(Ordering::Relaxed) && is_answer(outcome) => self.limits().answered(lane, began),
            _ => {}
        }
    }

    fn slow_down(&self, lane: Lane, policy: &Policy, named: Option<Duration>, began: Timestamp, now: Timestamp) {
        let wait = |named, n| policy.slow_down(named, n, chance_of(lane, n.into(), now));
        let named = named.filter(|time| !time.is_zero()).map(|time| wait(Some(time), 1));
        self.has_paces.store(true, Ordering::Relaxed);
        let mut waiting = self.waiting();
        let is_first = self.limits().slow_down(lane, &Less { began, named, backoff: &|n| wait(None, n) }, now);
        if is_first {
            waiting.deep.remove(&lane); // from now on its tasks are looked at one by one
        }
        drop(waiting);
        if is_first {
            let until = self.limits().left_alone(lane, now).map(tracing::field::display);
            tracing::info!(method = self.method_of(lane), until, "a target asks for a slower pace; its tasks wait");
        }
        self.wake.claimer.notify_one();
    }
}

impl Engine {
    /// Notes how a try of a caller ended, as for an attempt of a task.
    pub(crate) fn note_pace<C: Retryable>(&self, call: &C, policy: &Policy, outcome: &Outcome, took: Option<Duration>) {
        if matches!(outcome, Outcome::SlowDown(_)) || self.0.has_paces.load(Ordering::Relaxed) {
            self.0.note_pace(lane_of(call), policy, outcome, took);
        }
    }

    /// Until when the target of a call is left alone, because it has asked for less.
    pub(crate) fn left_alone<C: Retryable>(&self, call: &C) -> Option<Timestamp> {
        let shared = &self.0;
        let has_paces = shared.has_paces.load(Ordering::Relaxed);
        has_paces.then(|| shared.limits().left_alone(lane_of(call), shared.clock.now())).flatten()
    }
}

fn lane_of<C: Retryable>(call: &C) -> Lane {
    call.part().map_or_else(|| Lane::of(call.method()), |part| Lane::part(call.method(), &part))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    const NODES: usize = 3;
    const SLOTS: usize = 100;
    const LATENCY: Duration = Duration::from_millis(30);

    fn ms(ms: u64) -> Timestamp {
        START + Duration::from_millis(ms)
    }

    fn less(began: Timestamp, named: Option<Duration>) -> Less<'static> {
        Less { began, named, backoff: &|n| crate::Policy::default().delay(n, 0.5) }
    }

    /// A target that allows so many calls in a window and refuses the others.
    struct Target {
        allowed: f64,
        window: Duration,
        /// True: what is allowed comes steadily. False: all of it at the beginning of each window.
        is_steady: bool,
        left: f64,
        at: Timestamp,
    }

    impl Target {
        fn new(allowed: u32, window: Duration, is_steady: bool) -> Self {
            Self { allowed: allowed.into(), window, is_steady, left: allowed.into(), at: START }
        }

        fn takes(&mut self, now: Timestamp) -> bool {
            if self.is_steady {
                let came = now.since(self.at).as_secs_f64() / self.window.as_secs_f64() * self.allowed;
                (self.left, self.at) = ((self.left + came).min(self.allowed), now);
            } else if now.since(self.at) >= self.window {
                (self.left, self.at) = (self.allowed, now);
            }
            let takes = self.left >= 1.0;
            if takes {
                self.left -= 1.0;
            }
            takes
        }
    }

    /// What three nodes with a backlog get through in so many seconds, and how often they are refused.
    fn served(mut target: Target, retry_after: Option<Duration>, seconds: u64) -> (u64, u64) {
        let mut paces: [Option<Pace>; NODES] = [const { None }; NODES];
        let mut running: [VecDeque<(Timestamp, Timestamp, bool)>; NODES] = Default::default();
        let (mut taken, mut refused) = (0, 0);
        for now in (0..seconds * 1_000).map(ms) {
            for (pace, running) in paces.iter_mut().zip(&mut running) {
                while let Some((began, _, takes)) = running.pop_front_if(|(_, ends, _)| *ends <= now) {
                    match pace {
                        _ if takes => {
                            taken += 1;
                            pace.iter_mut().for_each(|pace| pace.answered(began));
                            continue;
                        }
                        None => *pace = Some(Pace::new(&less(began, retry_after), now)),
                        Some(pace) => pace.cut(&less(began, retry_after), now),
                    }
                    refused += 1;
                }
                while running.len() < SLOTS && pace.as_mut().is_none_or(|pace| pace.has(now)) {
                    pace.iter_mut().for_each(|pace| pace.take(now));
                    running.push_back((now, now + LATENCY, target.takes(now + LATENCY / 2)));
                }
            }
        }
        (taken, refused)
    }

    #[test]
    fn three_nodes_use_most_of_what_a_target_allows() {
        let second = Duration::from_secs(1);
        for (retry_after, least) in [(None, 0.75), (Some(second), 0.8), (Some(30 * second), 0.55)] {
            for (is_steady, allowed) in [false, true].into_iter().flat_map(|s| [3, 30, 100, 1_000].map(|n| (s, n))) {
                let (taken, refused) = served(Target::new(allowed, second, is_steady), retry_after, 600);
                let used = taken as f64 / f64::from(allowed) / 600.0;
                let shown = format!("{used} of {allowed}/s, steady: {is_steady}, {retry_after:?}; {refused} refused");
                assert!(used >= least && refused < 1_500, "{shown}");
            }
        }
    }

    #[test]
    fn a_minute_s_allowance_is_used_too() {
        let (taken, refused) = served(Target::new(100, Duration::from_secs(60), false), None, 1_200);
        assert!(taken >= 1_200 && refused < 700, "{taken} taken, {refused} refused");
    }

    #[test]
    fn what_was_under_way_says_nothing_new() {
        let mut pace = Pace::new(&less(ms(0), None), ms(100));
        (1..50).for_each(|i| pace.cut(&less(ms(10 * i), None), ms(100 + 10 * i)));
        assert_eq!((pace.in_a_row, pace.waits_until(ms(100))), (1, Some(ms(100 + 2_500))));
        // But a time that is named holds, whoever is told it.
        pace.cut(&less(ms(50), Some(Duration::from_secs(7))), ms(200));
        assert_eq!((pace.in_a_row, pace.waits_until(ms(200))), (1, Some(ms(7_200))));
        assert!(!pace.has(ms(7_199)) && pace.has(ms(7_200)));
    }

    #[test]
    fn waits_grow_while_nothing_gets_through() {
        let (mut pace, mut waits) = (Pace::new(&less(ms(0), None), ms(0)), Vec::new());
        for _ in 0..4 {
            let now = pace.until;
            assert!(pace.has(now) && pace.next().is_some());
            pace.take(now);
            pace.cut(&less(now, None), now);
            waits.push(pace.until.since(now).as_millis());
        }
        assert_eq!(waits, [4_500, 8_500, 16_500, 32_500]);
        pace.answered(pace.until);
        pace.cut(&less(pace.until, None), pace.until);
        assert_eq!(pace.in_a_row, 1);
    }

    #[test]
    fn it_is_forgotten_in_time_or_when_a_clock_is_set_back() {
        let pace = Pace::new(&less(ms(0), None), ms(0));
        assert!(!pace.is_over(ms(299_000)) && pace.is_over(ms(303_000)));
        let hour = Duration::from_secs(3_600);
        let ahead = Pace::new(&less(ms(0) + hour, None), ms(0) + hour);
        assert!(ahead.is_over(ms(0)) && !ahead.is_over(ms(0) + hour));
    }
}
