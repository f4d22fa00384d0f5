//! Is it alive, is it ready, and what it has counted.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::App;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(async |State(app): State<App>| app.metrics.render()))
}

/// 200 if tasks can be enqueued and are looked for; 503 with what stands against it.
async fn ready(State(app): State<App>) -> (StatusCode, Json<Value>) {
    let mut troubles: Vec<String> = app.engine.troubles().iter().map(ToString::to_string).collect();
    if let Err(e) = app.engine.store().now().await {
        troubles.push(format!("the database: {e}"));
    }
    let status = if troubles.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ "ready": troubles.is_empty(), "troubles": troubles })))
}
