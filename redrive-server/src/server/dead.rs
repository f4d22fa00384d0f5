//! Dead letters: what waits for a person.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::{get, post};
use redrive::store::{DeadTask, Redriven};
use redrive::{Policy, TaskId};
use serde::Deserialize;
use serde_json::{Value, json};

use super::App;
use super::input::{Asked, Id, Json};
use super::problem::{Answer, Problem};
use super::tasks::{Filter, Shown};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/dead", get(list))
        .route("/dead/{id}", get(show))
        .route("/dead/{id}/redrive", post(redrive))
        .route("/dead/{id}/resolve", post(async |app, id, close| end(app, id, close, Closed::Resolved).await))
        .route("/dead/{id}/discard", post(async |app, id, close| end(app, id, close, Closed::Discarded).await))
}

fn shown(letter: &DeadTask) -> Value {
    json!({
        "task": Shown::from(&letter.task),
        "dead_at": letter.dead_at,
        "dead_reason": letter.reason.as_str(),
        "next_remind_time": letter.next_remind_time,
        "remind_count": letter.remind_count,
        "acknowledged_at": letter.acknowledged_at,
        "owner": letter.owner,
        "note": letter.note,
    })
}

async fn list(State(app): State<App>, Asked(filter): Asked<Filter>) -> Answer<axum::Json<Value>> {
    let (filter, limit) = filter.read()?;
    let letters = app.engine.store().dead(&filter.into(), limit).await?;
    let next = letters.last().filter(|_| letters.len() as u32 == limit).map(|letter| letter.task.id);
    Ok(axum::Json(json!({ "dead": letters.iter().map(shown).collect::<Vec<_>>(), "next": next })))
}

async fn show(State(app): State<App>, Id(id): Id) -> Answer<axum::Json<Value>> {
    let letter = app.engine.store().get_dead(id).await?.ok_or_else(|| Problem::not_found("dead letter", id))?;
    Ok(axum::Json(shown(&letter)))
}

/// How a letter is brought back.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Redrive {
    /// Who does it.
    by: String,
    /// Under another policy.
    policy: Option<Policy>,
}

async fn redrive(State(app): State<App>, Id(id): Id, Json(asked): Json<Redrive>) -> Answer<axum::Json<Value>> {
    let store = app.engine.store();
    let went = store.redrive(&[id], asked.policy.map(Arc::new), &asked.by, store.now().await?).await?;
    app.engine.wake();
    let answer = |state: &str, id: TaskId| axum::Json(json!({ "state": state, "id": id }));
    match went.first() {
        Some(Redriven::As(new)) => Ok(answer("redriven", *new)),
        Some(Redriven::Twin(twin)) => Ok(answer("twin", *twin)),
        _ => Err(Problem::not_found("dead letter", id)),
    }
}

/// How a person closes a letter.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Close {
    /// Who does it.
    by: String,
    /// What they say.
    note: Option<String>,
}

enum Closed {
    Resolved,
    Discarded,
}

async fn end(
    State(app): State<App>,
    Id(id): Id,
    Json(Close { by, note }): Json<Close>,
    how: Closed,
) -> Answer<axum::http::StatusCode> {
    let store = app.engine.store();
    let (now, note) = (store.now().await?, note.as_deref());
    let closed = match how {
        Closed::Resolved => store.resolve(&[id], &by, note, now).await?,
        Closed::Discarded => store.discard(&[id], &by, note, now).await?,
    };
    match closed {
        0 => Err(Problem::not_found("dead letter", id)),
        _ => Ok(axum::http::StatusCode::NO_CONTENT),
    }
}
