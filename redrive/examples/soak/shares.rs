//! How long it takes, when nodes come and go, until every shard is somebody's again, and nobody else's.
//!
//! *State.* What the processes wrote down of their shards, what the conductor did to them, and when the database got to know of
//! a join or declared a node dead, in the order of time.
//!
//! *Invariants.* The shards of a lane are shared as they should be when each is that of one process. One that was told to leave
//! counts no more from that moment on. Of one that was killed nobody can know before it is declared dead: until then shards
//! may be nobody's, for the others think they are its; but none may be that of two. A node that has a number and has not said yet
//! what is its own is waited for.
//!
//! *Failure.* A time counts from the last cause: a join, a leave, a fence. While a wire, a process or a server is being done harm,
//! nothing is expected. For a while after it nodes connect anew, find themselves dead and take new numbers: how long
//! that takes is told, not judged. Around a change of the number of nodes there is no such harm.

use std::collections::{BTreeMap, HashSet};

use crate::clock;
use crate::evidence::Evidence;
use crate::faults::Action;
use crate::ledger::Event;

/// It may take so many beats.
pub const MOST_BEATS: u64 = 3;
const SHARDS: usize = 64;
/// So long after harm nothing is judged.
const RECOVERY_US: u64 = 4_500_000;

/// What the conductor did.
#[derive(Clone, Debug)]
pub struct Did {
    /// When it began and when it was done: microseconds since 1970.
    pub at: u64,
    pub until: u64,
    pub action: Action,
    /// To whom: `1.3` is node 1 in its third generation.
    pub process: String,
}

impl Did {
    /// That it begins now.
    pub fn begins(action: Action, process: String) -> Self {
        let at = clock::now();
        Self { at, until: at, action, process }
    }
}

/// A time in which the shards were not shared as they should be.
#[derive(Clone, Debug)]
pub struct Wait {
    /// How long, in microseconds, since the last cause.
    pub took: u64,
    /// The same in beats.
    pub beats: f64,
    /// What that was.
    pub cause: String,
    /// How many nodes there were to be.
    pub nodes: usize,
    /// It was in the wake of harm that was done.
    pub after_harm: bool,
}

impl Wait {
    pub fn is_too_long(&self) -> bool {
        self.beats > MOST_BEATS as f64 && !self.after_harm
    }
}

/// Something that matters here.
enum Moment<'e> {
    Owns {
        process: &'e str,
        number: i64,
        shards: &'e [u8],
    },
    Left(&'e str),
    Killed(&'e str),
    Joined(i64),
    Fenced(i64),
    /// Harm begins and ends.
    Harm,
    Healed(String),
    Change(usize),
}

/// All waits of a run until `end`, from when the shards were shared for the first time; and what is wrong with the measuring: there
/// must have been as many nodes as there were to be, and all shards theirs, at some time after each change, and a time to judge.
pub fn measure(e: &Evidence, did: &[Did], beat_ms: u64, nodes: usize, end: u64) -> (Vec<Wait>, Vec<String>) {
    let mut eye = Eye { nodes, beat: beat_ms * 1_000, is_judged: true, ..Eye::default() };
    for (t, moment) in moments(e, did).into_iter().filter(|(t, _)| *t < end) {
        eye.see(t, moment);
    }
    eye.end(end);
    (eye.waits, eye.missed)
}

fn moments<'e>(e: &'e Evidence, did: &'e [Did]) -> Vec<(u64, Moment<'e>)> {
    let mut all = Vec::new();
    let mut told = HashSet::new();
    for line in &e.lines {
        if let Event::Owns { number, shards } = &line.event {
            told.insert(*number);
            all.push((line.t, Moment::Owns { process: &line.by, number: *number, shards }));
        }
    }
    for join in e.joins.values() {
        // A number that nobody ever worked under (its process was killed, or its answer lost) is in the way until its fence.
        let moment = if told.contains(&join.number) { Moment::Joined(join.number) } else { Moment::Harm };
        all.push((join.at as u64 * 1_000, moment));
    }
    for fence in e.fences.values() {
        let at = fence.at as u64 * 1_000;
        all.push((at, Moment::Fenced(fence.number)));
        if !told.contains(&fence.number) {
            all.push((at, Moment::Healed("the fence of a node that never worked".into())));
        }
    }
    did.iter().for_each(|did| all.extend(of_action(did)));
    all.sort_by_key(|(t, _)| *t);
    all
}

fn of_action(did: &Did) -> Vec<(u64, Moment<'_>)> {
    let (began, ended) = (|moment| (did.at, moment), |moment| (did.until, moment));
    let healed = || Moment::Healed(did.action.to_string());
    match did.action {
        Action::Kill(_) => vec![began(Moment::Killed(&did.process))],
        Action::Leave(_) => vec![began(Moment::Left(&did.process))],
        Action::Freeze(_) | Action::Cut(_) | Action::Hold(..) | Action::Lose(_) => vec![began(Moment::Harm)],
        Action::CutAll | Action::KillRegistry => vec![began(Moment::Harm)],
        Action::Thaw(_) | Action::Mend(_) | Action::Sever(_) => vec![ended(healed())],
        Action::MendAll | Action::StartRegistry => vec![ended(healed())],
        Action::Crash | Action::Restart | Action::KillServer(_) => vec![began(Moment::Harm), ended(healed())],
        Action::Change(nodes) => vec![began(Moment::Change(nodes))],
        Action::Spawn(..) | Action::Rejoin(_) => Vec::new(),
    }
}

/// Goes through the moments of a run.
#[derive(Default)]
struct Eye {
    nodes: usize,
    /// In microseconds.
    beat: u64,
    /// What each process says that it has.
    shares: BTreeMap<String, Share>,
    killed: HashSet<String>,
    left: HashSet<String>,
    fenced: HashSet<i64>,
    /// Numbers that have not said yet what they have.
    joining: HashSet<i64>,
    harm: u32,
    healed: u64,
    /// The last cause.
    cause: (u64, String),
    /// Not shared since then. Before the first time it is nobody's fault.
    since: Option<u64>,
    has_begun: bool,
    /// All nodes that there were to be have shared.
    is_complete: bool,
    /// Since the number of nodes changed there was a time to judge.
    is_judged: bool,
    waits: Vec<Wait>,
    missed: Vec<String>,
}

struct Share {
    number: i64,
    shards: Vec<u8>,
}

impl Eye {
    fn see(&mut self, t: u64, moment: Moment<'_>) {
        match moment {
            Moment::Owns { process, number, shards } => {
                self.joining.remove(&number);
                self.shares.insert(process.into(), Share { number, shards: shards.to_vec() });
            }
            Moment::Left(process) => {
                self.left.insert(process.into());
                self.cause = (t, format!("{process} was told to leave"));
            }
            Moment::Killed(process) => _ = self.killed.insert(process.into()),
            Moment::Joined(number) => {
                self.joining.insert(number);
                self.cause = (t, format!("number {number} joined"));
            }
            Moment::Fenced(number) => {
                self.joining.remove(&number);
                self.fenced.insert(number);
                if self.has_share(number) {
                    self.cause = (t, format!("number {number} was declared dead"));
                }
            }
            Moment::Harm => self.harm += 1,
            Moment::Healed(what) => {
                self.harm = self.harm.saturating_sub(1);
                (self.healed, self.cause) = (t, (t, what));
            }
            Moment::Change(nodes) => {
                self.complain_if_incomplete();
                (self.nodes, self.is_complete, self.is_judged) = (nodes, false, false);
            }
        }
        self.judge(t);
    }

    /// Whether a number that just died had something: one that has left has not.
    fn has_share(&self, number: i64) -> bool {
        self.shares.iter().any(|(process, share)| share.number == number && !self.left.contains(process))
    }

    fn judge(&mut self, t: u64) {
        let is_shared = self.is_shared();
        self.is_complete |= is_shared && self.living().count() == self.nodes;
        match (is_shared, self.since) {
            (true, Some(since)) if self.has_begun => self.note(since, t),
            (true, _) => (self.has_begun, self.since) = (true, None),
            (false, None) => self.since = Some(t),
            (false, Some(_)) => {}
        }
    }

    fn note(&mut self, since: u64, t: u64) {
        self.since = None;
        let (cause, what) = &self.cause;
        // What flickers shortly after a cause is still of that cause.
        let from = if cause + MOST_BEATS * self.beat >= since { *cause } else { since };
        let after_harm = from < self.healed + RECOVERY_US;
        if self.harm == 0 {
            self.is_judged |= !after_harm;
            let (took, cause) = (t.saturating_sub(from), what.clone());
            let beats = took as f64 / self.beat as f64;
            self.waits.push(Wait { took, beats, cause, nodes: self.nodes, after_harm });
        }
    }

    fn complain_if_incomplete(&mut self) {
        if !self.is_complete {
            self.missed.push(format!("there was no time when {} nodes shared all shards", self.nodes));
        }
        if !self.is_judged {
            self.missed.push(format!("how soon {} nodes shared all shards could not be measured", self.nodes));
        }
    }

    /// What is not shared at the end, though nothing is wrong, counts until then.
    fn end(&mut self, end: u64) {
        if let Some(since) = self.since.filter(|_| self.has_begun) {
            self.note(since, end);
        }
        self.complain_if_incomplete();
    }

    /// The processes that have something, and are there.
    fn living(&self) -> impl Iterator<Item = &Share> {
        let is_there = |process: &String| !self.left.contains(process) && !self.killed.contains(process);
        self.shares
            .iter()
            .filter(move |(process, _)| is_there(process))
            .map(|(_, share)| share)
            .filter(|share| !self.fenced.contains(&share.number) && !share.shards.is_empty())
    }

    fn is_shared(&self) -> bool {
        let is_dead =
            |process: &String, share: &Share| self.killed.contains(process) && !self.fenced.contains(&share.number);
        let is_one_unnoticed = self.shares.iter().any(|(process, share)| is_dead(process, share));
        let mut owners = [0; SHARDS];
        for shard in self.living().flat_map(|share| &share.shards) {
            owners[usize::from(*shard) % SHARDS] += 1;
        }
        let is_right = |owners: &u32| *owners == 1 || (*owners == 0 && is_one_unnoticed);
        self.joining.is_empty() && owners.iter().all(is_right)
    }
}
