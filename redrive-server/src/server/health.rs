//! Is it alive, is it ready, and what it has counted.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(alive)).routes(routes!(ready)).routes(routes!(metrics))
}

/// Is it alive?
#[utoipa::path(get, path = "/healthz", tag = "health", security(()), responses((status = 200, body = String, content_type = "text/plain")))]
async fn alive() -> &'static str {
    "alive\n"
}

/// What it has counted, for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "health", security(()), responses((status = 200, body = String, content_type = "text/plain")))]
async fn metrics(State(app): State<App>) -> String {
    app.metrics.as_ref().map(PrometheusHandle::render).unwrap_or_default()
}

#[derive(Debug, Serialize, ToSchema)]
struct Readiness {
    ready: bool,
    /// What stands against it.
    troubles: Vec<String>,
}

/// A database that has not answered for so long is said not to: who asks here does not wait until it is given up.
const PATIENCE: Duration = Duration::from_secs(2);

/// Is it ready?
///
/// Whether tasks can be enqueued and are looked for; if not, what stands against it.
#[utoipa::path(get, path = "/readyz", tag = "health", security(()), responses(
    (status = 200, body = Readiness), (status = 503, body = Readiness, description = "Not ready.")))]
async fn ready(State(app): State<App>) -> (StatusCode, Json<Readiness>) {
    let mut troubles: Vec<String> = app.engine.iter().flat_map(redrive::Engine::troubles).map(String::from).collect();
    troubles.extend(database_trouble(app.store.now(), PATIENCE).await);
    let status = if troubles.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Readiness { ready: troubles.is_empty(), troubles }))
}

async fn database_trouble<T>(asked: impl Future<Output = redrive::Result<T>>, patience: Duration) -> Option<String> {
    match tokio::time::timeout(patience, asked).await {
        Ok(answer) => answer.err().map(|e| format!("the database: {e}")),
        Err(_) => Some("the database does not answer".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_database_that_says_nothing_is_not_waited_for() {
        let silent = std::future::pending::<redrive::Result<()>>();
        assert_eq!(database_trouble(silent, Duration::ZERO).await.as_deref(), Some("the database does not answer"));
        let broken = std::future::ready(Err::<(), _>(redrive::Error::invalid("url", "is wrong")));
        assert_eq!(database_trouble(broken, PATIENCE).await.as_deref(), Some("the database: url: is wrong"));
        assert_eq!(database_trouble(std::future::ready(Ok(())), PATIENCE).await, None);
    }
}
