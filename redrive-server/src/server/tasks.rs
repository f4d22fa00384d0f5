//! Tasks that wait or run.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post, put};
use redrive::store::{Cancelled, Role, TaskFilter};
use redrive::{CallError, IntoTask, NewTask, OnDuplicate, Policy, PolicyPatch, Status, Task, TaskId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::http::{HttpCall, HttpRequest};

use super::App;
use super::auth::{Caller, Operator, Viewer};
use super::input::{Asked, Id, Json, page};
use super::problem::{Answer, Problem};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/tasks", get(list).post(enqueue))
        .route("/tasks/{id}", get(show))
        .route("/tasks/{id}/cancel", post(cancel))
        .route("/tasks/{id}/fail", post(fail))
        .route("/tasks/{id}/retry", post(retry))
        .route("/tasks/{id}/policy", put(edit_policy))
}

/// Which tasks, and which page of them.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Filter {
    status: Option<Status>,
    method: Option<String>,
    key: Option<String>,
    business_type: Option<String>,
    business_id: Option<String>,
    error_kind: Option<String>,
    created_from: Option<Timestamp>,
    created_before: Option<Timestamp>,
    /// The last id of the page before.
    after: Option<TaskId>,
    limit: Option<u32>,
}

impl Filter {
    pub(super) fn read(self) -> Answer<(TaskFilter, u32)> {
        let limit = page(self.limit)?;
        let filter = TaskFilter {
            status: self.status,
            method: self.method,
            key: self.key,
            business_type: self.business_type,
            business_id: self.business_id,
            error_kind: self.error_kind,
            created_from: self.created_from,
            created_before: self.created_before,
            after: self.after,
            ..TaskFilter::default()
        };
        Ok((filter, limit))
    }
}

/// A task, as the API shows it. The names of fields are those of the table.
#[derive(Debug, Serialize)]
pub(super) struct Shown<'t> {
    id: TaskId,
    status: Status,
    #[serde(rename = "method_name")]
    method: &'t str,
    #[serde(rename = "task_key")]
    key: Option<&'t str>,
    business_type: Option<&'t str>,
    business_id: Option<&'t str>,
    params: Value,
    attempt_count: u32,
    crashes: u32,
    next_retry_time: Timestamp,
    priority: i16,
    created_at: Timestamp,
    updated_at: Timestamp,
    first_failed_at: Option<Timestamp>,
    last_error: Option<&'t redrive::LastError>,
    history: &'t [redrive::Attempt],
    version: i32,
    locked_by: Option<redrive::NodeNumber>,
    locked_at: Option<Timestamp>,
    cancel_requested: redrive::StopRequest,
    origin_id: Option<TaskId>,
    created_by: Option<&'t str>,
    updated_by: Option<&'t str>,
    policy: &'t Policy,
}

impl<'t> Shown<'t> {
    /// As this person may see it: viewers see no params.
    pub(super) fn to(task: &'t Task, who: &Caller) -> Self {
        // Params that are encrypted, or are not JSON for whatever reason, are shown as the text that they are.
        let params = match who.role {
            Role::Viewer => Value::String("***".into()),
            _ => serde_json::from_str(&task.params).unwrap_or_else(|_| Value::String(task.params.clone())),
        };
        Self {
            id: task.id,
            status: task.status,
            method: &task.method,
            key: task.key.as_deref(),
            business_type: task.business.as_ref().map(|b| &*b.kind),
            business_id: task.business.as_ref().map(|b| &*b.id),
            params,
            attempt_count: task.attempts,
            crashes: task.crashes,
            next_retry_time: task.due,
            priority: task.priority,
            created_at: task.created_at,
            updated_at: task.updated_at,
            first_failed_at: task.first_failed_at,
            last_error: task.last_error.as_ref(),
            history: &task.history,
            version: task.version,
            locked_by: task.locked_by,
            locked_at: task.locked_at,
            cancel_requested: task.stop,
            origin_id: task.origin_id,
            created_by: task.created_by.as_deref(),
            updated_by: task.updated_by.as_deref(),
            policy: &task.policy,
        }
    }
}

async fn list(State(app): State<App>, Viewer(who): Viewer, Asked(filter): Asked<Filter>) -> Answer<axum::Json<Value>> {
    let (filter, limit) = filter.read()?;
    let tasks = app.engine.list(&filter, limit).await?;
    let next = tasks.last().filter(|_| tasks.len() as u32 == limit).map(|task| task.id);
    let shown: Vec<Shown<'_>> = tasks.iter().map(|task| Shown::to(task, &who)).collect();
    Ok(axum::Json(json!({ "tasks": shown, "next": next })))
}

async fn show(State(app): State<App>, Viewer(who): Viewer, Id(id): Id) -> Answer<axum::Json<Value>> {
    let task = app.engine.get(id).await?.ok_or_else(|| Problem::not_found("task", id))?;
    Ok(axum::Json(json!(Shown::to(&task, &who))))
}

/// A task to be written down.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct New {
    /// A request to be delivered until it succeeds; or a method, and its params.
    http: Option<HttpRequest>,
    method: Option<String>,
    params: Option<Value>,
    key: Option<String>,
    #[serde(default)]
    on_duplicate: OnDuplicate,
    business_type: Option<String>,
    business_id: Option<String>,
    policy: Option<PolicyPatch>,
    #[serde(default, with = "humantime_serde_option")]
    delay: Option<Duration>,
    #[serde(default)]
    priority: i16,
    /// Try a request now and answer with what came of it.
    #[serde(default)]
    wait: bool,
}

/// A duration as people write it: `"5m"`.
mod humantime_serde_option {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer};

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(d)?;
        text.map(|text| humantime::parse_duration(&text)).transpose().map_err(serde::de::Error::custom)
    }
}

/// How long a key of an HTTP task outlives it: a client that repeats a request whose answer it missed does not deliver twice.
const DEDUP_FOR: Duration = Duration::from_secs(24 * 3600);

impl New {
    fn into_task(mut self, app: &App) -> redrive::Result<NewTask> {
        let defaults = app.engine.defaults();
        let task = match (self.http.take(), self.method.take()) {
            (Some(request), None) if self.params.is_none() => {
                let patch = self.policy.take().unwrap_or_default();
                let call = HttpCall::new(&app.delivery, request)?.policy(patch);
                let task = call.into_new_task(&defaults)?;
                if self.key.is_some() { task.dedup_for(DEDUP_FOR) } else { task }
            }
            (None, Some(method)) => {
                let policy = self.policy.take().unwrap_or_default().over((*defaults.policy_for(&method)).clone());
                NewTask::new(method, &self.params.take().unwrap_or_default())?.policy(policy)
            }
            _ => return Err(redrive::Error::invalid("http", "either http is given, or method and its params")),
        };
        self.described(task)
    }

    fn described(self, task: NewTask) -> redrive::Result<NewTask> {
        let mut task = task.on_duplicate(self.on_duplicate).priority(self.priority);
        if let Some(key) = self.key {
            task = task.key(key);
        }
        if let Some(delay) = self.delay {
            task = task.delay(delay);
        }
        match (self.business_type, self.business_id) {
            (Some(kind), Some(id)) => Ok(task.business(kind, id)),
            (None, None) => Ok(task),
            _ => Err(half_a_business()),
        }
    }
}

async fn enqueue(
    State(app): State<App>,
    Operator(who): Operator,
    Json(new): Json<New>,
) -> Answer<(StatusCode, axum::Json<Value>)> {
    if new.wait {
        return try_now(&app, new).await;
    }
    let enqueued = app.engine.enqueue(new.into_task(&app)?.created_by(who.name)).await?;
    let status = if enqueued.existed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, axum::Json(json!(enqueued))))
}

fn half_a_business() -> redrive::Error {
    redrive::Error::invalid("business_id", "is given together with business_type, or neither is")
}

/// One try while the caller waits. What a retry can mend is a task then; what none can is the caller's to know, and nothing is
/// written down.
async fn try_now(app: &App, new: New) -> Answer<(StatusCode, axum::Json<Value>)> {
    let is_plain = new.on_duplicate == OnDuplicate::default() && new.params.is_none();
    let (Some(request), None, None, true) = (new.http, new.method, new.delay, is_plain) else {
        let problem = "only a request (http) can be tried at once, without delay, params or on_duplicate";
        return Err(redrive::Error::invalid("wait", problem).into());
    };
    if new.business_type.is_some() != new.business_id.is_some() {
        return Err(half_a_business().into());
    }
    let mut call = HttpCall::new(&app.delivery, request)?.policy(new.policy.unwrap_or_default()).priority(new.priority);
    if let Some(key) = new.key {
        call = call.key(key);
    }
    if let (Some(kind), Some(id)) = (new.business_type, new.business_id) {
        call = call.business(kind, id);
    }
    let (status, said) = match app.engine.call(call).await {
        Ok(answer) => (StatusCode::OK, json!({ "state": "done", "result": answer })),
        Err(e) => {
            let error = e.to_string();
            match e {
                CallError::Deferred { task_id, existed, .. } => (
                    StatusCode::ACCEPTED,
                    json!({ "state": "deferred", "id": task_id, "existed": existed, "error": error }),
                ),
                CallError::Exhausted { task_id, .. } => {
                    (StatusCode::OK, json!({ "state": "exhausted", "id": task_id, "error": error }))
                }
                CallError::NotRecorded { source, .. } => return Err(source.into()),
                _ => (StatusCode::OK, json!({ "state": "rejected", "error": error })),
            }
        }
    };
    Ok((status, axum::Json(said)))
}

fn stopped(how: Cancelled) -> axum::Json<Value> {
    let how = match how {
        Cancelled::Ended => "ended",
        Cancelled::Requested => "requested",
    };
    axum::Json(json!({ "state": how }))
}

async fn cancel(State(app): State<App>, Operator(who): Operator, Id(id): Id) -> Answer<axum::Json<Value>> {
    let store = app.engine.store();
    Ok(stopped(store.acting(&who.name)?.cancel(id, app.clock.now()).await?))
}

async fn fail(State(app): State<App>, Operator(who): Operator, Id(id): Id) -> Answer<axum::Json<Value>> {
    let store = app.engine.store();
    Ok(stopped(store.acting(&who.name)?.fail(id, app.clock.now()).await?))
}

async fn retry(State(app): State<App>, Operator(who): Operator, Id(id): Id) -> Answer<StatusCode> {
    app.engine.store().acting(&who.name)?.retry_now(id, app.clock.now()).await?;
    app.engine.wake();
    Ok(StatusCode::NO_CONTENT)
}

async fn edit_policy(
    State(app): State<App>,
    Operator(who): Operator,
    Id(id): Id,
    Json(policy): Json<Policy>,
) -> Answer<StatusCode> {
    app.engine.store().acting(&who.name)?.edit_policy(id, &Arc::new(policy), app.clock.now()).await?;
    Ok(StatusCode::NO_CONTENT)
}
