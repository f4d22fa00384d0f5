//! The journals of sagas on this node: what was read of them lately, and the writes of all sagas, flushed together.
//!
//! *State.* A queue of what is to be told to sagas; sagas as they were last read or written here, at most so many bytes of them.
//!
//! *Invariants.* One flush is under way; the next takes all that has gathered. Each saga of a flush is taken from memory or read, is told
//! what there is to tell, and is written with what follows, by compare-and-set on its `seq`. What comes to nothing (it is known already, or
//! cannot be) would not meet that: so nobody is told so by what was in memory, which may be out of date; the saga is read first.
//! Nobody is answered before what they said is durable.
//!
//! *Failure.* Who lost the compare-and-set is told again to what the saga has become. If the database fails, all that was to be written
//! waits and is tried again. What cannot be written at all is found by halving, and answered with its error.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Notify, oneshot};

use crate::clock::{Timestamp, pause};
use crate::error::{Error, Fault, Result};
use crate::saga::{Definition, Event, Flow, Illegal, Next, SagaState, State, Work, advance};
use crate::store::{Append, AuditEntry, Begins, SagaRecord, Store};
use crate::task::{KeyHash, Task};

use super::events::Event as Told;
use super::{Shared, inserter, lock};

/// Most sagas of a flush.
const MOST_SAGAS: usize = 500;
/// What is kept in memory: two such generations.
const MOST_KEPT: usize = 10_000;
const MOST_BYTES: usize = 16 << 20;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Journals {
    queue: Mutex<Queue>,
    more: Notify,
    kept: Mutex<Generations>,
    flows: Mutex<HashMap<[u8; 16], Arc<Flow>>>,
}

#[derive(Debug, Default)]
struct Queue {
    asked: VecDeque<Asked>,
    /// The engine has stopped: nothing is taken any more.
    closed: bool,
}

/// A saga, as it was last read or written here.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) state: Arc<State>,
    /// Since when it stands as it does.
    since: Timestamp,
    input_hash: [u8; 16],
    bytes: usize,
}

/// What is to be told to a saga.
#[derive(Clone, Debug)]
pub(super) enum Tell {
    /// It begins.
    Begin(Beginning),
    /// How something ended.
    Event(Event),
    /// What a person or another system wants.
    Wish(Wish, Option<AuditEntry>),
    /// The time.
    Look,
}

/// A saga that is to begin.
#[derive(Clone, Debug)]
pub(super) struct Beginning {
    pub(super) flow: Arc<Flow>,
    pub(super) input: Arc<Value>,
    pub(super) begins: Begins,
}

/// What is wanted of a saga; which event that is depends on how it stands.
#[derive(Clone, Debug)]
pub(super) enum Wish {
    /// Just this.
    Event(Event),
    /// The step under way, or that has failed, is to be left out.
    Skip { step: String, by: String },
    /// It is done, with this result.
    Resolve { step: String, output: Value, by: String },
    /// What has failed is tried again, under new tasks.
    Again(Vec<Work>),
}

#[derive(Debug)]
struct Asked {
    id: String,
    tell: Tell,
    /// Whether the saga must be read first: what we had of it was out of date.
    reread: bool,
    answer: oneshot::Sender<Result<Answer>>,
}

/// What came of telling a saga something.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) state: Arc<State>,
    /// Whether it was new.
    pub(super) is_new: bool,
}

impl Journals {
    /// Tells a saga something; when this returns it is durable.
    pub(super) async fn tell(&self, id: &str, tell: Tell) -> Result<Answer> {
        let (answer, answered) = oneshot::channel();
        self.push(Asked { id: id.to_owned(), tell, reread: false, answer });
        answered.await.unwrap_or_else(|_| Err(stopped(id)))
    }

    /// The same without waiting for it.
    pub(super) fn look(&self, id: String) {
        let (answer, _) = oneshot::channel();
        self.push(Asked { id, tell: Tell::Look, reread: false, answer });
    }

    /// What comes when the engine has stopped is dropped, which its asker notices.
    fn push(&self, asked: Asked) {
        let mut queue = lock(&self.queue);
        if !queue.closed {
            queue.asked.push_back(asked);
            self.more.notify_one();
        }
    }

    fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        queue.asked.clear();
    }

    /// A saga as it is known here, or as it is.
    pub(super) async fn get(&self, store: &Store, id: &str, fresh: bool) -> Result<Option<Arc<State>>> {
        if !fresh && let Some(kept) = lock(&self.kept).get(id) {
            return Ok(Some(kept.state.clone()));
        }
        let Some(record) = store.saga(id).await? else { return Ok(None) };
        let kept = self.read(record)?;
        let state = kept.state.clone();
        lock(&self.kept).put_read(id, Arc::new(kept));
        Ok(Some(state))
    }

    /// What a stored saga has come to.
    fn read(&self, record: SagaRecord) -> Result<Kept> {
        let id = record.summary.id;
        let broken = |why: String| broken(&id, why);
        let flow = self.flow(record.definition).map_err(|e| broken(e.to_string()))?;
        let mut state = State::new(flow, Arc::new(record.input));
        let mut bytes = 500;
        for journaled in &record.journal {
            bytes += 200;
            let not = |illegal| broken(format!("event {} of its journal cannot be: {illegal:?}", journaled.seq));
            state.apply(&journaled.event, journaled.at).map_err(not)?;
        }
        bytes += state.steps.iter().filter_map(|s| s.output.as_ref()).map(|o| weight(o)).sum::<usize>();
        bytes += weight(&state.input);
        Ok(Kept { state: Arc::new(state), since: record.summary.since, input_hash: record.input_hash, bytes })
    }

    /// Definitions that are the same are shared.
    pub(super) fn flow(&self, definition: Definition) -> Result<Arc<Flow>> {
        let json = serde_json::to_vec(&definition).unwrap_or_default();
        let mut hash = [0; 16];
        hash.copy_from_slice(blake3::hash(&json).as_bytes().first_chunk::<16>().unwrap_or(&[0; 16]));
        if let Some(flow) = lock(&self.flows).get(&hash) {
            return Ok(flow.clone());
        }
        let flow = Arc::new(Flow::new(definition)?);
        let mut flows = lock(&self.flows);
        if flows.len() > MOST_KEPT {
            flows.clear(); // every saga its own definition: then there is nothing to share
        }
        flows.insert(hash, flow.clone());
        Ok(flow)
    }

    fn take(&self) -> Vec<Asked> {
        let queue = &mut lock(&self.queue).asked;
        let n = queue.len().min(MOST_SAGAS);
        queue.drain(..n).collect()
    }

    fn put_back(&self, asked: Vec<Asked>) {
        let queue = &mut lock(&self.queue).asked;
        asked.into_iter().rev().for_each(|asked| queue.push_front(asked));
    }

    fn forget(&self, id: &str) {
        lock(&self.kept).remove(id);
    }
}

fn stopped(id: &str) -> Error {
    Error::Conflict { doing: "write the journal of", id: id.into(), why: "this engine has stopped".into() }
}

fn broken(id: &str, why: String) -> Error {
    Error::Conflict { doing: "go on with saga", id: id.into(), why }
}

/// Roughly how many bytes a value takes.
fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => 32 + text.len(),
        Value::Array(all) => 32 + all.iter().map(weight).sum::<usize>(),
        Value::Object(all) => 32 + all.iter().map(|(name, value)| name.len() + 32 + weight(value)).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 32,
    }
}

/// What was used lately: when the young are enough, they become the old, and the old are forgotten.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<String, Arc<Kept>>,
    old: HashMap<String, Arc<Kept>>,
    bytes: usize,
}

impl Generations {
    fn get(&mut self, id: &str) -> Option<Arc<Kept>> {
        if let Some(kept) = self.young.get(id) {
            return Some(kept.clone());
        }
        let (id, kept) = self.old.remove_entry(id)?;
        self.put(&id, kept.clone());
        Some(kept)
    }

    fn put(&mut self, id: &str, kept: Arc<Kept>) {
        if self.young.len() >= MOST_KEPT || self.bytes >= MOST_BYTES {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
        self.bytes += kept.bytes;
        self.old.remove(id);
        self.young.insert(id.to_owned(), kept);
    }

    /// What was read, unless it has been written since.
    fn put_read(&mut self, id: &str, kept: Arc<Kept>) {
        if self.get(id).is_none_or(|known| known.state.seq < kept.state.seq) {
            self.put(id, kept);
        }
    }

    fn remove(&mut self, id: &str) {
        self.young.remove(id);
        self.old.remove(id);
    }
}

pub(super) async fn run(shared: Arc<Shared>) {
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
        flush(&shared, asked).await;
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
    /// It is there, and cannot be read.
    broken: Option<Error>,
}

impl Entry {
    /// To be told again to what the saga is.
    fn again(self) -> impl Iterator<Item = Asked> {
        self.asked.into_iter().map(|asked| Asked { reread: true, ..asked })
    }
}

/// What one saga has come to, in a flush.
#[derive(Debug)]
struct Outcome {
    state: State,
    since: Timestamp,
    input_hash: [u8; 16],
    begins: Option<Begins>,
    events: Vec<Event>,
    start: Vec<(Work, bool)>,
    stop: Vec<Work>,
    audits: Vec<AuditEntry>,
    /// For each that asked: what came of it, once it is written.
    answers: Vec<Result<bool>>,
}

async fn flush(shared: &Arc<Shared>, asked: Vec<Asked>) {
    let mut entries = grouped(asked);
    if let Err((e, entries)) = find(shared, &mut entries).await.map_err(|e| (e, std::mem::take(&mut entries))) {
        return fail(shared, entries, &e).await;
    }
    let now = shared.clock.now();
    let (mut appends, mut ready) = (Vec::new(), Vec::new());
    for mut entry in entries {
        if let Some(e) = entry.broken.take() {
            refuse(entry, &e);
            continue;
        }
        let Some(outcome) = decide(&entry, now) else {
            refuse(entry, &Error::NotFound { what: "saga", id: String::new() });
            continue;
        };
        let in_vain = |answer: &Result<bool>| !answer.as_ref().is_ok_and(|is_new| *is_new);
        if entry.remembered && outcome.answers.iter().any(in_vain) {
            shared.sagas.journals.forget(&entry.id);
            shared.sagas.journals.put_back(entry.again().collect());
        } else if outcome.events.is_empty() {
            let state = entry.before.as_ref().map_or_else(|| Arc::new(outcome.state), |kept| kept.state.clone());
            answer(entry.asked, outcome.answers, &state);
        } else {
            match append_of(shared, &entry, &outcome, now) {
                Err(e) => refuse(entry, &e),
                Ok(append) => {
                    appends.push(append);
                    ready.push((entry, outcome));
                }
            }
        }
    }
    write(shared, appends, ready, now).await;
}

fn refuse(entry: Entry, e: &Error) {
    let e = match e {
        Error::NotFound { what, .. } => Error::NotFound { what, id: entry.id },
        e => e.echo(),
    };
    entry.asked.into_iter().for_each(|asked| _ = asked.answer.send(Err(e.echo())));
}

/// By saga, in the order in which they were asked for.
fn grouped(asked: Vec<Asked>) -> Vec<Entry> {
    let (mut places, mut entries): (HashMap<String, usize>, Vec<Entry>) = Default::default();
    for asked in asked {
        let place = *places.entry(asked.id.clone()).or_insert(entries.len());
        match entries.get_mut(place) {
            Some(entry) => entry.asked.push(asked),
            None => entries.push(Entry {
                id: asked.id.clone(),
                asked: vec![asked],
                before: None,
                remembered: false,
                broken: None,
            }),
        }
    }
    entries
}

/// What the sagas are: from memory, or read.
async fn find(shared: &Shared, entries: &mut [Entry]) -> Result<()> {
    let journals = &shared.sagas.journals;
    let mut missing = Vec::new();
    for entry in entries.iter_mut() {
        let reread = entry.asked.iter().any(|asked| asked.reread);
        entry.before = if reread { None } else { lock(&journals.kept).get(&entry.id) };
        entry.remembered = entry.before.is_some();
        // One that begins is not looked for: if there is one already, its insert will say so.
        let begins = !reread && matches!(entry.asked.first().map(|asked| &asked.tell), Some(Tell::Begin(_)));
        if entry.before.is_none() && !begins {
            missing.push(entry.id.clone());
        }
    }
    let ids: Vec<&str> = missing.iter().map(|id| &**id).collect();
    let mut found = HashMap::new();
    for record in shared.store.load_sagas(&ids).await? {
        let id = record.summary.id.clone();
        found.insert(id, journals.read(record));
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

/// Tells a saga all that there is to tell. `None`: there is none, and nobody begins it.
fn decide(entry: &Entry, now: Timestamp) -> Option<Outcome> {
    let mut outcome = match (&entry.before, entry.asked.first().map(|asked| &asked.tell)) {
        (Some(kept), _) => Outcome::of(kept),
        (None, Some(Tell::Begin(beginning))) => Outcome::beginning(beginning, now),
        (None, _) => return None,
    };
    for asked in &entry.asked {
        let answer = outcome.told(&entry.id, &asked.tell, now);
        outcome.answers.push(answer);
    }
    let word = outcome.state.word();
    if entry.before.as_ref().is_none_or(|kept| kept.state.word() != word) {
        outcome.since = now;
    }
    Some(outcome)
}

impl Outcome {
    fn of(kept: &Kept) -> Self {
        Self::new((*kept.state).clone(), kept.since, kept.input_hash, None)
    }

    fn beginning(beginning: &Beginning, now: Timestamp) -> Self {
        let state = State::new(beginning.flow.clone(), beginning.input.clone());
        Self::new(state, now, beginning.begins.input_hash.0, Some(beginning.begins.clone()))
    }

    fn new(state: State, since: Timestamp, input_hash: [u8; 16], begins: Option<Begins>) -> Self {
        let (events, start, stop, audits, answers) = Default::default();
        Self { state, since, input_hash, begins, events, start, stop, audits, answers }
    }

    /// Whether it was new, or why it cannot be.
    fn told(&mut self, id: &str, tell: &Tell, now: Timestamp) -> Result<bool> {
        let conflict = |why: String| Error::Conflict { doing: "do that to saga", id: id.to_owned(), why };
        match tell {
            Tell::Begin(beginning) if self.state.seq > 0 => {
                if self.input_hash != beginning.begins.input_hash.0 {
                    return Err(conflict("it was started with another name or input; give this one another id".into()));
                }
                Ok(false)
            }
            Tell::Begin(_) => self.add(vec![Event::Began], now).map_err(conflict),
            Tell::Event(event) => self.add(vec![event.clone()], now).map_err(conflict),
            Tell::Look => self.add(Vec::new(), now).map_err(conflict),
            Tell::Wish(wish, audit) => {
                if let Some(end) = self.state.ended {
                    return Err(conflict(format!("it has ended: {end}")));
                }
                let events = wish.events(&self.state).map_err(conflict)?;
                let is_new = self.add(events, now).map_err(conflict)?;
                self.audits.extend(audit.clone());
                Ok(is_new)
            }
        }
    }

    fn add(&mut self, events: Vec<Event>, now: Timestamp) -> std::result::Result<bool, String> {
        let before = self.events.len();
        let mut events: Vec<Option<Event>> = events.into_iter().map(Some).collect();
        if events.is_empty() {
            events.push(None); // nothing but the time
        }
        for event in events {
            match advance(&self.state, event, now) {
                Err(Illegal::Known) => {}
                Err(Illegal::Not(why)) => return Err(why),
                Ok(next) => self.take(next),
            }
        }
        Ok(self.events.len() > before)
    }

    fn take(&mut self, next: Next) {
        self.events.extend(next.events);
        let committed = next.state.committed;
        self.start.extend(next.start.into_iter().map(|work| (work, committed)));
        self.stop.extend(next.stop);
        self.state = next.state;
    }
}

impl Wish {
    /// The events that it is, as the saga stands.
    fn events(&self, state: &State) -> std::result::Result<Vec<Event>, String> {
        let open = |step: &str| {
            let idle = || format!("nothing of step {step:?} is under way or has failed");
            state.open_work(step).ok_or_else(idle)
        };
        Ok(match self {
            Self::Event(event) => vec![event.clone()],
            Self::Skip { step, by } => vec![Event::Skipped { work: open(step)?, by: by.clone() }],
            Self::Resolve { step, output, by } => {
                vec![Event::Done { work: open(step)?, output: output.clone(), by: Some(by.clone()) }]
            }
            Self::Again(work) => work.iter().map(|work| Event::Started { work: work.clone() }).collect(),
        })
    }
}

fn answer(asked: Vec<Asked>, answers: Vec<Result<bool>>, state: &Arc<State>) {
    for (asked, answer) in asked.into_iter().zip(answers) {
        _ = asked.answer.send(answer.map(|is_new| Answer { state: state.clone(), is_new }));
    }
}

/// What is written of a saga, and the tasks that follow.
fn append_of(shared: &Shared, entry: &Entry, outcome: &Outcome, now: Timestamp) -> Result<Append> {
    let store = &shared.store;
    let sealed = |event: &Event| {
        let json = serde_json::to_string(event).map_err(|e| broken(&entry.id, e.to_string()))?;
        store.seal_saga(&entry.id, json)
    };
    let mut begins = outcome.begins.clone();
    if let Some(begins) = &mut begins {
        begins.input = store.seal_saga(&entry.id, std::mem::take(&mut begins.input))?;
    }
    let mut tasks: Vec<Task> = Vec::with_capacity(outcome.start.len());
    for (work, committed) in &outcome.start {
        tasks.push(shared.saga_task(&entry.id, &outcome.state, work, *committed, now)?);
    }
    if !outcome.stop.is_empty() {
        tasks.push(shared.stop_task(&entry.id, &outcome.stop, now)?);
    }
    Ok(Append {
        id: entry.id.clone(),
        begins,
        was: outcome.state.seq - outcome.events.len() as i64,
        state: outcome.state.word(),
        since: outcome.since,
        look_at: outcome.state.look_again_at(),
        events: outcome.events.iter().map(sealed).collect::<Result<_>>()?,
        tasks,
        audits: outcome.audits.clone(),
    })
}

async fn write(shared: &Arc<Shared>, mut appends: Vec<Append>, ready: Vec<(Entry, Outcome)>, now: Timestamp) {
    if appends.is_empty() {
        return;
    }
    appends.iter_mut().flat_map(|a| &mut a.tasks).for_each(|task| inserter::offer(shared, task));
    metrics::histogram!("redrive_saga_batch").record(appends.len() as f64);
    shared.journal_moment("before");
    let written = shared.store.append_sagas(&appends, now).await;
    if written.is_ok() {
        shared.journal_moment("after");
    }
    match written {
        Ok(written) => {
            for ((append, (entry, outcome)), won) in appends.into_iter().zip(ready).zip(written) {
                if won { accept(shared, append, entry, outcome) } else { lose(shared, &append, entry) }
            }
        }
        Err(e) => {
            appends.iter().flat_map(|a| &a.tasks).for_each(|task| inserter::withdraw_offer(shared, task));
            fail(shared, ready.into_iter().map(|(entry, _)| entry).collect(), &e).await;
        }
    }
}

/// It is written: whoever asked is told, and what follows begins.
fn accept(shared: &Arc<Shared>, append: Append, entry: Entry, outcome: Outcome) {
    let journals = &shared.sagas.journals;
    let look_at = append.look_at;
    let before = entry.before.as_ref().map(|kept| kept.state.word());
    let was_at = entry.before.as_ref().and_then(|kept| kept.state.look_again_at());
    let bytes = append.events.iter().map(|event| event.len() + 200).sum::<usize>();
    let bytes = bytes + entry.before.as_ref().map_or(500, |kept| kept.bytes);
    let state = Arc::new(outcome.state);
    let kept = Kept { state: state.clone(), since: outcome.since, input_hash: outcome.input_hash, bytes };
    if append.state.is_final() {
        journals.forget(&entry.id);
    } else {
        lock(&journals.kept).put(&entry.id, Arc::new(kept));
    }
    if let Some(at) = look_at.filter(|_| look_at != was_at) {
        shared.look_at(at, entry.id.clone());
    }
    if before != Some(append.state) {
        tell_state(shared, &entry.id, &state, append.state);
    }
    answer(entry.asked, outcome.answers, &state);
    append.tasks.into_iter().for_each(|task| inserter::begin(shared, task));
}

fn tell_state(shared: &Shared, id: &str, state: &State, word: SagaState) {
    let name = &state.flow.definition.name;
    tracing::debug!(saga = id, name, state = word.as_str(), "saga");
    if word == SagaState::Stuck {
        tracing::error!(saga = id, name, "a saga is stuck and needs a person");
    }
    if word.is_final() {
        metrics::counter!("redrive_saga_ended", "saga" => name.clone(), "state" => word.as_str()).increment(1);
    }
    shared.signals.listeners.tell(|| Told::Saga { id: id.to_owned(), name: name.clone(), state: word });
}

/// Somebody else was faster: it is told again to what the saga is now.
fn lose(shared: &Shared, append: &Append, entry: Entry) {
    append.tasks.iter().for_each(|task| inserter::withdraw_offer(shared, task));
    shared.sagas.journals.forget(&entry.id);
    shared.sagas.journals.put_back(entry.again().collect());
}

/// The database failed: later, if that may help; if not, the guilty one is looked for.
async fn fail(shared: &Arc<Shared>, entries: Vec<Entry>, e: &Error) {
    let passing = e.is_transient() || matches!(e.fault(), Some(Fault::Unique | Fault::NoTable));
    let several = entries.len() > 1;
    for entry in &entries {
        shared.sagas.journals.forget(&entry.id);
    }
    if passing {
        tracing::warn!(error = %e, "journals of sagas could not be written yet; trying again");
        shared.sagas.journals.put_back(entries.into_iter().flat_map(Entry::again).collect());
        pause(Duration::from_millis(100)).await;
    } else if several {
        for entry in entries {
            Box::pin(flush(shared, entry.again().collect())).await;
        }
    } else {
        tracing::error!(error = %e, "the journal of a saga cannot be written");
        let all = entries.into_iter().flat_map(|entry| entry.asked);
        all.for_each(|asked| _ = asked.answer.send(Err(e.echo())));
    }
}

/// What makes two starts the same.
pub(super) fn input_hash(name: &str, input: &Value) -> KeyHash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(name.as_bytes()).update(b"\0");
    crate::new_task::hash_canonical(input, &mut hasher);
    let mut hash = [0; 16];
    hash.copy_from_slice(hasher.finalize().as_bytes().first_chunk::<16>().unwrap_or(&[0; 16]));
    KeyHash(hash)
}
