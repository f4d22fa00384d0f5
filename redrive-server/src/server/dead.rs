//! Dead letters: what waits for a person. And the archive: what has ended and is kept.

use std::sync::Arc;

use axum::Json as Shows;
use axum::extract::State;
use axum::http::StatusCode;
use redrive::store::{ArchiveFilter, Archived, DeadFilter, DeadTask, EndedAs, Redriven};
use redrive::{DeadReason, Policy, TaskId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::auth::{Caller, Operator, Viewer};
use super::filter::{OfArchive, OfDead};
use super::input::{AskedPage, Id, Json, Paging, Said, acting};
use super::own;
use super::pages::{Size, page};
use super::problem::{Answer, Problem};
use super::shapes::{DeadReasonShape, EndedAsShape, PolicyShape};
use super::tasks::{Shown, masked, sees_params};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(redrive))
        .routes(routes!(resolve))
        .routes(routes!(discard))
        .routes(routes!(acknowledge))
        .routes(routes!(take_over))
        .routes(routes!(archive))
}

/// A dead letter.
#[derive(Debug, Serialize, ToSchema)]
struct Letter {
    /// The task as it was when it died.
    task: Shown,
    #[schema(value_type = String, format = DateTime)]
    dead_at: Timestamp,
    #[schema(value_type = DeadReasonShape)]
    dead_reason: DeadReason,
    /// When people are reminded of it next.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_remind_time: Option<Timestamp>,
    remind_count: u32,
    #[schema(value_type = Option<String>, format = DateTime)]
    acknowledged_at: Option<Timestamp>,
    /// Who has taken it over.
    owner: Option<String>,
    note: Option<String>,
}

impl Letter {
    fn to(letter: DeadTask, who: &Caller) -> Self {
        Self {
            task: Shown::to(letter.task, who),
            dead_at: letter.dead_at,
            dead_reason: letter.reason,
            next_remind_time: letter.next_remind_time,
            remind_count: letter.remind_count,
            acknowledged_at: letter.acknowledged_at,
            owner: letter.owner,
            note: letter.note,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
struct Letters {
    /// Newest tasks first.
    dead: Vec<Letter>,
    /// There may be more: ask again with this as `after`.
    #[schema(value_type = Option<String>)]
    next: Option<TaskId>,
}

/// List dead letters
#[utoipa::path(get, path = "/dead", tag = "dead letters", params(OfDead, Paging), responses((status = 200, body = Letters)))]
async fn list(
    State(app): State<App>,
    Viewer(who): Viewer,
    AskedPage(which, paging): AskedPage<OfDead>,
) -> Answer<Shows<Letters>> {
    let (store, mut filter) = (&app.store, DeadFilter::from(which));
    filter.task.without_params = !sees_params(&who);
    let found = page(&paging, Size::with_params(sees_params(&who)), |after, limit| {
        let mut filter = filter.clone();
        filter.task.after = after;
        async move { store.search_dead(&filter, limit).await }
    });
    let found = found.await?;
    let dead = found.items.into_iter().map(|letter| Letter::to(letter, &who)).collect();
    Ok(Shows(Letters { dead, next: found.continue_after }))
}

/// Show a dead letter
#[utoipa::path(get, path = "/dead/{id}", tag = "dead letters", params(("id" = String, Path)), responses((status = 200, body = Letter)))]
async fn show(State(app): State<App>, Viewer(who): Viewer, Id(id): Id) -> Answer<Shows<Letter>> {
    let letter = app.store.get_dead(id).await?.ok_or_else(|| none(id))?;
    Ok(Shows(Letter::to(letter, &who)))
}

fn none(id: TaskId) -> Problem {
    Problem::not_found("dead letter", id)
}

/// How a letter is brought back.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Redrive {
    /// Under another policy than before.
    #[schema(value_type = Option<PolicyShape>)]
    policy: Option<Policy>,
    /// For the audit; at most 4096 bytes.
    #[serde(default)]
    #[schema(max_length = 4096)]
    note: String,
}

#[derive(Debug, Serialize, ToSchema)]
struct BroughtBack {
    /// `redriven`; or `twin`: a task with its key lives already, and the letter stays.
    state: &'static str,
    /// The new task's, or the twin's.
    #[schema(value_type = String)]
    id: TaskId,
}

/// Bring a dead letter back
///
/// As a new task, with its attempts and its time from the beginning.
#[utoipa::path(post, path = "/dead/{id}/redrive", tag = "dead letters", params(("id" = String, Path)), request_body = Redrive,
    responses((status = 200, body = BroughtBack)))]
async fn redrive(
    State(app): State<App>,
    Operator(who): Operator,
    Id(id): Id,
    Json(asked): Json<Redrive>,
) -> Answer<Shows<BroughtBack>> {
    if let Some(policy) = &asked.policy {
        let before = app.store.get_dead(id).await?.ok_or_else(|| none(id))?;
        own::check_callbacks(policy, Some(&before.task.policy))?;
    }
    let acting = acting(&app, &who, &asked.note)?;
    let went = acting.redrive(&[id], asked.policy.map(Arc::new), app.clock.now()).await?;
    app.wake();
    match went.first() {
        Some(Redriven::As(new)) => Ok(Shows(BroughtBack { state: "redriven", id: *new })),
        Some(Redriven::Twin(twin)) => Ok(Shows(BroughtBack { state: "twin", id: *twin })),
        _ => Err(none(id)),
    }
}

/// Resolve a dead letter
///
/// A person says that it is done, by other means.
#[utoipa::path(post, path = "/dead/{id}/resolve", tag = "dead letters", params(("id" = String, Path)), request_body = Said,
    responses((status = 204, description = "It is in the archive.")))]
async fn resolve(
    State(app): State<App>,
    Operator(who): Operator,
    Id(id): Id,
    Json(said): Json<Said>,
) -> Answer<StatusCode> {
    closed(id, said.by(&app, &who)?.resolve(&[id], app.clock.now()).await?)
}

/// Discard a dead letter
///
/// A person says that it need not be done.
#[utoipa::path(post, path = "/dead/{id}/discard", tag = "dead letters", params(("id" = String, Path)), request_body = Said,
    responses((status = 204, description = "It is in the archive.")))]
async fn discard(
    State(app): State<App>,
    Operator(who): Operator,
    Id(id): Id,
    Json(said): Json<Said>,
) -> Answer<StatusCode> {
    closed(id, said.by(&app, &who)?.discard(&[id], app.clock.now()).await?)
}

fn closed(id: TaskId, letters: u64) -> Answer<StatusCode> {
    if letters > 0 { Ok(StatusCode::NO_CONTENT) } else { Err(none(id)) }
}

/// Acknowledge a dead letter
///
/// A person has seen it. Reminders go on.
#[utoipa::path(post, path = "/dead/{id}/acknowledge", tag = "dead letters", params(("id" = String, Path)), request_body = Said,
    responses((status = 204, description = "Noted.")))]
async fn acknowledge(
    State(app): State<App>,
    Operator(who): Operator,
    Id(id): Id,
    Json(said): Json<Said>,
) -> Answer<StatusCode> {
    said.by(&app, &who)?.acknowledge(id, app.clock.now()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Whose it is from now on.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Owner {
    /// Default: who asks.
    owner: Option<String>,
    /// For the audit; at most 4096 bytes.
    #[serde(default)]
    #[schema(max_length = 4096)]
    note: String,
}

/// Take a dead letter over
///
/// It has an owner, and nobody is reminded of it any more.
#[utoipa::path(post, path = "/dead/{id}/take-over", tag = "dead letters", params(("id" = String, Path)), request_body = Owner,
    responses((status = 204, description = "It has an owner.")))]
async fn take_over(
    State(app): State<App>,
    Operator(who): Operator,
    Id(id): Id,
    Json(said): Json<Owner>,
) -> Answer<StatusCode> {
    let owner = said.owner.as_deref().unwrap_or(&who.name);
    acting(&app, &who, &said.note)?.take_over(id, owner, app.clock.now()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A task that has ended.
#[derive(Debug, Serialize, ToSchema)]
struct Ended {
    /// As it was when it ended.
    task: Shown,
    #[schema(value_type = String, format = DateTime)]
    ended_at: Timestamp,
    #[schema(value_type = EndedAsShape)]
    ended_as: EndedAs,
    #[schema(value_type = Option<DeadReasonShape>)]
    dead_reason: Option<DeadReason>,
    /// For viewers `"***"`.
    #[schema(value_type = Option<Value>)]
    result: Option<Value>,
    /// The task that it was brought back as.
    #[schema(value_type = Option<String>)]
    redriven_as: Option<TaskId>,
    ended_by: Option<String>,
    note: Option<String>,
}

impl Ended {
    fn to(entry: Archived, who: &Caller) -> Self {
        Self {
            task: Shown::to(entry.task, who),
            ended_at: entry.ended_at,
            ended_as: entry.ended_as,
            dead_reason: entry.dead_reason,
            result: entry.result.map(|result| masked(result, who)),
            redriven_as: entry.redriven_as,
            ended_by: entry.ended_by,
            note: entry.note,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
struct Archive {
    /// Newest tasks first.
    archive: Vec<Ended>,
    /// There may be more: ask again with this as `after`.
    #[schema(value_type = Option<String>)]
    next: Option<TaskId>,
}

/// List what has ended
///
/// Cancelled tasks, closed letters, and successes that were to be kept.
#[utoipa::path(get, path = "/archive", tag = "tasks", params(OfArchive, Paging), responses((status = 200, body = Archive)))]
async fn archive(
    State(app): State<App>,
    Viewer(who): Viewer,
    AskedPage(which, paging): AskedPage<OfArchive>,
) -> Answer<Shows<Archive>> {
    let (store, mut filter) = (&app.store, ArchiveFilter::from(which));
    filter.task.without_params = !sees_params(&who);
    // Results are read by whoever asks, and may be large, too.
    let found = page(&paging, Size::Any, |after, limit| {
        let mut filter = filter.clone();
        filter.task.after = after;
        async move { store.search_archive(&filter, limit).await }
    });
    let found = found.await?;
    let archive = found.items.into_iter().map(|entry| Ended::to(entry, &who)).collect();
    Ok(Shows(Archive { archive, next: found.continue_after }))
}
