//! Everything at one look, methods, nodes, and what people did.

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use redrive::store::{AuditFilter, Node, Overview};
use redrive::{TaskId, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use super::App;
use super::auth::{Admin, Operator, Viewer};
use super::input::{Asked, page};
use super::problem::Answer;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/methods", get(methods))
        .route("/methods/{method}/pause", post(pause))
        .route("/methods/{method}/resume", post(resume))
        .route("/nodes", get(nodes))
        .route("/overview", get(overview))
        .route("/audit", get(audit))
}

async fn overview(State(app): State<App>, Viewer(_): Viewer) -> Answer<axum::Json<Overview>> {
    Ok(axum::Json(app.engine.store().overview().await?))
}

/// Which records, and which page of them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Records {
    who: Option<String>,
    /// What it begins with: `dead.`.
    action: Option<String>,
    target: Option<String>,
    from: Option<Timestamp>,
    before: Option<Timestamp>,
    /// The last id of the page before.
    after: Option<TaskId>,
    limit: Option<u32>,
}

async fn audit(State(app): State<App>, Admin(_): Admin, Asked(asked): Asked<Records>) -> Answer<axum::Json<Value>> {
    let Records { who, action, target, from, before, after, limit } = asked;
    let limit = page(limit)?;
    let filter = AuditFilter { who, action, target, from, before, after };
    let records = app.engine.store().audits(&filter, limit).await?;
    let next = records.last().filter(|_| records.len() as u32 == limit).map(|record| record.id);
    Ok(axum::Json(json!({ "audit": records, "next": next })))
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
