//! Sagas, as an application and its people see them: starting, telling, looking, and what a person can do about one.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;

use crate::clock::pause;
use crate::error::{Error, Result};
use crate::id::TaskId;
use crate::saga::{Definition, Event, Flow, SagaState, State, Why, Work};
use crate::store::{AuditEntry, Begins, Connection, DeadFilter, SagaFilter, SagaRecord, SagaSummary, TaskFilter};
use crate::task::{Status, Task, limits};
use crate::unbroken::unbroken;

use crate::engine::Engine;

use super::tell::{Beginning, Outcome, Tell, Wish, input_hash, same_start};
use super::{BUSINESS, DEEPEST, StepParams, depth};

/// How long a failed task may take to become a dead letter, before it is taken for one that runs again.
const LETTER_WAIT: Duration = Duration::from_millis(20);
const LETTER_TRIES: u32 = 100;

/// Who acts, if nobody is named.
const PROGRAM: &str = "program";

impl Engine {
    /// The sagas of this engine's store.
    pub fn sagas(&self) -> Sagas<'_> {
        Sagas(self)
    }
}

/// What can be done with sagas: see [`saga`](crate::saga).
///
/// People's actions take who acts, and what they say about it; both are in the audit, written with the action itself.
#[derive(Clone, Copy, Debug)]
pub struct Sagas<'e>(&'e Engine);

/// The answer to a start: durable, under this id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StartedSaga {
    /// Its id.
    pub id: String,
    /// Whether it was there already, with the same input.
    pub existed: bool,
}

impl Sagas<'_> {
    /// Starts a saga that this engine [was given](crate::Builder::saga). The id is the caller's: whoever starts it again with the same
    /// input is given what is there, with another input it is a conflict.
    pub async fn start(&self, name: &str, id: &str, input: &(impl Serialize + ?Sized)) -> Result<StartedSaga> {
        let beginning = self.named(name, id, written("input", input)?)?;
        self.begin(id, beginning).await
    }

    /// Starts a saga by its definition. Some node must run the methods of its steps.
    pub async fn start_with(&self, definition: Definition, id: &str, input: Value) -> Result<StartedSaga> {
        let beginning = self.defined(definition, id, input)?;
        self.begin(id, beginning).await
    }

    /// The same as [`start`](Self::start) in the caller's own transaction: the saga is there, and begins, if and when that commits. Nothing
    /// is repeated in there. Call [`wake`](Engine::wake) after the commit for it to begin at once.
    pub async fn start_in(
        &self,
        connection: impl Into<Connection<'_>>,
        name: &str,
        id: &str,
        input: &(impl Serialize + ?Sized),
    ) -> Result<StartedSaga> {
        let beginning = self.named(name, id, written("input", input)?)?;
        self.begin_in(connection.into(), id, beginning).await
    }

    /// The same as [`start_with`](Self::start_with), likewise.
    pub async fn start_with_in(
        &self,
        connection: impl Into<Connection<'_>>,
        definition: Definition,
        id: &str,
        input: Value,
    ) -> Result<StartedSaga> {
        let beginning = self.defined(definition, id, input)?;
        self.begin_in(connection.into(), id, beginning).await
    }

    fn named(&self, name: &str, id: &str, input: Value) -> Result<Beginning> {
        let registered = self.0.0.sagas.named.get(name);
        let (flow, json) = registered.ok_or_else(|| Error::NotFound { what: "saga named", id: name.to_owned() })?;
        self.beginning(flow.clone(), json.clone(), id, input)
    }

    fn defined(&self, definition: Definition, id: &str, input: Value) -> Result<Beginning> {
        let json = self.sized("definition", &written("definition", &definition)?)?;
        let flow = self.0.0.sagas.journals.memory.flow(definition)?;
        self.beginning(flow, json, id, input)
    }

    fn beginning(&self, flow: Arc<Flow>, definition: String, id: &str, input: Value) -> Result<Beginning> {
        if !is_id(id) {
            return Err(Error::invalid(
                "id",
                format!("must be of 1 to {} bytes, without NUL or a space at its end", limits::BUSINESS_ID),
            ));
        }
        let text = self.sized("input", &input)?;
        let name = flow.definition.name.clone();
        let begins = Begins { input_hash: input_hash(&name, &input), name, definition, input: text };
        Ok(Beginning { flow, input: Arc::new(input), begins })
    }

    async fn begin(&self, id: &str, beginning: Beginning) -> Result<StartedSaga> {
        let answer = self.tell(id, Tell::Begin(beginning)).await?;
        Ok(StartedSaga { id: id.to_owned(), existed: !answer.1 })
    }

    /// What it begins with is written, and not begun: whether there will be a commit is not known.
    async fn begin_in(&self, mut c: Connection<'_>, id: &str, beginning: Beginning) -> Result<StartedSaga> {
        let (shared, now) = (&self.0.0, self.0.now());
        let wanted = beginning.begins.input_hash;
        let tell = Tell::Begin(beginning);
        let outcome = Outcome::of_telling(id, None, [&tell].into_iter(), now).ok_or_else(|| not_found(id))?;
        let append = shared.append_of(id, &outcome, now)?;
        if let Some(there) = shared.store.begin_saga_in(&mut c, &append, now).await? {
            same_start(id, there, wanted)?;
            return Ok(StartedSaga { id: id.to_owned(), existed: true });
        }
        shared.look_at(id, None, append.look_at); // if it is never committed, there will be nothing to look at
        Ok(StartedSaga { id: id.to_owned(), existed: false })
    }

    /// A saga with its journal.
    pub async fn get(&self, id: &str) -> Result<Option<SagaRecord>> {
        if is_id(id) { self.0.store().saga(id).await } else { Ok(None) }
    }

    /// Sagas at a glance, the latest first, one page at a time.
    pub async fn list(&self, filter: &SagaFilter, limit: u32) -> Result<Vec<SagaSummary>> {
        self.0.store().sagas(filter, limit).await
    }

    /// Waits until a saga has ended, on whichever node.
    pub async fn ended(&self, id: &str) -> Result<SagaSummary> {
        self.until(id, SagaState::is_final).await
    }

    /// Waits until a saga stands so.
    pub async fn until(&self, id: &str, stands: impl Fn(SagaState) -> bool) -> Result<SagaSummary> {
        let mut events = self.0.events();
        loop {
            let saga = self.get(id).await?.ok_or_else(|| not_found(id))?.summary;
            if stands(saga.state) {
                return Ok(saga);
            }
            // This node tells of its own; what other nodes do is looked for.
            let told = async {
                loop {
                    match events.recv().await {
                        Ok(crate::engine::Event::Saga { id: about, .. }) if about == id => return,
                        Err(RecvError::Lagged(_)) => return,
                        Err(RecvError::Closed) => std::future::pending().await,
                        Ok(_) => {}
                    }
                }
            };
            _ = tokio::time::timeout(Duration::from_millis(250), told).await;
        }
    }

    /// Tells a saga something that a step of it waits for, now or later. What is said twice is heard twice. If somebody is named, it is
    /// in the audit: what it was called, not what was said.
    pub async fn signal(
        &self,
        id: &str,
        signal: &str,
        payload: &(impl Serialize + ?Sized),
        by: Option<&str>,
    ) -> Result<()> {
        self.send(id, None, signal, written("payload", payload)?, by).await.map(|_| ())
    }

    /// The same under a key, for whoever may have to repeat it: said again with the same payload it counts once, also when the saga has
    /// ended since; with another payload, or as another signal, it is a conflict. Whether it was new.
    pub async fn signal_once(
        &self,
        id: &str,
        key: &str,
        signal: &str,
        payload: &(impl Serialize + ?Sized),
        by: Option<&str>,
    ) -> Result<bool> {
        if !(1..=limits::KEY).contains(&key.len()) || key.contains('\0') {
            return Err(Error::invalid("key", format!("must be of 1 to {} bytes, without NUL", limits::KEY)));
        }
        self.send(id, Some(key), signal, written("payload", payload)?, by).await
    }

    async fn send(&self, id: &str, key: Option<&str>, signal: &str, payload: Value, by: Option<&str>) -> Result<bool> {
        let bytes = self.sized("payload", &payload)?.len();
        let audit = by.map(|by| {
            let after = json!({ "signal": signal, "payload_bytes": bytes, "key": key });
            entry("saga.signal", id, Some(after), Some(by), None)
        });
        let key = key.map_or_else(own_key, |key| Ok(key.to_owned()))?;
        let event = Event::Signal { name: signal.to_owned(), payload, by: by.map(str::to_owned), key: Some(key) };
        self.tell(id, Tell::Wish(Wish::Event(event), audit)).await.map(|answer| answer.1)
    }

    /// Undoes a saga: nothing new is begun, what is under way is stopped, what was done is undone. A conflict if it is past its point of no
    /// return.
    pub async fn cancel(&self, id: &str, by: Option<&str>, note: Option<&str>) -> Result<()> {
        let why = Why::Asked { by: by.unwrap_or(PROGRAM).to_owned(), note: note.map(str::to_owned) };
        let wish = Wish::Event(Event::Rollback { why, to: None });
        self.act(id, wish, "saga.cancel", None, by, note).await
    }

    /// Ends a saga as it is: nothing is undone.
    pub async fn kill(&self, id: &str, by: Option<&str>, note: Option<&str>) -> Result<()> {
        let by_name = Some(by.unwrap_or(PROGRAM).to_owned());
        let wish = Wish::Event(Event::Ended { state: SagaState::Killed, by: by_name });
        self.act(id, wish, "saga.kill", None, by, note).await
    }

    /// Leaves out what is under way, or has failed, of a step. A run that is left out counts as done without an effect; an undo that is
    /// left out is a gap.
    pub async fn skip(&self, id: &str, step: &str, by: Option<&str>, note: Option<&str>) -> Result<()> {
        let wish = Wish::Skip { step: step.to_owned(), by: by.unwrap_or(PROGRAM).to_owned() };
        self.act(id, wish, "saga.skip", Some(json!({ "step": step })), by, note).await
    }

    /// Says that what is under way, or has failed, of a step is done, with this result.
    pub async fn resolve(
        &self,
        id: &str,
        step: &str,
        output: Value,
        by: Option<&str>,
        note: Option<&str>,
    ) -> Result<()> {
        self.sized("output", &output)?;
        let wish = Wish::Resolve { step: step.to_owned(), output, by: by.unwrap_or(PROGRAM).to_owned() };
        self.act(id, wish, "saga.resolve", Some(json!({ "step": step })), by, note).await
    }

    /// Gives a saga another input, for all attempts to come. What makes a start the same is still the first one.
    pub async fn edit_input(&self, id: &str, input: Value, by: Option<&str>, note: Option<&str>) -> Result<()> {
        self.sized("input", &input)?;
        let wish = Wish::Event(Event::Input { input, by: by.unwrap_or(PROGRAM).to_owned() });
        self.act(id, wish, "saga.edit_input", None, by, note).await
    }

    /// Lets a saga go on that was going back, or has failed: what had failed is tried again, what was undone is done again. `undone` says
    /// whether those steps were undone whose undo was given up without anybody knowing; if there are such and it says nothing, that
    /// is a conflict.
    pub async fn forward(&self, id: &str, undone: Option<bool>, by: Option<&str>, note: Option<&str>) -> Result<()> {
        let wish = Wish::Forward { undone, by: by.unwrap_or(PROGRAM).to_owned() };
        let said = undone.map(|undone| json!({ "undone": undone }));
        self.act(id, wish, "saga.forward", said, by, note).await
    }

    /// Tries now what waits to be tried again, and again what was given up; how many tasks that are. These are several transactions, of
    /// which the last one writes the audit: once begun it goes on, also if nobody waits for it any more.
    pub async fn retry_now(&self, id: &str, by: Option<&str>, note: Option<&str>) -> Result<usize> {
        let (engine, id) = (self.0.clone(), id.to_owned());
        let (by, note) = (by.map(str::to_owned), note.map(str::to_owned));
        unbroken(async move { Sagas(&engine).retry_all(&id, by.as_deref(), note.as_deref()).await }).await
    }

    async fn retry_all(&self, id: &str, by: Option<&str>, note: Option<&str>) -> Result<usize> {
        if !is_id(id) {
            return Err(not_found(id));
        }
        let (store, mut tried) = (self.0.store(), 0);
        let audit = |after: Value| entry("saga.retry", id, Some(after), by, note);
        let retried = match self.retry_tasks(id, by.unwrap_or(PROGRAM), &mut tried).await {
            Err(e) => Err(e),
            Ok(again) if again.is_empty() => {
                store.audit(&audit(json!({ "tasks": tried })), self.0.now()).await.map(|_| ())
            }
            Ok(again) => {
                tried += again.len();
                let wish = Tell::Wish(Wish::Again(again), Some(audit(json!({ "tasks": tried }))));
                self.tell(id, wish).await.map(|_| ())
            }
        };
        if let (Err(e), true) = (&retried, tried > 0) {
            // What was done is in the audit, whatever was not.
            store.audit(&audit(json!({ "tasks": tried, "error": e.to_string() })), self.0.now()).await?;
        }
        self.0.wake();
        retried.map(|()| tried)
    }

    /// Tries its tasks now, and brings its letters back; counts them, and gives what has failed and has neither.
    async fn retry_tasks(&self, id: &str, who: &str, tried: &mut usize) -> Result<Vec<Work>> {
        let (store, now) = (self.0.store(), self.0.now());
        let (state, tasks) = self.after_failing(id).await?;
        let wanted = |task: &Task| Some(step_of(task)?.work).filter(|work| state.wants(work));
        let mut covered = Vec::new();
        for task in &tasks {
            covered.extend(wanted(task));
            let waits = wanted(task).is_some() && task.status == Status::Pending;
            *tried += usize::from(waits && store.retry_now(task.id, Some(who), now).await.is_ok());
        }
        let letters = self.letters(id).await?;
        let mut ids: Vec<TaskId> = Vec::new();
        for (letter, work) in letters.iter().filter_map(|letter| Some((letter, wanted(letter)?))) {
            if !covered.contains(&work) {
                covered.push(work);
                ids.push(letter.id);
            }
        }
        *tried += store.redrive(&ids, None, who, now).await?.len();
        Ok(state.stuck_work().into_iter().filter(|work| !covered.contains(work)).collect())
    }

    /// A saga and its tasks. One whose failure is in the journal, but which has not become a dead letter yet, is waited for.
    async fn after_failing(&self, id: &str) -> Result<(Arc<State>, Vec<Task>)> {
        let shared = &self.0.0;
        for tries in 0.. {
            let tasks = shared.saga_tasks(id).await?;
            let state =
                shared.sagas.journals.memory.get(&shared.store, id, true).await?.ok_or_else(|| not_found(id))?;
            if let Some(end) = state.ended {
                return Err(Error::Conflict {
                    doing: "retry saga",
                    id: id.into(),
                    why: format!("it has ended: {end}"),
                });
            }
            let stuck = state.stuck_work();
            let is_failing =
                |task: &Task| task.status == Status::Running && step_of(task).is_some_and(|p| stuck.contains(&p.work));
            if tries >= LETTER_TRIES || !tasks.iter().any(is_failing) {
                return Ok((state, tasks));
            }
            pause(LETTER_WAIT).await;
        }
        Err(not_found(id))
    }

    /// The dead letters of a saga.
    async fn letters(&self, id: &str) -> Result<Vec<Task>> {
        let found = self.0.store().dead(&DeadFilter::from(of_saga(id)), 1_000).await?;
        Ok(found.into_iter().map(|letter| letter.task).collect())
    }

    async fn act(
        &self,
        id: &str,
        wish: Wish,
        action: &str,
        after: Option<Value>,
        by: Option<&str>,
        note: Option<&str>,
    ) -> Result<()> {
        let entry = entry(action, id, after, by, note);
        self.tell(id, Tell::Wish(wish, Some(entry))).await.map(|_| ())
    }

    async fn tell(&self, id: &str, tell: Tell) -> Result<(Arc<State>, bool)> {
        if !is_id(id) {
            return Err(not_found(id)); // it is not asked for: PostgreSQL refuses a NUL
        }
        let answer = self.0.0.sagas.journals.tell(id, tell).await?;
        Ok((answer.state, answer.is_new))
    }

    /// A value as JSON text, if that is not too long, and can be read again.
    fn sized(&self, what: &str, value: &Value) -> Result<String> {
        if depth(value) > DEEPEST {
            return Err(Error::invalid(what, format!("is nested deeper than {DEEPEST}")));
        }
        let (text, most) = (value.to_string(), self.0.store().max_params());
        if text.len() > most {
            return Err(Error::invalid(what, format!("is {} bytes, the limit is {most}", text.len())));
        }
        Ok(text)
    }
}

fn entry(action: &str, id: &str, after: Option<Value>, by: Option<&str>, note: Option<&str>) -> AuditEntry {
    AuditEntry::new(by.unwrap_or(PROGRAM), action, id).changed(None, after).noting(note)
}

/// A key for a signal that came without one: by it we know our own again, if the answer to its commit was lost and somebody else has
/// written to the saga since.
fn own_key() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| Error::invalid("key", "the system gives no random numbers"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether a saga can have this id. MySQL takes `a` and `a ` for the same.
fn is_id(id: &str) -> bool {
    (1..=limits::BUSINESS_ID).contains(&id.len()) && !id.contains('\0') && !id.ends_with(' ')
}

/// The tasks or dead letters of a saga.
pub(super) fn of_saga(id: &str) -> TaskFilter {
    TaskFilter { business_type: Some(BUSINESS.into()), business_id: Some(id.to_owned()), ..TaskFilter::default() }
}

fn step_of(task: &Task) -> Option<StepParams> {
    serde_json::from_str(&task.params).ok()
}

fn not_found(id: &str) -> Error {
    Error::NotFound { what: "saga", id: id.to_owned() }
}

fn written(what: &str, value: &(impl Serialize + ?Sized)) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::invalid(what, format!("cannot be written as JSON: {e}")))
}

/// For engines that are told when to run.
impl Engine {
    /// Looks at the sagas whose time has come.
    pub(crate) async fn look_at_sagas_by_hand(&self) -> Result<usize> {
        self.0.look_at_due_sagas(self.now()).await
    }
}
