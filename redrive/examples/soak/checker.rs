//! Proves from the evidence that nothing was lost, invented, or owned by two; or says what was, with the task's whole story.
//!
//! The rules, each a function below:
//!
//! - **life**: a task is inserted once, claimed 0 → 1 and settled or rescued 1 → 0, the version growing by one each time, and
//!   deleted once. Never 1 → 1: that would be two owners.
//! - **hand**: who changes a running task is its owner, alive; or a rescuer, when the owner is not. An owner that was fenced
//!   may end only what it had begun in the database before the fence.
//! - **attempt**: every attempt in the ledgers has its claim, no claim has two, and no attempt begins before the one before
//!   it has ended, unless that one's owner was dead and the task rescued.
//! - **outcome**: what was settled is what the attempt said. A success that was not written down as one (and so runs again: a
//!   *repeat*) was given back or rescued.
//! - **end**: each task ended as its plan says, and the queue is empty.
//! - **answer**: what was acknowledged is there, under one id; one id a key; nothing is there that nobody asked for.
//! - **transaction**: a business row is there if and only if its task was; of what was rolled back neither.
//! - **shards**, where the number of nodes changes: all are owned again in time, each by one node.
//! - **time**: no attempt before its task was due, by the clock of the node that made it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::path::Path;

use crate::audit::{Seen, State};
use crate::database::Kind;
use crate::evidence::{Answer, Ask, Attempt, Evidence};
use crate::ledger::{Ending, Outcome};
use crate::plan::{Call, End, Step};
use crate::shares::Wait;

/// A fence is noted a moment before it is committed: a transaction that began in between may not have seen it.
const FENCE_SLACK_MS: i64 = 500;
/// Clocks of one machine, rounded to milliseconds here and there.
const CLOCK_SLACK_MS: i64 = 100;
/// A clock that is behind is put right by the first beat that is answered.
const FIRST_BEATS_US: u64 = 10_000_000;
/// Stories that are told at the most.
const STORIES: usize = 10;

/// Something that must not be.
#[derive(Debug)]
pub struct Violation {
    rule: &'static str,
    id: Option<i64>,
    n: Option<String>,
    said: String,
}

#[derive(Debug, Default)]
pub struct Report {
    pub violations: Vec<Violation>,
    figures: BTreeMap<&'static str, u64>,
}

/// How a version of a running task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hand {
    /// By its owner.
    Owner,
    /// By someone who found the owner dead.
    Rescuer,
}

pub fn check(evidence: &Evidence) -> Report {
    let mut checker = Checker { e: evidence, ids: HashMap::new(), report: Report::default() };
    for complaint in &evidence.complaints {
        checker.wrong("process", None, complaint.clone());
    }
    for wait in evidence.waits.iter().filter(|wait| wait.is_too_long()) {
        let said = format!("after {}, it took {:.1} beats until each was one node's", wait.cause, wait.beats);
        checker.wrong("shards", None, said);
    }
    if evidence.stray_keys > 0 {
        checker.wrong("end", None, format!("{} keys are held by nobody", evidence.stray_keys));
    }
    for (id, changes) in &evidence.seen {
        checker.task(*id, changes);
    }
    let strangers = evidence.attempts.keys().chain(evidence.dead.keys()).chain(evidence.archive.keys());
    for id in strangers.collect::<HashSet<_>>() {
        if !evidence.seen.contains_key(id) {
            checker.wrong("answer", Some(*id), "nobody has seen this task being inserted".into());
        }
    }
    checker.keys();
    for (n, ask) in &evidence.asks {
        checker.answer(n, ask);
    }
    checker.count();
    checker.report
}

struct Checker<'e> {
    e: &'e Evidence,
    /// The ids of each number.
    ids: HashMap<String, Vec<i64>>,
    report: Report,
}

impl Checker<'_> {
    fn wrong(&mut self, rule: &'static str, id: Option<i64>, said: String) {
        let n = id.and_then(|id| self.e.call(id)).map(|call| call.n);
        self.report.violations.push(Violation { rule, id, n, said });
    }

    fn add(&mut self, figure: &'static str, by: usize) {
        *self.report.figures.entry(figure).or_default() += by as u64;
    }

    /// All rules about one task that was there.
    fn task(&mut self, id: i64, changes: &[Seen]) {
        let lived_well = self.life(id, changes);
        let Some(call) = self.e.call(id) else {
            return self.wrong("answer", Some(id), "its params are not ours".into());
        };
        self.ids.entry(call.n.clone()).or_default().push(id);
        let none = Vec::new();
        let attempts = self.e.attempts.get(&id).unwrap_or(&none);
        let mut hands = HashMap::new();
        for change in changes {
            self.hand(change, &call, &mut hands);
        }
        if attempts.iter().any(|attempt| attempt.n != call.n)
            || self.e.asks.get(&call.n).is_some_and(|ask| ask.call != call)
        {
            self.wrong("answer", Some(id), "it has another's params".into());
        }
        self.end(id, changes, &call);
        // The rest goes by versions: where those are not in order, it would say the same thing many times.
        if lived_well {
            self.attempts(id, changes, attempts, &hands);
            changes.iter().for_each(|change| self.outcome(change, &call, attempts, &hands));
            self.time(id, changes, &call, attempts);
        }
    }

    fn life(&mut self, id: i64, changes: &[Seen]) -> bool {
        let violations = self.report.violations.len();
        let mut before: Option<&State> = None;
        for (i, change) in changes.iter().enumerate() {
            let said = match (&change.old, &change.new) {
                (None, Some(new)) if i == 0 && new.version == 0 => None,
                (None, _) => Some("it was inserted again"),
                _ if i == 0 => Some("it was not inserted"),
                (Some(old), _) if before != Some(old) => Some("it is not what it was after the change before"),
                (Some(old), Some(new)) => unlawful(old, new),
                (Some(_), None) => None,
            };
            if let Some(said) = said {
                self.wrong("life", Some(id), format!("{said}: change {}", change.seq));
            }
            before = change.new.as_ref();
        }
        self.report.violations.len() == violations
    }

    /// Who made a change, and whether they might. Notes how each version of a running task ended.
    fn hand(&mut self, change: &Seen, call: &Call, hands: &mut HashMap<i64, Hand>) {
        let (old, new) = (change.old.as_ref(), change.new.as_ref());
        let said = match (old, new) {
            (Some(old), new) if old.status == 1 && new.is_none_or(|new| new.version != old.version) => {
                match self.who_ends(change, old) {
                    Ok(hand) => {
                        hands.insert(old.version, hand);
                        None
                    }
                    Err(said) => Some(said),
                }
            }
            (Some(old), Some(new)) if old.status == 0 && new.status == 1 => self.who_claims(change, new),
            (Some(_), None) if call.plan.end() != End::Cancelled => Some("it was deleted while nobody had it".into()),
            _ => None,
        };
        if let Some(said) = said {
            self.wrong("hand", Some(change.id), format!("{said}: change {}", change.seq));
        }
    }

    fn is_by_owner(&self, change: &Seen, owner: i64) -> bool {
        self.e.kind == Kind::Sqlite || self.e.user(owner).is_some_and(|user| user == change.who)
    }

    fn who_ends(&mut self, change: &Seen, old: &State) -> Result<Hand, String> {
        let is_rescue = match &change.new {
            Some(new) => new.crashes == old.crashes + 1,
            None => self.e.dead.get(&change.id).is_some_and(|(reason, _)| reason == "crashed"),
        };
        let by_owner = self.is_by_owner(change, old.owner);
        match (change.alive, is_rescue) {
            (true, true) => Err(format!("it was rescued from number {}, which is alive", old.owner)),
            (true, false) if by_owner => Ok(Hand::Owner),
            (true, false) => Err(format!("{} ended what number {} holds, which is alive", change.who, old.owner)),
            (false, true) => Ok(Hand::Rescuer),
            (false, false) if !by_owner => {
                Err(format!("{} ended what number {} held, which is dead, and it is no rescue", change.who, old.owner))
            }
            (false, false) => self.straddles(change, old.owner, "ended").map_or(Ok(Hand::Owner), Err),
        }
    }

    fn who_claims(&mut self, change: &Seen, new: &State) -> Option<String> {
        if !self.is_by_owner(change, new.owner) {
            return Some(format!("{} claimed it for number {}", change.who, new.owner));
        }
        if change.alive { None } else { self.straddles(change, new.owner, "claimed") }
    }

    /// A node that is dead changed a task: what it had begun before the fence it may end. `None`: so it was.
    fn straddles(&mut self, change: &Seen, owner: i64, did: &str) -> Option<String> {
        let fence = self.e.fences.get(&owner);
        let before = fence.zip(change.began).is_some_and(|(fence, began)| began < fence.at + FENCE_SLACK_MS);
        if before {
            self.add("changes that straddled a fence", 1);
            return None;
        }
        let late = fence.zip(change.began).map_or(0, |(fence, began)| began - fence.at);
        Some(format!("number {owner} {did} it in a transaction that began {late} ms after its fence"))
    }

    fn attempts(&mut self, id: i64, changes: &[Seen], attempts: &[Attempt], hands: &HashMap<i64, Hand>) {
        for attempt in attempts {
            let claim = |change: &&Seen| {
                change.old.as_ref().is_none_or(|old| old.status == 0)
                    && change.new.as_ref().is_some_and(|new| {
                        new.status == 1 && new.version == attempt.version && new.owner == attempt.owner
                    })
            };
            if !changes.iter().any(|change| claim(&change)) {
                let said =
                    format!("an attempt at version {} by number {} has no claim", attempt.version, attempt.owner);
                self.wrong("attempt", Some(id), said);
            }
        }
        for pair in attempts.windows(2) {
            let [first, second] = pair else { continue };
            if first.version == second.version {
                self.wrong("attempt", Some(id), format!("version {} was started twice", first.version));
            } else if first.end.is_none_or(|(end, _)| end > second.start)
                && hands.get(&first.version) != Some(&Hand::Rescuer)
            {
                let said = format!("the attempts at versions {} and {} overlap", first.version, second.version);
                self.wrong("attempt", Some(id), said);
            }
        }
    }

    /// What ended a version, against what its attempt said.
    fn outcome(&mut self, change: &Seen, call: &Call, attempts: &[Attempt], hands: &HashMap<i64, Hand>) {
        let Some(old) = change.old.as_ref().filter(|old| old.status == 1) else { return };
        let Some(hand) = hands.get(&old.version) else { return };
        let attempt = attempts.iter().find(|attempt| attempt.version == old.version);
        let said = attempt.and_then(Attempt::outcome);
        let hung = attempt.is_some_and(|attempt| call.plan.step(attempt.attempt, 1) == Step::Hang);
        let (failed, gave_up) = match said {
            Some(Outcome::Failure | Outcome::RetryAfter | Outcome::Panic) => (true, true),
            Some(Outcome::Dropped) => (hung, false),
            Some(Outcome::Fatal) => (false, true),
            _ => (false, false),
        };
        let right = match &change.new {
            // A cancel request leaves the version.
            Some(new) if new.version == old.version => true,
            Some(new) if new.attempts == old.attempts => true, // given back, snoozed or rescued
            Some(new) => new.attempts == old.attempts + 1 && failed && *hand == Hand::Owner,
            None if self.e.dead.contains_key(&change.id) => gave_up,
            None if self.e.archive.contains_key(&change.id) => call.plan.end() == End::Cancelled,
            None => said == Some(Outcome::Success),
        };
        if !right {
            let said = said.map_or("nothing".into(), |said| format!("{said:?}"));
            self.wrong("outcome", Some(change.id), format!("its attempt said {said}, but see change {}", change.seq));
        }
    }

    fn end(&mut self, id: i64, changes: &[Seen], call: &Call) {
        let deleted = changes.last().is_some_and(|change| change.new.is_none());
        let (dead, archived) = (self.e.dead.get(&id), self.e.archive.get(&id));
        let right = match call.plan.end() {
            _ if !deleted || self.e.left.contains(&id) => false,
            End::Done => dead.is_none() && archived.is_none(),
            End::Dead(reason, attempts) => archived.is_none() && dead == Some(&(reason.to_owned(), attempts)),
            End::Cancelled => dead.is_none() && archived.is_some_and(|how| how == "cancelled"),
        };
        if !right {
            let wanted = call.plan.end();
            let left = if deleted { "it left the queue" } else { "it is still in the queue" };
            self.wrong(
                "end",
                Some(id),
                format!("should be {wanted:?}: {left}, dead: {dead:?}, archived: {archived:?}"),
            );
        }
        let successes = self
            .e
            .attempts
            .get(&id)
            .map_or(0, |all| all.iter().filter(|attempt| attempt.outcome() == Some(Outcome::Success)).count());
        self.add("repeated successes", successes.saturating_sub(1));
        self.add(
            if dead.is_some() {
                "dead"
            } else if archived.is_some() {
                "cancelled"
            } else {
                "done"
            },
            1,
        );
    }

    /// Not before it was due: first by its enqueue, then by what its handler asked for.
    fn time(&mut self, id: i64, changes: &[Seen], call: &Call, attempts: &[Attempt]) {
        let asked = self.e.asks.get(&call.n);
        if let (Some(ask), Some(first)) = (asked, attempts.iter().min_by_key(|attempt| attempt.start)) {
            let due = ask.t + call.plan.delay() * 1_000;
            self.not_before(id, first, due, self.behind(ask), "it was due");
        }
        for pair in attempts.windows(2) {
            let ([first, second], Step::RetryAfter(ms)) = (pair, call.plan.step(1, 1)) else { continue };
            let counted = changes.iter().any(|change| {
                let (Some(old), Some(new)) = (&change.old, &change.new) else { return false };
                old.version == first.version && new.attempts == old.attempts + 1
            });
            if let (Some((end, Outcome::RetryAfter)), true) = (first.end, counted) {
                self.not_before(id, second, end + ms * 1_000, 0, "its handler asked for");
            }
        }
    }

    fn not_before(&mut self, id: i64, attempt: &Attempt, due: u64, slack_ms: i64, why: &str) {
        let ahead = self.e.births.get(&attempt.by).map_or(0, |(_, offset)| (*offset).max(0));
        let early = (due as i64 - attempt.start as i64) / 1_000;
        if early > CLOCK_SLACK_MS + ahead + slack_ms {
            self.wrong("time", Some(id), format!("version {} began {early} ms before {why}", attempt.version));
        }
    }

    /// How far the clock was behind where a task was asked for: only until the first beats.
    fn behind(&self, ask: &Ask) -> i64 {
        match self.e.births.get(&ask.by) {
            Some((born, offset)) if ask.t - born < FIRST_BEATS_US => (-offset).max(0),
            _ => 0,
        }
    }

    /// One task a key, and everybody who asked was told of that one.
    fn keys(&mut self) {
        let mut ids: BTreeMap<&str, HashSet<i64>> = BTreeMap::new();
        for (n, ask) in &self.e.asks {
            let Some(key) = &ask.key else { continue };
            let all = ids.entry(key).or_default();
            all.extend(self.ids.get(n).into_iter().flatten());
            if let Some(Answer::Acked { id, .. }) = ask.answer {
                all.insert(id);
            }
        }
        let several: Vec<_> = ids.into_iter().filter(|(_, ids)| ids.len() > 1).collect();
        for (key, ids) in several {
            let said = format!("key {key} stands for {} tasks: {ids:?}", ids.len());
            self.wrong("answer", ids.iter().min().copied(), said);
        }
    }

    fn answer(&mut self, n: &str, ask: &Ask) {
        let ids = self.ids.get(n).cloned().unwrap_or_default();
        let exists = !ids.is_empty();
        let said = match ask.answer {
            _ if ids.len() > 1 => Some(format!("it became {} tasks: {ids:?}", ids.len())),
            Some(Answer::Acked { id, existed: false }) if ids != [id] => Some(format!("{id} was acknowledged")),
            Some(Answer::Acked { existed: true, .. }) if ask.key.is_none() || exists => {
                Some("it is said to have existed".into())
            }
            Some(Answer::Acked { id, existed: true }) if !self.e.seen.contains_key(&id) => {
                Some(format!("{id} is said to exist"))
            }
            _ => None,
        };
        let business = self.e.business.contains(n);
        let in_transaction = match ask.transaction {
            Some(Ending::Rollback) if exists || business => Some("its transaction was rolled back"),
            Some(Ending::Commit) if exists != business => Some("its transaction left half of it"),
            None if business => Some("it has a business row"),
            _ => None,
        };
        for (rule, said) in [("answer", said), ("transaction", in_transaction.map(str::to_owned))] {
            if let Some(said) = said {
                let said = format!("{said}; found: {ids:?}, business row: {business}");
                self.report.violations.push(Violation { rule, id: ids.first().copied(), n: Some(n.to_owned()), said });
            }
        }
    }

    fn count(&mut self) {
        let acked = |ask: &&Ask| matches!(ask.answer, Some(Answer::Acked { .. }));
        self.add("asked for", self.e.asks.len());
        self.add("acknowledged", self.e.asks.values().filter(acked).count());
        self.add("tasks", self.e.seen.len());
        self.add("attempts", self.e.attempts.values().map(Vec::len).sum());
        self.add("changes seen", self.e.seen.values().map(Vec::len).sum());
        self.add("fences", self.e.fences.values().filter(|fence| !fence.left).count());
        self.add("numbers given to nodes", self.e.nodes.len());
        let rescued =
            |change: &&Seen| matches!((&change.old, &change.new), (Some(old), Some(new)) if new.crashes > old.crashes);
        self.add("rescued", self.e.seen.values().flatten().filter(rescued).count());
        let foreign: Vec<String> = self.ids.keys().filter(|n| !self.e.asks.contains_key(*n)).cloned().collect();
        for n in foreign {
            let id = self.ids.get(&n).and_then(|ids| ids.first()).copied();
            self.wrong("answer", id, "nobody asked for it".into());
        }
    }
}

/// What is wrong with a change of a row, if anything is.
fn unlawful(old: &State, new: &State) -> Option<&'static str> {
    match (old.status, new.status, new.version - old.version) {
        (0, 1, 1) | (1, 0, 1) => None,
        (1, 1, 0) if old.cancel != new.cancel && State { cancel: new.cancel, ..old.clone() } == *new => None,
        (1, 1, _) => Some("it went from one owner to another"),
        (0, 0, _) => Some("it was changed while nobody had it"),
        _ => Some("its version did not grow by one"),
    }
}

impl Report {
    /// The stories of some tasks, then the figures. All violations, each in a line, go to a file beside the ledgers.
    pub fn print(&self, evidence: &Evidence, faults: &BTreeMap<&'static str, u32>, seed: u64, file: &Path) {
        let all: String = self.violations.iter().map(|violation| format!("{violation}\n")).collect();
        if let Err(e) = std::fs::write(file, all) {
            eprintln!("soak: {}: {e}", file.display());
        }
        for (id, n) in self.tasks_to_tell_of().into_iter().take(STORIES) {
            for violation in self.violations.iter().filter(|violation| violation.id == id && violation.n == n) {
                println!("VIOLATION of {violation}");
            }
            print!("{}", evidence.story(id, n.as_deref()));
        }
        let by_rule = self.by_rule();
        by_rule.iter().for_each(|(rule, all)| line(&format!("violations of {rule}"), all.len() as u64));
        self.figures.iter().for_each(|(figure, count)| line(figure, *count));
        faults.iter().for_each(|(fault, count)| line(fault, (*count).into()));
        print_waits(&evidence.waits);
        line("violations", self.violations.len() as u64);
        line("seed", seed);
    }

    fn by_rule(&self) -> BTreeMap<&str, Vec<&Violation>> {
        let mut by_rule: BTreeMap<&str, Vec<&Violation>> = BTreeMap::new();
        self.violations.iter().for_each(|violation| by_rule.entry(violation.rule).or_default().push(violation));
        by_rule
    }

    /// Each once, and of every rule one before any second one.
    fn tasks_to_tell_of(&self) -> Vec<(Option<i64>, Option<String>)> {
        let by_rule = self.by_rule();
        let most = by_rule.values().map(Vec::len).max().unwrap_or(0);
        let mut tasks = Vec::new();
        for violation in (0..most).flat_map(|i| by_rule.values().filter_map(move |all| all.get(i))) {
            let task = (violation.id, violation.n.clone());
            if tasks.len() < STORIES && !tasks.contains(&task) {
                tasks.push(task);
            }
        }
        tasks
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.rule)?;
        if let Some(id) = self.id {
            write!(f, "task {id}, ")?;
        }
        if let Some(n) = &self.n {
            write!(f, "n {n}: ")?;
        }
        f.write_str(&self.said)
    }
}

fn line(figure: &str, count: u64) {
    println!("{figure:<32} {count:>16}");
}

/// How long it took at the most until all shards were owned again, for each number of nodes, and in the wake of harm.
fn print_waits(waits: &[Wait]) {
    let mut longest: BTreeMap<String, &Wait> = BTreeMap::new();
    for wait in waits {
        let when = if wait.after_harm { "after harm".to_owned() } else { format!("{} nodes", wait.nodes) };
        let longest = longest.entry(when).or_insert(wait);
        if longest.took < wait.took {
            *longest = wait;
        }
    }
    for (when, wait) in longest {
        let figure = format!("ms until owned again, {when}");
        println!("{figure:<32} {:>16}    {:.1} beats, {}", wait.took / 1_000, wait.beats, wait.cause);
    }
}
