//! Dead letters: what waits for a person.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use redrive::store::{DeadTask, Redriven};
use redrive::{Policy, TaskId};
use serde::Deserialize;
use serde_json::{Value, json};

use super::App;
use super::auth::{Caller, Operator, Viewer};
use super::input::{Asked, Id, Json};
use super::problem::{Answer, Problem};
use super::tasks::{Filter, Shown};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/dead", get(list))
        .route("/dead/{id}", get(show))
        .route("/dead/{id}/redrive", post(redrive))
        .route("/dead/{id}/resolve", post(resolve))
        .route("/dead/{id}/discard", post(discard))
}

fn shown(letter: &DeadTask, who: &Caller) -> Value {
    json!({
        "task": Shown::to(&letter.task, who),
        "dead_at": letter.dead_at,
        "dead_reason": letter.reason.as_str(),
        "next_remind_time": letter.next_remind_time,
        "remind_count": letter.remind_count,
        "acknowledged_at": letter.acknowledged_at,
        "owner": letter.owner,
        "note": letter.note,
    })
}

async fn list(State(app): State<App>, Viewer(who): Viewer, Asked(filter): Asked<Filter>) -> Answer<axum::Json<Value>> {
    let (filter, limit) = filter.read()?;
    let letters = app.engine.store().dead(&filter.into(), limit).await?;
    let next = letters.last().filter(|_| letters.len() as u32 == limit).map(|letter| letter.task.id);
    Ok(axum::Json(
        json!({ "dead": letters.iter().map(|letter| shown(letter, &who)).collect::<Vec<_>>(), "next": next }),
    ))
}

async fn show(State(app): State<App>, Viewer(who): Viewer, Id(id): Id) -> Answer<axum::Json<Value>> {
    let letter = app.engine.store().get_dead(id).await?.ok_or_else(|| Problem::not_found("dead letter", id))?;
    Ok(axum::Json(shown(&letter, &who)))
}

/// How a letter is brought back.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Redrive {
    /// Under another policy.
    policy: Option<Policy>,
}

async fn redrive(
    State(app): State<App>,
    Operator(who): Operator,
    Id(id): Id,
    Json(asked): Json<Redrive>,
) -> Answer<axum::Json<Value>> {
    let acting = app.engine.store().acting(&who.name)?;
    let went = acting.redrive(&[id], asked.policy.map(Arc::new), app.clock.now()).await?;
    app.engine.wake();
    let answer = |state: &str, id: TaskId| axum::Json(json!({ "state": state, "id": id }));
    match went.first() {
        Some(Redriven::As(new)) => Ok(answer("redriven", *new)),
        Some(Redriven::Twin(twin)) => Ok(answer("twin", *twin)),
        _ => Err(Problem::not_found("dead letter", id)),
    }
}

/// What a person says when closing a letter.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Close {
    #[serde(default)]
    note: String,
}

async fn resolve(
    State(app): State<App>,
    Operator(who): Operator,
    Id(id): Id,
    Json(said): Json<Close>,
) -> Answer<StatusCode> {
    let acting = app.engine.store().acting(&who.name)?.noting(&said.note);
    closed(id, acting.resolve(&[id], app.clock.now()).await?)
}

async fn discard(
    State(app): State<App>,
    Operator(who): Operator,
    Id(id): Id,
    Json(said): Json<Close>,
) -> Answer<StatusCode> {
    let acting = app.engine.store().acting(&who.name)?.noting(&said.note);
    closed(id, acting.discard(&[id], app.clock.now()).await?)
}

fn closed(id: TaskId, letters: u64) -> Answer<StatusCode> {
    if letters > 0 { Ok(StatusCode::NO_CONTENT) } else { Err(Problem::not_found("dead letter", id)) }
}
