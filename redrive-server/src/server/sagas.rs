//! Sagas: starting them, looking at them, telling them something, and what people do about one.

use std::collections::BTreeSet;

use axum::Json as Shows;
use axum::extract::State;
use axum::http::StatusCode;
use redrive::saga::{Definition, Event, Op, SagaState, StartedSaga, StepDef, StepKind, StepView, Work};
use redrive::store::{AuditEntry, Role, SagaFilter, SagaRecord, SagaSummary, TaskFilter};
use redrive::{Engine, Error, Problems, Result, Status, Task, Timestamp, unbroken};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::auth::{Caller, Operator, Viewer};
use super::input::{Asked, Json, Names, page};
use super::problem::{Answer, Problem};
use super::shapes::{SagaShape, SagaStateShape};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(start))
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(signal))
        .routes(routes!(act))
}

/// A saga to be started.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewSaga {
    /// Its id, the caller's: who starts it again with the same input is given what is there.
    #[schema(min_length = 1, max_length = 100)]
    id: String,
    /// What it is about; steps reach it as `{{input.…}}`.
    #[serde(default)]
    #[schema(value_type = Value)]
    input: Value,
    /// What it consists of.
    #[schema(value_type = SagaShape)]
    saga: Value,
}

#[derive(Debug, Serialize, ToSchema)]
struct StartedShown {
    id: String,
    /// Whether it was there already, with the same input.
    existed: bool,
}

/// Start a saga
///
/// When this answers it is durable. With an id that is taken by the same saga and input, that one is answered (200); with another
/// input it is a conflict.
#[utoipa::path(post, path = "/sagas", tag = "sagas", request_body = NewSaga,
    responses((status = 201, body = StartedShown), (status = 200, body = StartedShown, description = "It was there already.")))]
async fn start(
    State(app): State<App>,
    Operator(who): Operator,
    Json(new): Json<NewSaga>,
) -> Answer<(StatusCode, Shows<StartedShown>)> {
    let definition = crate::saga::definition(new.saga, &new.input, app.delivery()?)?;
    let started = unbroken(started(app, who, definition, new.id, new.input)).await?;
    let status = if started.existed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Shows(StartedShown { id: started.id, existed: started.existed })))
}

/// Starts it and notes who did.
async fn started(app: App, who: Caller, definition: Definition, id: String, input: Value) -> Answer<StartedSaga> {
    let started = app.engine()?.sagas().start_with(definition, &id, input).await?;
    if !started.existed {
        note_start(&app, &who.name, &started.id).await;
    }
    Ok(started)
}

/// The audit knows who started it. It is started: that this could not be written down is no reason to say otherwise.
async fn note_start(app: &App, who: &str, id: &str) {
    if let Err(e) = app.store.audit(&AuditEntry::new(who, "saga.start", id), app.clock.now()).await {
        tracing::warn!(error = %e, who, saga = id, "who started a saga could not be written to the audit");
    }
}

/// Which sagas.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct OfSagas {
    #[param(value_type = Option<SagaStateShape>, inline)]
    pub(crate) state: Option<SagaState>,
    pub(crate) name: Option<String>,
    /// Those whose id begins so.
    pub(crate) id_prefix: Option<String>,
    /// Go on after this: `next` of the page before.
    pub(crate) after: Option<String>,
    /// Most entries of a page, up to 1,000. Default: 100.
    #[param(minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<u32>,
}

impl OfSagas {
    fn filter(&self) -> Result<SagaFilter> {
        let after = self.after.as_deref().map(|after| {
            let (time, id) = after.split_once(' ').unwrap_or_default();
            let wrong = || Error::invalid("after", "must be `next` of the page before");
            time.parse::<i64>().map(|ms| (Timestamp::from_millis(ms), id.to_owned())).map_err(|_| wrong())
        });
        let (name, id_prefix) = (self.name.clone(), self.id_prefix.clone());
        let last = after.as_ref().and_then(|after| after.as_ref().ok()).map(|(_, id)| id.clone());
        if [&name, &id_prefix, &last].iter().any(|text| text.as_ref().is_some_and(|text| text.contains('\0'))) {
            return Err(Error::invalid("name", "must have no NUL"));
        }
        Ok(SagaFilter { state: self.state, name, id_prefix, after: after.transpose()? })
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SagasShown {
    /// The latest first.
    #[schema(value_type = Vec<SagaGlance>)]
    pub(crate) sagas: Vec<SagaSummary>,
    /// There may be more: ask again with this as `after`.
    pub(crate) next: Option<String>,
}

/// A saga at a glance.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "it is read by the derive")]
struct SagaGlance {
    id: String,
    name: String,
    #[schema(value_type = SagaStateShape)]
    state: SagaState,
    /// How many events its journal has.
    seq: i64,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Since when it has been in its state.
    #[schema(value_type = String, format = DateTime)]
    since: Timestamp,
    /// When it goes on by itself, if it waits for a time; or its deadline, if that comes first.
    #[schema(value_type = Option<String>, format = DateTime)]
    look_at: Option<Timestamp>,
}

/// List sagas
#[utoipa::path(get, path = "/sagas", tag = "sagas", params(OfSagas), responses((status = 200, body = SagasShown)))]
async fn list(State(app): State<App>, Viewer(_): Viewer, Asked(asked): Asked<OfSagas>) -> Answer<Shows<SagasShown>> {
    let limit = page(asked.limit)?;
    Ok(Shows(found(&app, &asked, limit).await?))
}

/// A page of them.
pub(crate) async fn found(app: &App, asked: &OfSagas, limit: u32) -> Answer<SagasShown> {
    let sagas = app.store.sagas(&asked.filter()?, limit).await?;
    let at = |saga: &SagaSummary| if asked.state.is_some() { saga.since } else { saga.created_at };
    let next = sagas.last().filter(|_| sagas.len() == limit as usize);
    let next = next.map(|saga| format!("{} {}", at(saga).as_millis(), saga.id));
    Ok(SagasShown { sagas, next })
}

/// A saga with all that is known of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SagaShown {
    #[serde(flatten)]
    #[schema(value_type = SagaGlance)]
    pub(crate) summary: SagaSummary,
    /// What it is about: what it was started with, or what a person gave it since; for viewers `"***"`.
    #[schema(value_type = Value)]
    pub(crate) input: Value,
    /// What it was started with, if it was given another input since; for viewers `"***"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    started_with: Option<Value>,
    /// When it goes back unless it is done by then, if it has a deadline that counts.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) deadline: Option<Timestamp>,
    /// Its steps and how they stand, in the order of the definition.
    pub(crate) steps: Vec<StepShown>,
    /// What has happened to it.
    #[schema(value_type = Vec<Object>)]
    journal: Vec<Value>,
    /// What it consists of; for viewers without its requests.
    #[schema(value_type = Object)]
    definition: Value,
}

/// A step of a saga.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct StepShown {
    pub(crate) name: String,
    pub(crate) after: Vec<String>,
    /// `call`, `reserve`, `sleep` or `wait_for`.
    pub(crate) kind: &'static str,
    pub(crate) pivot: bool,
    /// Of its tasks.
    #[serde(skip)]
    method: String,
    /// `pending`, `running`, `done`, `refused`, `unknown`, `skipped`, `confirming`, `confirmed`, `undoing`, `undone` or `undo_failed`.
    pub(crate) state: &'static str,
    /// Which time the saga comes past it, from 1.
    pub(crate) round: u32,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) started_at: Option<Timestamp>,
    /// When it came to its state.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) changed_at: Option<Timestamp>,
    /// Why it failed; of one that is under way, its last attempt.
    pub(crate) error: Option<String>,
    /// Of one that is under way: how many attempts at it have failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempts: Option<u32>,
    /// Of one that is under way and waits for its next attempt: when that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) next_at: Option<Timestamp>,
    /// What came of it; for viewers `"***"`.
    #[schema(value_type = Value)]
    pub(crate) output: Value,
}

/// Show a saga
///
/// With its steps and its journal.
#[utoipa::path(get, path = "/sagas/{id}", tag = "sagas", params(("id" = String, Path)), responses((status = 200, body = SagaShown)))]
async fn show(State(app): State<App>, Viewer(who): Viewer, Names([id]): Names<1>) -> Answer<Shows<SagaShown>> {
    Ok(Shows(standing(&app, &id, &who).await?))
}

/// A saga as it stands now.
async fn standing(app: &App, id: &str, who: &Caller) -> Answer<SagaShown> {
    let record = app.store.saga(id).await?.ok_or_else(|| Problem::not_found("saga", id))?;
    let mut saga = shown(record, who)?;
    add_attempts(app, &mut saga).await?;
    Ok(saga)
}

/// Tasks of a method that are looked at: each step that is under way has one, and perhaps one that is about to be stopped.
const MOST_TASKS: u32 = 200;

/// What is read of the params of a step's task.
#[derive(Deserialize)]
struct StepTask {
    saga: String,
    #[serde(flatten)]
    work: Work,
}

/// How the attempts at what is under way stand. That is with its tasks; the journal has only what came of them. A service may have
/// tasks about the same business: what is not of a step's method is not read.
pub(crate) async fn add_attempts(app: &App, saga: &mut SagaShown) -> Result<()> {
    if saga.summary.state.is_final() {
        return Ok(());
    }
    let has_task = |step: &&StepShown| {
        matches!(step.state, "running" | "undoing" | "confirming") && matches!(step.kind, "call" | "reserve")
    };
    let methods: BTreeSet<String> = saga.steps.iter().filter(has_task).map(|step| step.method.clone()).collect();
    for method in methods {
        let of_saga = TaskFilter {
            business_type: Some("saga".into()),
            business_id: Some(saga.summary.id.clone()),
            method: Some(method),
            ..TaskFilter::default()
        };
        let found = app.store.search(&of_saga, MOST_TASKS).await?;
        found.items.into_iter().for_each(|task| add_attempts_of(task, saga));
    }
    Ok(())
}

/// The newest task of a step comes first, and counts.
fn add_attempts_of(task: Task, saga: &mut SagaShown) {
    let Ok(StepTask { saga: id, work }) = serde_json::from_str(&task.params) else { return };
    if id != saga.summary.id {
        return;
    }
    let state = match work.op {
        Op::Run => "running",
        Op::Undo => "undoing",
        Op::Confirm => "confirming",
    };
    let is_its = |step: &&mut StepShown| {
        let named = work.step.as_ref() == Some(&step.name) && step.round == work.round && step.method == task.method;
        named && step.state == state && step.attempts.is_none()
    };
    if let Some(step) = saga.steps.iter_mut().find(is_its) {
        step.attempts = Some(task.attempts);
        step.next_at = (task.status == Status::Pending).then_some(task.due);
        step.error = task.last_error.map(|error| error.message);
    }
}

/// What viewers do not see, in a step's definition or in an event of the journal.
const HIDDEN: [&str; 7] = ["spec", "part", "undo_part", "confirm_part", "output", "payload", "input"];

pub(crate) fn shown(record: SagaRecord, who: &Caller) -> Answer<SagaShown> {
    let (steps, deadline) = (steps(&record), record.deadline());
    let edited = record.journal.iter().rev().find_map(|journaled| match &journaled.event {
        Event::Input { input, .. } => Some(input.clone()),
        _ => None,
    });
    let (input, started_with) = match edited {
        Some(input) => (input, Some(record.input)),
        None => (record.input, None),
    };
    let plain = |e: serde_json::Error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", e.to_string());
    let mut saga = SagaShown {
        steps,
        journal: record.journal.iter().map(serde_json::to_value).collect::<Result<_, _>>().map_err(plain)?,
        definition: serde_json::to_value(&record.definition).map_err(plain)?,
        summary: record.summary,
        input,
        started_with,
        deadline,
    };
    if who.role == Role::Viewer {
        let hidden = || json!("***");
        saga.input = hidden();
        saga.started_with = saga.started_with.map(|_| hidden());
        saga.steps.iter_mut().filter(|step| !step.output.is_null()).for_each(|step| step.output = hidden());
        let steps = saga.definition.get_mut("steps").and_then(Value::as_array_mut);
        let whole = |value: &mut Value| {
            HIDDEN.iter().for_each(|name| {
                value.get_mut(*name).into_iter().for_each(|value| *value = hidden());
            });
        };
        steps.into_iter().flatten().for_each(whole);
        saga.definition.get_mut("compensate_with").into_iter().for_each(whole);
        saga.journal.iter_mut().for_each(whole);
    }
    Ok(saga)
}

/// How the steps stand, by the journal.
fn steps(record: &SagaRecord) -> Vec<StepShown> {
    let definition = &record.definition;
    let all = definition.steps.iter().zip(record.steps());
    all.map(|(def, view)| step_shown(def, definition.method_of(def), view)).collect()
}

fn step_shown(def: &StepDef, method: String, view: StepView) -> StepShown {
    StepShown {
        method,
        name: view.name.clone(),
        after: def.after.clone(),
        kind: match def.kind {
            StepKind::Call => "call",
            StepKind::Reserve { .. } => "reserve",
            StepKind::Sleep { .. } => "sleep",
            StepKind::WaitFor { .. } => "wait_for",
        },
        pivot: def.pivot,
        state: word(&view),
        round: view.round,
        started_at: view.started_at,
        changed_at: view.changed_at,
        error: view.error,
        attempts: None,
        next_at: None,
        output: view.output.unwrap_or_default(),
    }
}

/// How far a step is, in one word: the last that was done about it counts.
fn word(view: &StepView) -> &'static str {
    match (view.undo, view.confirm, view.run) {
        ("started", ..) => "undoing",
        ("done", ..) => "undone",
        ("refused" | "unknown", ..) => "undo_failed",
        ("skipped", ..) => "skipped",
        (_, "started", _) => "confirming",
        (_, "done", _) => "confirmed",
        (_, failed @ ("refused" | "unknown" | "skipped"), _) => failed,
        (.., "idle") => "pending",
        (.., "started") => "running",
        (.., run) => run,
    }
}

/// What a saga is told.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Signalled {
    /// What its step waits for.
    signal: String,
    #[serde(default)]
    #[schema(value_type = Value)]
    payload: Value,
    /// What makes it the same as one that was sent before, which then counts once. Default: what is sent twice is heard twice.
    #[schema(min_length = 1, max_length = 255)]
    key: Option<String>,
}

/// Tell a saga something
///
/// What a step of it waits for, now or later; the payload is that step's output. With a key it can be sent again, also when the saga has
/// ended meanwhile: the same payload counts once, another one is a conflict.
#[utoipa::path(post, path = "/sagas/{id}/signals", tag = "sagas", params(("id" = String, Path)), request_body = Signalled,
    responses((status = 204, description = "It has heard.")))]
async fn signal(
    State(app): State<App>,
    Operator(who): Operator,
    Names([id]): Names<1>,
    Json(told): Json<Signalled>,
) -> Answer<StatusCode> {
    let (sagas, by) = (app.engine()?.sagas(), Some(&*who.name));
    match &told.key {
        Some(key) => sagas.signal_once(&id, key, &told.signal, &told.payload, by).await.map(|_| ())?,
        None => sagas.signal(&id, &told.signal, &told.payload, by).await?,
    }
    Ok(StatusCode::NO_CONTENT)
}

/// What people can do about a saga.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Action {
    /// Try now what waits to be tried again, and again what was given up.
    Retry,
    /// Leave out what is under way, or has failed, of `step`. An undo that is left out is a gap.
    Skip,
    /// Say that what is under way, or has failed, of `step` is done, with `output`.
    Resolve,
    /// Give it another `input`, for all attempts to come.
    EditInput,
    /// Let it go on instead of back. If it is not known whether a step was undone, with `undone`.
    Forward,
    /// Undo it.
    Cancel,
    /// End it as it is: nothing is undone.
    Kill,
}

/// What is to be done.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Act {
    pub(crate) action: Action,
    /// For `skip` and `resolve`.
    pub(crate) step: Option<String>,
    /// For `resolve`.
    #[serde(default)]
    #[schema(value_type = Value)]
    pub(crate) output: Value,
    /// For `edit_input`.
    #[schema(value_type = Option<Value>)]
    pub(crate) input: Option<Value>,
    /// For `forward`: whether those steps were undone whose undo was given up without anybody knowing. What was undone is done again.
    pub(crate) undone: Option<bool>,
    /// Why, for the audit.
    #[schema(max_length = 1000)]
    pub(crate) note: Option<String>,
}

/// As the document of the API says.
const LONGEST_NOTE: usize = 1_000;

impl Act {
    /// Whether it is all there.
    pub(super) fn check(&self) -> Result<()> {
        let note = self.note.as_ref().map_or(0, |note| note.chars().count());
        let needs_step = matches!(self.action, Action::Skip | Action::Resolve);
        let mut problems = Problems::default();
        problems.require(note <= LONGEST_NOTE, "note", || format!("must be of {LONGEST_NOTE} characters at the most"));
        problems.require(self.step.is_some() || !needs_step, "step", || "must be given".into());
        let needs_input = self.action == Action::EditInput;
        problems.require(self.input.is_some() || !needs_input, "input", || "must be given".into());
        problems.into_result()
    }

    pub(crate) async fn on(&self, engine: &Engine, id: &str, by: &str) -> Result<()> {
        self.check()?;
        let (sagas, by, note) = (engine.sagas(), Some(by), self.note.as_deref());
        let step = self.step.as_deref().unwrap_or_default();
        match self.action {
            Action::Retry => sagas.retry_now(id, by, note).await.map(|_| ()),
            Action::Skip => sagas.skip(id, step, by, note).await,
            Action::Resolve => sagas.resolve(id, step, self.output.clone(), by, note).await,
            Action::EditInput => {
                let input = self.input.clone().unwrap_or_default();
                // What its templates reach for must be there, as at its start.
                let saga = sagas.get(id).await?;
                saga.map_or(Ok(()), |saga| crate::saga::check_input(&saga.definition, &input))?;
                sagas.edit_input(id, input, by, note).await
            }
            Action::Forward => sagas.forward(id, self.undone, by, note).await,
            Action::Cancel => sagas.cancel(id, by, note).await,
            Action::Kill => sagas.kill(id, by, note).await,
        }
    }
}

/// Act on a saga
#[utoipa::path(post, path = "/sagas/{id}/actions", tag = "sagas", params(("id" = String, Path)), request_body = Act,
    responses((status = 200, body = SagaShown)))]
async fn act(
    State(app): State<App>,
    Operator(who): Operator,
    Names([id]): Names<1>,
    Json(act): Json<Act>,
) -> Answer<Shows<SagaShown>> {
    act.on(app.engine()?, &id, &who.name).await?;
    Ok(Shows(standing(&app, &id, &who).await?))
}
