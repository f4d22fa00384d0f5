//! Methods and nodes.

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use redrive::store::Node;
use serde_json::{Value, json};

use super::App;
use super::auth::{Operator, Viewer};
use super::problem::Answer;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/methods", get(methods))
        .route("/methods/{method}/pause", post(pause))
        .route("/methods/{method}/resume", post(resume))
        .route("/nodes", get(nodes))
}

async fn methods(State(app): State<App>, Viewer(_): Viewer) -> Answer<axum::Json<Value>> {
    let store = app.engine.store();
    let (depths, paused) = (store.depths().await?, store.paused().await?);
    let methods: Vec<Value> =
        depths.iter().map(|d| json!({ "method": d.method, "depth": d.depth, "oldest_due": d.oldest_due })).collect();
    let paused: Vec<Value> =
        paused.iter().map(|p| json!({ "method": p.method, "since": p.since, "by": p.by })).collect();
    Ok(axum::Json(json!({ "methods": methods, "paused": paused })))
}

async fn pause(
    State(app): State<App>,
    Operator(who): Operator,
    Path(method): Path<String>,
) -> Answer<axum::Json<Value>> {
    Ok(axum::Json(json!({ "changed": app.engine.pause(&method, Some(&who.name)).await? })))
}

async fn resume(
    State(app): State<App>,
    Operator(who): Operator,
    Path(method): Path<String>,
) -> Answer<axum::Json<Value>> {
    Ok(axum::Json(json!({ "changed": app.engine.resume(&method, Some(&who.name)).await? })))
}

async fn nodes(State(app): State<App>, Viewer(_): Viewer) -> Answer<axum::Json<Value>> {
    let shown = |n: &Node| {
        json!({
            "number": n.number, "name": n.registration.name, "build": n.registration.build,
            "methods": n.registration.methods, "beat_at": n.beat_at, "started_at": n.started_at,
            "dead": n.dead, "leaving": n.leaving,
        })
    };
    let nodes = app.engine.store().nodes().await?;
    Ok(axum::Json(json!({ "nodes": nodes.iter().map(shown).collect::<Vec<_>>() })))
}
