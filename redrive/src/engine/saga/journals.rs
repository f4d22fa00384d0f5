//! The writes of all sagas of this node, flushed together.
//!
//! *State.* What is asked of them: see `queue`.
//!
//! *Invariants.* One flush is under way; the next takes all that has gathered, up to so many bytes. Each saga of a flush is taken from memory or read, is told
//! what there is to tell, and is written with what follows, by compare-and-set on its `seq`. What comes to nothing (it is known already, or
//! cannot be) would not meet that: so nobody is told so by what was in memory, or was read
//! from a server that may not be the primary any more: both may be out of date. The saga is read first from one that is.
//! Nobody is answered before what they said is durable.
//!
//! *Failure.* Who lost the compare-and-set is told again to what the saga has become. If the database fails, all that was to be written
//! waits and is tried again, until the engine has stopped: then whoever asked is told so. What cannot be written at all is found by trying
//! each by itself, and answered with its error. A saga that is refused, or whose row somebody else's transaction holds, is found by halving,
//! and set aside: it is written by itself, and all others go on.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::bisect::Bisect;
use crate::clock::{Timestamp, pause};
use crate::error::{Error, Fault, Result};
use crate::saga::Work;
use crate::saga::{Event, SagaState, State};
use crate::store::Happened;
use crate::store::{Append, Dialect};
use crate::task::Task;

use super::memory::{Kept, broken};
use super::queue::{Answer, Asked};
use super::tell::{Outcome, Tell};
use crate::engine::events::Event as Told;
use crate::engine::signals::OTHER;
use crate::engine::{Shared, inserter};

/// How often what lost is told again at once, and how long it waits when that was in vain.
const PATIENCE: u32 = 20;
const REST: Duration = Duration::from_millis(100);

pub(in crate::engine) async fn run(shared: Arc<Shared>) {
    let journals = shared.sagas.journals.clone();
    loop {
        let asked = journals.take();
        if asked.is_empty() {
            tokio::select! {
                () = journals.more.notified() => {}
                () = shared.ended() => return journals.close(),
            }
            continue;
        }
        let answered = flush(&shared, asked, Locks::Leave).await;
        if !answered && shared.ended.load(Ordering::Acquire) {
            return journals.close(); // nobody waits for a database that is away
        }
    }
}

/// What to do about a row that somebody else's transaction holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locks {
    /// Everybody else would have to wait as well.
    Leave,
    Wait,
}

/// A saga whose row is held: what is asked of it is written when it can be. Boxed, as a flush may begin one.
fn write_aside(shared: Arc<Shared>, id: String) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let _back = Aside(shared.clone(), id.clone());
        while let Some(asked) = shared.sagas.journals.take_aside(&id) {
            flush(&shared, asked, Locks::Wait).await;
        }
    })
}

/// While a saga is written by itself. Whatever has become of that, it is one of all again when this goes: somebody writes what is asked of it.
struct Aside(Arc<Shared>, String);

impl Drop for Aside {
    fn drop(&mut self) {
        self.0.sagas.journals.bring_back(&self.1);
    }
}

/// One saga of a flush.
#[derive(Debug)]
struct Entry {
    id: String,
    asked: Vec<Asked>,
    before: Option<Arc<Kept>>,
    /// Whether that is from memory.
    remembered: bool,
    /// True if that was read from a server that is the primary.
    verified: bool,
    /// It is there, and cannot be read.
    broken: Option<Error>,
}

impl Entry {
    fn of(asked: Asked) -> Self {
        Self {
            id: asked.id.clone(),
            asked: vec![asked],
            before: None,
            remembered: false,
            verified: false,
            broken: None,
        }
    }

    /// To be told again to what the saga is.
    fn again(self) -> impl Iterator<Item = Asked> {
        self.asked.into_iter().map(|asked| Asked { reread: true, ..asked })
    }

    /// Whether it is only to be looked at, and was read for that: if that comes to nothing, there will be another look.
    fn is_look(&self) -> bool {
        !self.remembered && self.asked.iter().all(|asked| matches!(asked.tell, Tell::Look))
    }

    fn decide(&self, now: Timestamp) -> Option<Outcome> {
        Outcome::of_telling(&self.id, self.before.as_deref(), self.asked.iter().map(|asked| &asked.tell), now)
    }

    fn answer(self, answers: Vec<Result<bool>>, state: &Arc<State>) {
        for (asked, answer) in self.asked.into_iter().zip(answers) {
            _ = asked.answer.send(answer.map(|is_new| Answer { state: state.clone(), is_new }));
        }
    }

    fn refuse(self, e: &Error) {
        self.asked.into_iter().for_each(|asked| _ = asked.answer.send(Err(e.echo())));
    }
}

/// Writes all of this. `false`: the database did not answer, and it is in the queue again.
async fn flush(shared: &Arc<Shared>, asked: Vec<Asked>, locks: Locks) -> bool {
    let mut entries = grouped(asked.into_iter().filter(|asked| !asked.is_moot()));
    if let Err(e) = find(shared, &mut entries).await {
        return fail(shared, entries, locks, &e).await;
    }
    let now = shared.clock.now();
    let mut ready = Vec::new();
    for entry in entries {
        ready.extend(decided(shared, entry, now));
    }
    write(shared, ready, locks, now).await
}

/// What is to be written of a saga. Who need not wait for that is answered.
fn decided(shared: &Shared, mut entry: Entry, now: Timestamp) -> Option<(Append, Entry, Outcome)> {
    let journals = &shared.sagas.journals;
    if let Some(e) = entry.broken.take() {
        entry.refuse(&e);
        return None;
    }
    let outcome = entry.decide(now);
    let in_vain = |answer: &Result<bool>| !answer.as_ref().is_ok_and(|is_new| *is_new);
    let is_in_vain = outcome.as_ref().is_none_or(|outcome| outcome.answers.iter().any(in_vain));
    if !entry.verified && is_in_vain && !entry.is_look() {
        journals.memory.forget(&entry.id);
        journals.put_back(entry.again().collect());
        return None;
    }
    let Some(outcome) = outcome else {
        let none = Error::NotFound { what: "saga", id: entry.id.clone() };
        entry.refuse(&none);
        return None;
    };
    if outcome.events.is_empty() {
        let state = entry.before.as_ref().map_or_else(|| Arc::new(outcome.state), |kept| kept.state.clone());
        entry.answer(outcome.answers, &state);
        return None;
    }
    match shared.append_of(&entry.id, &outcome, now) {
        Ok(append) => Some((append, entry, outcome)),
        Err(e) => {
            entry.refuse(&e);
            None
        }
    }
}

/// By saga, in the order in which they were asked for; but a start goes before what was said at the same time.
fn grouped(asked: impl Iterator<Item = Asked>) -> Vec<Entry> {
    let (mut places, mut entries): (HashMap<String, usize>, Vec<Entry>) = Default::default();
    for asked in asked {
        let place = *places.entry(asked.id.clone()).or_insert(entries.len());
        match entries.get_mut(place) {
            Some(entry) => entry.asked.push(asked),
            None => entries.push(Entry::of(asked)),
        }
    }
    for entry in entries.iter_mut().filter(|entry| entry.asked.len() > 1) {
        entry.asked.sort_by_key(|asked| !matches!(asked.tell, Tell::Begin(_)));
    }
    entries
}

/// What the sagas are: from memory, or read.
async fn find(shared: &Shared, entries: &mut [Entry]) -> Result<()> {
    let memory = &shared.sagas.journals.memory;
    let (mut missing, mut doubtful) = (Vec::new(), Vec::new());
    for entry in entries.iter_mut() {
        let reread = entry.asked.iter().any(|asked| asked.reread);
        entry.before = if reread { None } else { memory.recall(&entry.id) };
        entry.remembered = entry.before.is_some();
        // One that begins is not looked for: if there is one already, its insert will say so.
        let begins = !reread && matches!(entry.asked.first().map(|asked| &asked.tell), Some(Tell::Begin(_)));
        entry.verified = reread;
        if reread {
            doubtful.push(entry.id.clone());
        } else if entry.before.is_none() && !begins {
            missing.push(entry.id.clone());
        }
    }
    let (missing, doubtful) = (strs(&missing), strs(&doubtful));
    let mut records = shared.store.load_sagas(&missing).await?;
    records.extend(shared.store.verified_sagas(&doubtful).await?);
    let mut found = HashMap::new();
    for record in records {
        let id = record.summary.id.clone();
        found.insert(id, memory.read(record));
    }
    for entry in entries.iter_mut().filter(|entry| entry.before.is_none()) {
        match found.remove(&entry.id) {
            Some(Ok(kept)) => entry.before = Some(Arc::new(kept)),
            Some(Err(e)) => {
                tracing::error!(saga = entry.id, error = %e, "a saga's journal cannot be read");
                entry.broken = Some(e);
            }
            None => {}
        }
    }
    Ok(())
}

fn strs(ids: &[String]) -> Vec<&str> {
    ids.iter().map(|id| &**id).collect()
}

impl Shared {
    /// What is written of a saga, and the tasks that follow.
    pub(super) fn append_of(&self, id: &str, outcome: &Outcome, now: Timestamp) -> Result<Append> {
        let sealed = |event: &Event| {
            let json = serde_json::to_string(event).map_err(|e| broken(id, e.to_string()))?;
            self.store.seal_saga(id, json)
        };
        let mut begins = outcome.begins.clone();
        if let Some(begins) = &mut begins {
            for text in [&mut begins.definition, &mut begins.input] {
                *text = self.store.seal_saga(id, std::mem::take(text))?;
            }
        }
        let mut tasks: Vec<Task> = Vec::with_capacity(outcome.start.len());
        for (work, committed) in &outcome.start {
            tasks.push(self.saga_task(id, &outcome.state, work, *committed, now)?);
        }
        if !outcome.stop.is_empty() {
            tasks.push(self.stop_task(id, &outcome.stop, now)?);
        }
        Ok(Append {
            id: id.to_owned(),
            begins,
            was: outcome.state.seq - outcome.events.len() as i64,
            state: outcome.state.word(),
            since: outcome.since,
            look_at: outcome.state.look_again_at(),
            events: outcome.events.iter().map(sealed).collect::<Result<_>>()?,
            tasks,
            audits: outcome.audits.clone(),
            happened: outcome.got_stuck.then(|| self.stuck_notice(id, &outcome.state, now)),
        })
    }

    /// What people are told of a saga that is stuck, by the channels of any node.
    fn stuck_notice(&self, id: &str, state: &State, now: Timestamp) -> Happened {
        let name = &state.flow.definition.name;
        let at = |(work, error): (Work, &str)| format!(" at {} of {}: {error}", work.op.as_str(), work.place());
        let why = state.why_stuck().map(at).unwrap_or_default();
        let said = format!("saga {id} ({name}) is stuck and needs a person{why}");
        self.store.happened("saga.stuck", id, &said, now)
    }
}

async fn write(shared: &Arc<Shared>, ready: Vec<(Append, Entry, Outcome)>, locks: Locks, now: Timestamp) -> bool {
    if ready.is_empty() {
        return true;
    }
    let (mut appends, ready): (Vec<_>, Vec<_>) =
        ready.into_iter().map(|(append, entry, outcome)| (append, (entry, outcome))).unzip();
    appends.iter_mut().flat_map(|a| &mut a.tasks).for_each(|task| inserter::offer(shared, task));
    metrics::histogram!("redrive_saga_batch").record(appends.len() as f64);
    shared.journal_moment("before");
    match shared.store.append_sagas(&appends, locks == Locks::Wait, now).await {
        Ok(written) => {
            shared.journal_moment("after");
            let won = || appends.iter().zip(&written).filter(|(_, won)| **won).flat_map(|(append, _)| &append.tasks);
            let others = won().any(|task| task.due <= now && !shared.owns(task.lane, task.shard()));
            for ((append, (entry, outcome)), won) in appends.into_iter().zip(ready).zip(written) {
                if won { accept(shared, append, entry, outcome) } else { lose(shared, &append, entry) }
            }
            if others {
                shared.wake.others.notify_one();
            }
            true
        }
        Err(e) => {
            appends.iter().flat_map(|a| &a.tasks).for_each(|task| inserter::withdraw_offer(shared, task));
            shared.doubts.answer_was_lost();
            fail(shared, ready.into_iter().map(|(entry, _)| entry).collect(), locks, &e).await
        }
    }
}

/// It is written: whoever asked is told, and what follows begins.
fn accept(shared: &Arc<Shared>, append: Append, entry: Entry, outcome: Outcome) {
    let before = entry.before.as_deref();
    let (was, was_at) = (before.map(|kept| kept.state.word()), before.and_then(|kept| kept.state.look_again_at()));
    let bytes = append.events.iter().map(|event| event.len() + 200).sum::<usize>();
    let bytes = bytes + before.map_or(500, |kept| kept.bytes);
    let state = Arc::new(outcome.state);
    let kept = Kept { state: state.clone(), since: outcome.since, input_hash: outcome.input_hash, bytes };
    shared.sagas.journals.memory.keep(&entry.id, kept);
    shared.look_at(&entry.id, was_at, append.look_at);
    if was != Some(append.state) {
        tell_state(shared, &entry.id, &state, append.state);
    }
    entry.answer(outcome.answers, &state);
    append.tasks.into_iter().for_each(|task| inserter::begin(shared, task));
}

fn tell_state(shared: &Shared, id: &str, state: &State, word: SagaState) {
    let name = &state.flow.definition.name;
    tracing::debug!(saga = id, name, state = word.as_str(), "saga");
    if word == SagaState::Stuck {
        tracing::error!(saga = id, name, "a saga is stuck and needs a person");
    }
    if word.is_final() {
        let label = if shared.sagas.named.contains_key(name) { name } else { OTHER };
        metrics::counter!("redrive_saga_ended", "saga" => label.to_owned(), "state" => word.as_str()).increment(1);
    }
    shared.signals.listeners.tell(|| Told::Saga { id: id.to_owned(), name: name.clone(), state: word });
}

/// Somebody else was faster: it is told again to what the saga is now. If that is so again and again, not at once: others wait for us.
fn lose(shared: &Shared, append: &Append, entry: Entry) {
    append.tasks.iter().for_each(|task| inserter::withdraw_offer(shared, task));
    let journals = shared.sagas.journals.clone();
    journals.memory.forget(&entry.id);
    let asked: Vec<Asked> = entry.again().map(|asked| Asked { lost: asked.lost + 1, ..asked }).collect();
    if asked.iter().all(|asked| asked.lost <= PATIENCE) {
        return journals.put_back(asked);
    }
    tokio::spawn(async move {
        pause(REST).await;
        journals.put_back(asked);
    });
}

/// The database failed: later, if that may help; if not, the guilty one is looked for. Whether it answered.
async fn fail(shared: &Arc<Shared>, entries: Vec<Entry>, locks: Locks, e: &Error) -> bool {
    let passing = e.is_transient() || matches!(e.fault(), Some(Fault::Unique | Fault::NoTable));
    for entry in &entries {
        shared.sagas.journals.memory.forget(&entry.id);
    }
    // SQLite locks the whole file: none of them is to blame. And of one that could not be written without waiting for others it is not known
    // yet whether it could be at all.
    let is_held = e.fault() == Some(Fault::Busy) && shared.store.dialect() != Dialect::Sqlite;
    if locks == Locks::Leave && (is_held || !passing) {
        return leave_guilty(shared, entries, e).await;
    }
    if passing {
        tracing::warn!(error = %e, "journals of sagas could not be written yet; trying again");
        shared.sagas.journals.put_back(entries.into_iter().flat_map(Entry::again).collect());
        pause(REST).await;
        return false;
    }
    tracing::error!(error = %e, "the journal of a saga cannot be written");
    entries.into_iter().for_each(|entry| entry.refuse(e));
    true
}

/// One of these is held by somebody else's transaction, or is refused: it is looked for by halves, and waits by itself. Returns whether
/// the database answered.
async fn leave_guilty(shared: &Arc<Shared>, entries: Vec<Entry>, e: &Error) -> bool {
    let (mut parts, guilty) = Bisect::of_failed(entries);
    if let Some(entry) = guilty {
        let (journals, id) = (&shared.sagas.journals, entry.id.clone());
        tracing::warn!(saga = id, error = %e, "a saga is held up; it is written by itself, and others go on");
        journals.set_aside(&id);
        journals.put_back(entry.again().collect());
        tokio::spawn(shared.part("journals", |shared| write_aside(shared, id)));
    }
    let mut answered = true;
    // Each half is read again, and halves itself if it fails.
    while let Some(half) = parts.next_part() {
        let asked = half.into_iter().flat_map(Entry::again).collect();
        answered &= Box::pin(flush(shared, asked, Locks::Leave)).await;
    }
    answered
}
