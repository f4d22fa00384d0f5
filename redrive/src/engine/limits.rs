//! What may run now: so many at once on this node, of a method, of one business id; so many in a time; and which methods
//! people have paused.
//!
//! *State.* Slots that are taken, by lane and business id; for a method with a rate a bucket of tokens, which fills
//! steadily; for a business id also what other nodes still run of it, from the time when they owned its shard.
//!
//! A lane whose target has asked for less has a [pace](super::pace).
//!
//! *Invariants.* Whoever starts a task has taken a slot for it, and gives it back when the attempt has ended. All tasks
//! of a business id are in one shard, so its owner alone keeps the limit. A rate is the cluster's: each node that
//! handles the method has its share.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::duration::LONGEST;
use crate::error::Problems;
use crate::gate::ramp;
use crate::id::SHARDS;
use crate::store::Due;
use crate::task::{Lane, Task, business_hash};

use super::Shared;
use super::handler::{MethodOptions, Rate};
use super::lanes::Split;
use super::pace::{Less, Pace};

/// A place for one running task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) lane: Lane,
    /// The hash of its business id; 0 if it has none.
    pub(crate) business: u32,
}

impl Slot {
    pub(crate) fn of(task: &Task) -> Self {
        Self { lane: task.lane, business: task.business.as_ref().map_or(0, |b| business_hash(&b.id)) }
    }

    pub(crate) fn for_due(due: &Due) -> Self {
        Self { lane: due.lane, business: due.business }
    }
}

/// The answer to "may I?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    Yes,
    /// Not this one: its business id has enough running.
    NotThisBusiness,
    /// None of this lane now.
    NotThisLane,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Limits {
    most: usize,
    taken: usize,
    /// Slots of parts that have never answered.
    unproven: usize,
    lanes: HashMap<Lane, LaneLimits>,
    split: Split,
    /// Parts that have limits of their own.
    parts: HashMap<Lane, MethodOptions>,
}

#[derive(Debug)]
struct LaneLimits {
    options: MethodOptions,
    taken: usize,
    /// Attempts that were answered.
    answers: usize,
    businesses: HashMap<u32, usize>,
    /// Of a business id, what runs elsewhere.
    elsewhere: HashMap<u32, usize>,
    /// How many nodes share its rate.
    nodes: usize,
    bucket: Option<Bucket>,
    paused: bool,
    passage: Passage,
    pace: Option<Pace>,
}

/// Places that are free: of all, and of those for parts that have never answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    free: usize,
    unproven: usize,
}

/// What its gate lets through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Passage {
    /// Everything.
    #[default]
    All,
    /// Nothing: it need not be read.
    None,
    /// So many, each once, in a cycle of its gate.
    Probes(u32, i64),
    /// More and more since a time, from so many on.
    Ramp(Timestamp, u32),
}

/// So many lanes of parts are remembered that have nothing running.
const MOST_IDLE: usize = 10_000;

impl LaneLimits {
    fn new(options: MethodOptions, now: Timestamp) -> Self {
        Self {
            taken: 0,
            answers: 0,
            businesses: HashMap::new(),
            elsewhere: HashMap::new(),
            nodes: 1,
            bucket: options.rate.map(|rate| Bucket::new(rate, now)),
            paused: false,
            passage: Passage::All,
            pace: None,
            options,
        }
    }
}

impl Limits {
    pub(crate) fn new(most: usize, methods: impl Iterator<Item = (Lane, MethodOptions)>, now: Timestamp) -> Self {
        let lanes = methods.map(|(lane, options)| (lane, LaneLimits::new(options, now))).collect();
        Self { most, taken: 0, unproven: 0, lanes, split: Split::default(), parts: HashMap::new() }
    }

    /// With these methods split, and these parts of them under limits of their own.
    pub(crate) fn split(mut self, split: Split, parts: HashMap<Lane, MethodOptions>) -> Self {
        (self.split, self.parts) = (split, parts);
        self
    }

    /// A part that is seen for the first time has its own limits, or those of its method.
    fn make_part(&mut self, lane: Lane, now: Timestamp) {
        let method = self.split.method_of(lane);
        if method == lane || self.lanes.contains_key(&lane) {
            return;
        }
        if self.lanes.len() > MOST_IDLE {
            self.lanes.retain(|lane, limits| {
                let is_free =
                    limits.bucket.is_none() && limits.passage == Passage::All && limits.pace_at(now).is_none();
                limits.taken > 0 || !is_free || lane.0 >= 0
            });
        }
        let Some(LaneLimits { options, nodes, paused, .. }) = self.lanes.get(&method) else { return };
        let options = self.parts.get(&lane).unwrap_or(options).clone();
        let mut part = LaneLimits { nodes: *nodes, paused: *paused, ..LaneLimits::new(options, now) };
        part.bucket.iter_mut().for_each(|bucket| bucket.nodes = part.nodes);
        self.lanes.insert(lane, part);
    }

    /// Takes a slot, if there is one.
    pub(crate) fn reserve(&mut self, slot: Slot, now: Timestamp) -> Reserved {
        self.make_part(slot.lane, now);
        let Some(lane) = self.lanes.get_mut(&slot.lane).filter(|_| self.taken < self.most) else {
            return Reserved::NotThisLane;
        };
        let is_unproven = lane.is_unproven();
        if is_unproven && self.unproven >= self.most.div_ceil(2) {
            return Reserved::NotThisLane;
        }
        let reserved = lane.reserve(slot.business, now);
        if reserved == Reserved::Yes {
            self.taken += 1;
            self.unproven += usize::from(is_unproven);
        }
        reserved
    }

    /// Gives a slot back. `true`: others of its business id may have waited for that.
    pub(crate) fn release(&mut self, slot: Slot) -> bool {
        self.taken = self.taken.saturating_sub(1);
        let Some(lane) = self.lanes.get_mut(&slot.lane) else { return false };
        self.unproven = self.unproven.saturating_sub(usize::from(lane.is_unproven()));
        lane.release(slot.business)
    }

    /// A part has answered an attempt that has a slot: it may have more of them.
    pub(crate) fn note_answer(&mut self, lane: Lane) {
        let Some(lane) = self.lanes.get_mut(&lane) else { return };
        if lane.is_unproven() {
            self.unproven = self.unproven.saturating_sub(lane.taken);
        }
        lane.answers = lane.answers.saturating_add(1);
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    pub(crate) fn free(&self) -> usize {
        self.most.saturating_sub(self.taken)
    }

    /// Whether people have paused this lane, or its gate is open. If so, it need not be read.
    pub(crate) fn is_held(&self, lane: Lane) -> bool {
        self.known(lane).is_some_and(|lane| lane.paused || lane.passage == Passage::None)
    }

    /// Whether people have paused this lane.
    pub(crate) fn is_paused(&self, lane: Lane) -> bool {
        self.known(lane).is_some_and(|lane| lane.paused)
    }

    /// The limits of a lane: its own, or those of its method.
    fn known(&self, lane: Lane) -> Option<&LaneLimits> {
        self.lanes.get(&lane).or_else(|| self.lanes.get(&self.split.method_of(lane)))
    }

    /// The options of a lane: its own, or those of its method.
    pub(crate) fn options_of(&self, lane: Lane) -> Option<&MethodOptions> {
        self.parts.get(&lane).or_else(|| self.lanes.get(&self.split.method_of(lane)).map(|method| &method.options))
    }

    /// What the gate of a lane lets through; `true` if that is news.
    pub(crate) fn set_passage(&mut self, lane: Lane, passage: Passage, now: Timestamp) -> bool {
        self.make_part(lane, now);
        let Some(limits) = self.lanes.get_mut(&lane) else { return false };
        std::mem::replace(&mut limits.passage, passage) != passage
    }

    /// The cycle of a lane's gate whose probe the next slot is, if it is one.
    pub(crate) fn probing(&self, lane: Lane) -> Option<i64> {
        match self.lanes.get(&lane)?.passage {
            Passage::Probes(_, generation) => Some(generation),
            _ => None,
        }
    }

    /// The places of this node that are free.
    pub(crate) fn room(&self) -> Room {
        Room { free: self.free(), unproven: self.most.div_ceil(2).saturating_sub(self.unproven) }
    }

    /// The probes that wait here for a task, each of a cycle: none do any more.
    pub(crate) fn take_probes(&mut self) -> Vec<(Lane, i64)> {
        let mut taken = Vec::new();
        for (lane, limits) in &mut self.lanes {
            if let Passage::Probes(n, cycle) = &mut limits.passage {
                taken.extend((0..std::mem::take(n)).map(|_| (*lane, *cycle)));
            }
        }
        taken
    }

    /// Number of probes, up to `wanted`, of a lane that could start now, if its gate gave them away; none while some wait here
    /// for a task. They take their places from the room.
    pub(crate) fn probe_room(&mut self, lane: Lane, wanted: u32, room: &mut Room, now: Timestamp) -> u32 {
        let Some(lane) = self.lanes.get_mut(&lane) else { return 0 };
        if matches!(lane.passage, Passage::Probes(n, _) if n > 0) {
            return 0;
        }
        let passage = std::mem::take(&mut lane.passage);
        let has_room = lane.has_room(now);
        lane.passage = passage;
        if !has_room {
            return 0;
        }
        let free = if lane.is_unproven() { room.free.min(room.unproven) } else { room.free };
        let free = lane.most().map_or(free, |most| free.min(most.saturating_sub(lane.taken)));
        let n = wanted.min(u32::try_from(free).unwrap_or(u32::MAX));
        room.free -= n as usize; // no more than there are: see above
        room.unproven = room.unproven.saturating_sub(if lane.is_unproven() { n as usize } else { 0 });
        n
    }

    /// Uses one of them, for a call that needs no slot: of which cycle it is.
    pub(crate) fn use_probe(&mut self, lane: Lane) -> Option<i64> {
        match &mut self.lanes.get_mut(&lane)?.passage {
            Passage::Probes(n, generation) if *n > 0 => {
                *n -= 1;
                Some(*generation)
            }
            _ => None,
        }
    }

    /// When the next token of a lane that has run out of them comes.
    pub(crate) fn next_token(&self, lane: Lane) -> Option<Timestamp> {
        let lane = self.lanes.get(&lane)?;
        let token = lane.bucket.as_ref().and_then(Bucket::next_token);
        token.into_iter().chain(lane.pace.as_ref().and_then(Pace::next)).max()
    }

    /// The target of a lane has asked for less. `true`: for the first time of late.
    pub(crate) fn slow_down(&mut self, lane: Lane, less: &Less, now: Timestamp) -> bool {
        self.make_part(lane, now);
        let Some(lane) = self.lanes.get_mut(&lane) else { return false };
        if let Some(pace) = lane.pace_at(now) {
            pace.cut(less, now);
            return false;
        }
        lane.pace = Some(Pace::new(less, now));
        true
    }

    /// The target of a lane has answered a call that began at `began`, and not asked for less.
    pub(crate) fn answered(&mut self, lane: Lane, began: Timestamp) {
        let pace = self.lanes.get_mut(&lane).and_then(|lane| lane.pace.as_mut());
        pace.into_iter().for_each(|pace| pace.answered(began));
    }

    /// True if the pace of a lane lets a task begin that was claimed at `claimed`.
    pub(crate) fn lets_begin(&mut self, lane: Lane, claimed: Timestamp, now: Timestamp) -> bool {
        let pace = self.lanes.get_mut(&lane).and_then(|lane| lane.pace_at(now));
        pace.is_none_or(|pace| pace.lets_begin(claimed, now))
    }

    /// Until when the target of a lane is left alone, because it has asked for less.
    pub(crate) fn left_alone(&mut self, lane: Lane, now: Timestamp) -> Option<Timestamp> {
        self.lanes.get_mut(&lane)?.pace_at(now)?.waits_until(now)
    }

    /// How many nodes share the rate of a lane.
    pub(crate) fn share(&mut self, lane: Lane, nodes: usize) {
        let of = |other: &Lane| self.split.method_of(*other) == lane;
        for (_, lane) in self.lanes.iter_mut().filter(|(other, _)| of(other)) {
            lane.nodes = nodes.max(1);
            lane.bucket.iter_mut().for_each(|bucket| bucket.nodes = lane.nodes);
        }
    }

    /// Gives a lane other limits, from now on. `false`: all but that for each business id, because there was none and what
    /// runs was not counted, or there was one and is to be none.
    pub(crate) fn change(&mut self, lane: Lane, options: MethodOptions, now: Timestamp) -> bool {
        let parts = &self.parts;
        let of = |other: &Lane| *other != lane && self.split.method_of(*other) == lane && !parts.contains_key(other);
        for (_, part) in self.lanes.iter_mut().filter(|(other, _)| of(other)) {
            part.change(options.clone(), now);
        }
        self.lanes.get_mut(&lane).is_none_or(|lane| lane.change(options, now))
    }

    /// Which lanes are paused; `true` if that is news.
    pub(crate) fn set_paused(&mut self, paused: &[Lane]) -> bool {
        let mut news = false;
        for (lane, limits) in &mut self.lanes {
            let now = paused.contains(lane) || paused.contains(&self.split.method_of(*lane));
            news |= limits.paused != now;
            limits.paused = now;
        }
        news
    }

    /// Whether a lane has limits for which its tasks must be seen one by one, or that leave so little room that it is as well.
    pub(crate) fn is_tight(&self, lane: Lane) -> bool {
        let tight = |lane: &LaneLimits| {
            let o = &lane.options;
            let is_paced = o.rate.is_some() || lane.pace.is_some();
            o.per_business.is_some() || is_paced || lane.most().is_some_and(|most| most < usize::from(SHARDS))
        };
        self.known(lane).is_none_or(tight)
    }

    /// The lanes that have a limit for each business id.
    pub(crate) fn lanes_by_business(&self) -> Vec<Lane> {
        self.lanes.iter().filter(|(_, l)| l.options.per_business.is_some()).map(|(lane, _)| *lane).collect()
    }

    /// Notes what others still run in shards of ours, of these lanes.
    pub(crate) fn set_elsewhere(&mut self, lanes: &[Lane], running: &[Task]) {
        for lane in lanes {
            if let Some(limits) = self.lanes.get_mut(lane) {
                limits.elsewhere.clear();
            }
        }
        for slot in running.iter().map(Slot::of).filter(|slot| slot.business != 0) {
            if let Some(lane) = self.lanes.get_mut(&slot.lane) {
                *lane.elsewhere.entry(slot.business).or_default() += 1;
            }
        }
    }
}

impl LaneLimits {
    /// How many of its tasks may run at once.
    fn most(&self) -> Option<usize> {
        let proven = self.options.unproven.map(|first| first.saturating_add(self.answers));
        [proven, self.options.concurrency].into_iter().flatten().min()
    }

    fn is_unproven(&self) -> bool {
        self.options.unproven.is_some() && self.answers == 0
    }

    /// Its pace, if that still slows anything.
    fn pace_at(&mut self, now: Timestamp) -> Option<&mut Pace> {
        if self.pace.as_ref().is_some_and(|pace| pace.is_over(now)) {
            self.pace = None;
        }
        self.pace.as_mut()
    }

    fn has_room(&mut self, now: Timestamp) -> bool {
        let tokens = self.bucket.as_mut().is_none_or(|bucket| bucket.has(now));
        let tokens = tokens && self.pace_at(now).is_none_or(|pace| pace.has(now));
        let passes = match self.passage {
            Passage::All => true,
            Passage::None => false,
            Passage::Probes(n, _) => n > 0,
            Passage::Ramp(since, probes) => self.taken < ramp(probes, now.since(since)),
        };
        tokens && passes && !self.paused && self.most().is_none_or(|most| self.taken < most)
    }

    fn reserve(&mut self, business: u32, now: Timestamp) -> Reserved {
        if !self.has_room(now) {
            return Reserved::NotThisLane;
        }
        if let Some(most) = self.options.per_business.filter(|_| business != 0) {
            let [taken, elsewhere] =
                [&self.businesses, &self.elsewhere].map(|n| n.get(&business).copied().unwrap_or(0));
            if taken + elsewhere >= most {
                return Reserved::NotThisBusiness;
            }
            self.businesses.insert(business, taken + 1);
        }
        self.bucket.iter_mut().for_each(Bucket::take);
        self.pace.iter_mut().for_each(|pace| pace.take(now));
        if let Passage::Probes(n, _) = &mut self.passage {
            *n -= 1; // there is one: see has_room
        }
        self.taken += 1;
        Reserved::Yes
    }

    fn change(&mut self, options: MethodOptions, now: Timestamp) -> bool {
        let old = std::mem::replace(&mut self.options, options);
        if self.options.rate != old.rate {
            let bucket = |rate| Bucket { nodes: self.nodes, ..Bucket::new(rate, now) };
            self.bucket = self.options.rate.map(bucket);
        }
        let can = self.options.per_business.is_some() == old.per_business.is_some();
        if !can {
            self.options.per_business = old.per_business;
        }
        can
    }

    fn release(&mut self, business: u32) -> bool {
        self.taken = self.taken.saturating_sub(1);
        let Some(taken) = self.businesses.get_mut(&business) else { return false };
        *taken = taken.saturating_sub(1);
        if *taken == 0 {
            self.businesses.remove(&business);
        }
        true
    }
}

/// Tokens that come steadily, kept for at most one period.
#[derive(Debug)]
struct Bucket {
    rate: Rate,
    nodes: usize,
    tokens: f64,
    filled: Timestamp,
}

impl Bucket {
    fn new(rate: Rate, now: Timestamp) -> Self {
        Self { rate, nodes: 1, tokens: 1.0, filled: now }
    }

    fn per_ms(&self) -> f64 {
        f64::from(self.rate.tasks) / (self.rate.per.as_secs_f64() * 1000.0) / self.nodes as f64
    }

    fn has(&mut self, now: Timestamp) -> bool {
        let passed = now.since(self.filled).as_secs_f64() * 1000.0;
        self.filled = self.filled.max(now);
        let most = (f64::from(self.rate.tasks) / self.nodes as f64).max(1.0);
        self.tokens = (self.tokens + passed * self.per_ms()).min(most);
        self.tokens >= 1.0
    }

    fn take(&mut self) {
        self.tokens -= 1.0;
    }

    fn next_token(&self) -> Option<Timestamp> {
        let missing = (1.0 - self.tokens).max(0.0);
        let wait = Duration::try_from_secs_f64(missing / self.per_ms() / 1000.0).unwrap_or(Duration::MAX);
        (missing > 0.0).then_some(self.filled + wait)
    }
}

impl Shared {
    /// A slot for a task, if there is one. Probes are for those that were claimed for it.
    pub(super) fn reserve(&self, slot: Slot) -> bool {
        let mut limits = self.limits();
        limits.probing(slot.lane).is_none() && limits.reserve(slot, self.clock.now()) == Reserved::Yes
    }

    pub(super) fn release(&self, slot: Slot) {
        if self.limits().release(slot) {
            self.waiting().ready.unpark(slot);
        }
        self.wake.claimer.notify_one();
    }
}

impl MethodOptions {
    /// All that is wrong with them.
    pub(crate) fn check(&self, method: &str, problems: &mut Problems) {
        let positive = |n: Option<usize>| n.is_none_or(|n| n > 0);
        let limits = [self.concurrency, self.unproven, self.per_business];
        problems.require(limits.into_iter().all(positive), method, || {
            "a limit of 0 would let nothing run; pause the method instead".into()
        });
        let rate = self.rate.is_none_or(|rate| rate.tasks > 0 && !rate.per.is_zero() && rate.per <= LONGEST);
        problems.require(rate, method, || "a rate needs at least one task, and a time of at most 3650days".into());
        self.gate.iter().for_each(|gate| problems.nest(&format!("{method}.gate"), gate.problems()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_has_never_answered_has_few_slots_and_all_such_parts_half_of_the_node() {
        let now = Timestamp::EPOCH;
        let options = MethodOptions::default().concurrency(8).unproven(2);
        let lane = |n| Lane::part("http", &format!("host-{n}"));
        let all = (0..9).map(|n| (lane(n), options.clone()));
        let mut limits = Limits::new(12, all, now);
        let taken = |limits: &mut Limits, n| {
            let slot = Slot { lane: lane(n), business: 0 };
            std::iter::repeat_with(|| limits.reserve(slot, now)).take_while(|r| *r == Reserved::Yes).count()
        };
        assert!(limits.is_tight(lane(0)));
        assert_eq!([0, 1, 2, 3].map(|n| taken(&mut limits, n)), [2, 2, 2, 0], "6 of 12");
        limits.note_answer(lane(0));
        assert_eq!(taken(&mut limits, 0), 1, "one more for each answer");
        assert_eq!(taken(&mut limits, 3), 2, "and its slots are not of the others' half any more");
        for _ in 0..100 {
            limits.note_answer(lane(0));
        }
        assert_eq!(taken(&mut limits, 0), 12 - 9, "up to all that is left");
        for n in [0, 0, 0, 1, 2, 3] {
            limits.release(Slot { lane: lane(n), business: 0 });
        }
        assert_eq!((limits.unproven, limits.taken()), (3, 6));
    }

    const LANE: Lane = Lane(1);
    const START: Timestamp = Timestamp::from_millis(1_000_000);

    fn limits(most: usize, options: MethodOptions) -> Limits {
        Limits::new(most, [(LANE, options)].into_iter(), START)
    }

    fn of(business: u32) -> Slot {
        Slot { lane: LANE, business }
    }

    #[test]
    fn no_more_than_the_node_or_the_method_has_room_for() {
        let mut node = limits(2, MethodOptions::default());
        let answers = [(); 3].map(|()| node.reserve(of(0), START));
        assert_eq!(answers, [Reserved::Yes, Reserved::Yes, Reserved::NotThisLane]);
        let mut method = limits(9, MethodOptions::default().concurrency(1));
        assert_eq!(method.reserve(of(0), START), Reserved::Yes);
        assert_eq!(method.reserve(of(0), START), Reserved::NotThisLane);
        method.release(of(0));
        assert_eq!(method.reserve(of(0), START), Reserved::Yes);
        assert_eq!(method.reserve(Slot { lane: Lane(9), business: 0 }, START), Reserved::NotThisLane, "unknown");
    }

    #[test]
    fn a_business_id_that_has_enough_does_not_hold_up_others() {
        let mut limits = limits(9, MethodOptions::default().per_business(1));
        assert_eq!(limits.reserve(of(7), START), Reserved::Yes);
        assert_eq!(limits.reserve(of(7), START), Reserved::NotThisBusiness);
        assert_eq!(limits.reserve(of(8), START), Reserved::Yes);
        assert_eq!(limits.reserve(of(0), START), Reserved::Yes, "without one there is no limit");
        assert!(limits.release(of(7)));
        assert_eq!(limits.reserve(of(7), START), Reserved::Yes);
    }

    #[test]
    fn a_business_id_that_is_refused_is_not_remembered() {
        let mut limits = limits(9, MethodOptions::default().per_business(1));
        limits.lanes.get_mut(&LANE).unwrap().elsewhere.insert(7, 1);
        assert_eq!(limits.reserve(of(7), START), Reserved::NotThisBusiness);
        assert!(limits.lanes[&LANE].businesses.is_empty());
        limits.set_elsewhere(&[LANE], &[]);
        assert_eq!(limits.reserve(of(7), START), Reserved::Yes);
    }

    #[test]
    fn tokens_come_steadily_and_are_kept_for_one_period() {
        let mut limits = limits(99, MethodOptions::default().rate(10, Duration::from_secs(1)));
        let mut taken = |ms: u64| {
            let now = START + Duration::from_millis(ms);
            (0..99).filter(|_| limits.reserve(of(0), now) == Reserved::Yes).count()
        };
        assert_eq!([taken(0), taken(50), taken(100), taken(500), taken(9_000)], [1, 0, 1, 4, 10]);
        assert_eq!(limits.next_token(LANE), Some(START + Duration::from_millis(9_100)));
    }

    #[test]
    fn a_rate_without_measure_is_refused_and_harms_nobody() {
        let problems = |options: MethodOptions| {
            let mut problems = Problems::default();
            options.check("m", &mut problems);
            problems.into_result().map_err(|e| e.to_string())
        };
        let rate = |tasks, per| MethodOptions::default().rate(tasks, per);
        assert_eq!(problems(rate(1, LONGEST)), Ok(()));
        for (tasks, per) in
            [(1, Duration::MAX), (1, LONGEST + Duration::from_nanos(1)), (1, Duration::ZERO), (0, LONGEST)]
        {
            assert!(problems(rate(tasks, per)).is_err_and(|why| why.contains("3650days")), "{tasks} in {per:?}");
        }
        for options in [rate(1, Duration::MAX), rate(0, Duration::from_secs(1))] {
            let mut limits = limits(9, options);
            assert_eq!([(); 2].map(|()| limits.reserve(of(0), START)), [Reserved::Yes, Reserved::NotThisLane]);
            assert_eq!(limits.next_token(LANE), Some(Timestamp::MAX));
        }
    }

    #[test]
    fn nodes_share_a_rate() {
        let mut limits = limits(99, MethodOptions::default().rate(10, Duration::from_secs(1)));
        limits.share(LANE, 2);
        let now = START + Duration::from_secs(60);
        assert_eq!((0..99).filter(|_| limits.reserve(of(0), now) == Reserved::Yes).count(), 5);
    }

    #[test]
    fn limits_change_while_tasks_run() {
        let mut limits = limits(99, MethodOptions::default().concurrency(1));
        limits.share(LANE, 2);
        assert_eq!([(); 2].map(|()| limits.reserve(of(0), START)), [Reserved::Yes, Reserved::NotThisLane]);
        assert!(limits.change(LANE, MethodOptions::default().concurrency(2), START));
        assert_eq!([(); 2].map(|()| limits.reserve(of(0), START)), [Reserved::Yes, Reserved::NotThisLane]);
        assert!(limits.change(LANE, MethodOptions::default().rate(10, Duration::from_secs(1)), START));
        let now = START + Duration::from_secs(60);
        let taken = (0..99).filter(|_| limits.reserve(of(0), now) == Reserved::Yes).count();
        assert_eq!(taken, 5, "half of the rate is another node's");
        assert_eq!(limits.taken(), 7);
    }

    #[test]
    fn a_limit_for_each_business_id_changes_but_does_not_come_or_go() {
        let mut without = limits(9, MethodOptions::default());
        assert_eq!(without.reserve(of(7), START), Reserved::Yes);
        assert!(!without.change(LANE, MethodOptions::default().per_business(1).concurrency(3), START));
        assert_eq!(without.reserve(of(7), START), Reserved::Yes, "the first was not counted");
        let mut with = limits(9, MethodOptions::default().per_business(1));
        assert_eq!(with.reserve(of(7), START), Reserved::Yes);
        assert!(with.change(LANE, MethodOptions::default().per_business(2), START));
        assert_eq!([(); 2].map(|()| with.reserve(of(7), START)), [Reserved::Yes, Reserved::NotThisBusiness]);
        assert!(!with.change(LANE, MethodOptions::default(), START));
        assert_eq!(with.reserve(of(7), START), Reserved::NotThisBusiness);
    }

    #[test]
    fn a_paused_lane_is_closed() {
        let mut limits = limits(9, MethodOptions::default());
        assert!(limits.set_paused(&[LANE]) && !limits.set_paused(&[LANE]));
        assert_eq!((limits.is_held(LANE), limits.reserve(of(0), START)), (true, Reserved::NotThisLane));
        limits.set_paused(&[]);
        assert_eq!((limits.is_held(LANE), limits.reserve(of(0), START)), (false, Reserved::Yes));
    }
}
