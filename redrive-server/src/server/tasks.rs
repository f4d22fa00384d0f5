//! Tasks that wait or run: looking at them, and what people do to one.

use std::sync::Arc;

use axum::Json as Shows;
use axum::extract::State;
use axum::http::StatusCode;
use redrive::store::{Cancelled, Role, TaskFilter};
use redrive::{Policy, Status, Task, TaskId, Timestamp};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::auth::{Caller, Operator, Viewer};
use super::filter::OfTasks;
use super::input::{AskedPage, Id, Json, Paging, Said};
use super::own;
use super::pages::{Size, page};
use super::problem::{Answer, Problem};
use super::shapes::{AttemptShape, LastErrorShape, PolicyShape, StatusShape};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(cancel))
        .routes(routes!(fail))
        .routes(routes!(retry))
        .routes(routes!(edit_policy))
}

/// A task. The names of fields are those of the table.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Task)]
pub(super) struct Shown {
    #[schema(value_type = String)]
    id: TaskId,
    #[schema(value_type = StatusShape)]
    status: Status,
    method_name: String,
    task_key: Option<String>,
    business_type: Option<String>,
    business_id: Option<String>,
    /// As it was enqueued; for viewers `"***"`.
    #[schema(value_type = Value)]
    params: Value,
    attempt_count: u32,
    crashes: u32,
    #[schema(value_type = String, format = DateTime)]
    next_retry_time: Timestamp,
    priority: i16,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    first_failed_at: Option<Timestamp>,
    #[schema(value_type = Option<LastErrorShape>)]
    last_error: Option<redrive::LastError>,
    /// The last attempts that failed.
    #[schema(value_type = Vec<AttemptShape>)]
    history: Vec<redrive::Attempt>,
    version: i32,
    /// The node that runs it, or ran it last.
    #[schema(value_type = Option<i64>)]
    locked_by: Option<redrive::NodeNumber>,
    #[schema(value_type = Option<String>, format = DateTime)]
    locked_at: Option<Timestamp>,
    /// `none`, `cancel` or `fail`.
    #[schema(value_type = String)]
    cancel_requested: redrive::StopRequest,
    /// The dead letter that it was brought back from.
    #[schema(value_type = Option<String>)]
    origin_id: Option<TaskId>,
    created_by: Option<String>,
    updated_by: Option<String>,
    #[schema(value_type = PolicyShape)]
    policy: Policy,
}

impl Shown {
    /// As this person may see it: viewers see no params.
    pub(super) fn to(task: Task, who: &Caller) -> Self {
        let (business_type, business_id) = task.business.map(|b| (b.kind, b.id)).unzip();
        Self {
            id: task.id,
            status: task.status,
            method_name: task.method,
            task_key: task.key,
            business_type,
            business_id,
            params: masked(task.params, who),
            attempt_count: task.attempts,
            crashes: task.crashes,
            next_retry_time: task.due,
            priority: task.priority,
            created_at: task.created_at,
            updated_at: task.updated_at,
            first_failed_at: task.first_failed_at,
            last_error: task.last_error,
            history: task.history,
            version: task.version,
            locked_by: task.locked_by,
            locked_at: task.locked_at,
            cancel_requested: task.stop,
            origin_id: task.origin_id,
            created_by: task.created_by,
            updated_by: task.updated_by,
            policy: (*task.policy).clone(),
        }
    }
}

/// Viewers do not.
pub(super) fn sees_params(who: &Caller) -> bool {
    who.role > Role::Viewer
}

/// JSON as this person may see it. What is encrypted, or no JSON for whatever reason, is shown as the text that it is.
pub(super) fn masked(json: String, who: &Caller) -> Value {
    match sees_params(who) {
        false => Value::String("***".into()),
        true => serde_json::from_str(&json).unwrap_or(Value::String(json)),
    }
}

#[derive(Debug, Serialize, ToSchema)]
struct Tasks {
    /// Newest first.
    tasks: Vec<Shown>,
    /// There may be more: ask again with this as `after`.
    #[schema(value_type = Option<String>)]
    next: Option<TaskId>,
}

/// List tasks
///
/// Tasks that wait or run, newest first, page by page.
#[utoipa::path(get, path = "/tasks", tag = "tasks", params(OfTasks, Paging), responses((status = 200, body = Tasks)))]
async fn list(
    State(app): State<App>,
    Viewer(who): Viewer,
    AskedPage(which, paging): AskedPage<OfTasks>,
) -> Answer<Shows<Tasks>> {
    let (store, filter) = (&app.store, TaskFilter { without_params: !sees_params(&who), ..which.into() });
    let found = page(&paging, Size::with_params(sees_params(&who)), |after, limit| {
        let filter = TaskFilter { after, ..filter.clone() };
        async move { store.search(&filter, limit).await }
    });
    let found = found.await?;
    let tasks = found.items.into_iter().map(|task| Shown::to(task, &who)).collect();
    Ok(Shows(Tasks { tasks, next: found.continue_after }))
}

/// Show a task
///
/// One that has ended is not there any more: it may be among the dead letters or, if it is kept, in the archive.
#[utoipa::path(get, path = "/tasks/{id}", tag = "tasks", params(("id" = String, Path)), responses((status = 200, body = Shown)))]
async fn show(State(app): State<App>, Viewer(who): Viewer, Id(id): Id) -> Answer<Shows<Shown>> {
    let task = app.store.get(id).await?.ok_or_else(|| Problem::not_found("task", id))?;
    Ok(Shows(Shown::to(task, &who)))
}

/// Whether a task is stopped already.
#[derive(Debug, Serialize, ToSchema)]
struct Stopped {
    state: StoppedAs,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum StoppedAs {
    /// It has ended.
    Ended,
    /// It runs, and will end after this attempt, unless that succeeds.
    Requested,
}

fn stopped(how: Cancelled) -> Shows<Stopped> {
    let state = match how {
        Cancelled::Ended => StoppedAs::Ended,
        Cancelled::Requested => StoppedAs::Requested,
    };
    Shows(Stopped { state })
}

/// Cancel a task
///
/// It is not tried again, and nobody has to look at it. One that runs is cancelled after its attempt, unless that succeeds.
#[utoipa::path(post, path = "/tasks/{id}/cancel", tag = "tasks", params(("id" = String, Path)), request_body = Said,
    responses((status = 200, body = Stopped)))]
async fn cancel(
    State(app): State<App>,
    Operator(who): Operator,
    Id(id): Id,
    Json(said): Json<Said>,
) -> Answer<Shows<Stopped>> {
    Ok(stopped(said.by(&app, &who)?.cancel(id, app.clock.now()).await?))
}

/// Fail a task by hand
///
/// It becomes a dead letter, for somebody to look at.
#[utoipa::path(post, path = "/tasks/{id}/fail", tag = "tasks", params(("id" = String, Path)), request_body = Said,
    responses((status = 200, body = Stopped)))]
async fn fail(
    State(app): State<App>,
    Operator(who): Operator,
    Id(id): Id,
    Json(said): Json<Said>,
) -> Answer<Shows<Stopped>> {
    Ok(stopped(said.by(&app, &who)?.fail(id, app.clock.now()).await?))
}

/// Retry a task now
///
/// It is due at once, instead of at its next time. Attempts are counted as ever.
#[utoipa::path(post, path = "/tasks/{id}/retry", tag = "tasks", params(("id" = String, Path)), request_body = Said,
    responses((status = 204, description = "It is due.")))]
async fn retry(
    State(app): State<App>,
    Operator(who): Operator,
    Id(id): Id,
    Json(said): Json<Said>,
) -> Answer<StatusCode> {
    said.by(&app, &who)?.retry_now(id, app.clock.now()).await?;
    app.wake();
    Ok(StatusCode::NO_CONTENT)
}

/// Edit a task's policy
///
/// The whole of it: fields that are left out have their built-in defaults. A callback that is redrive's own, as that of a saga's
/// step, must stay as it is.
#[utoipa::path(put, path = "/tasks/{id}/policy", tag = "tasks", params(("id" = String, Path)), request_body = PolicyShape,
    responses((status = 204, description = "It holds.")))]
async fn edit_policy(
    State(app): State<App>,
    Operator(who): Operator,
    Id(id): Id,
    Json(policy): Json<Policy>,
) -> Answer<StatusCode> {
    set_policy(&app, &who.name, id, policy).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn set_policy(app: &App, by: &str, id: TaskId, policy: Policy) -> Answer<()> {
    let before = app.store.get(id).await?.ok_or_else(|| Problem::not_found("task", id))?;
    own::check_callbacks(&policy, Some(&before.policy))?;
    Ok(app.store.acting(by)?.edit_policy(id, &Arc::new(policy), app.clock.now()).await?)
}
