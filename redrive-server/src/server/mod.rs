//! The HTTP server: API, health, metrics.
//!
//! | file | what |
//! | --- | --- |
//! | `auth` | who asks, and what they may do |
//! | `problem` | errors as `application/problem+json` |
//! | `input` | bodies and queries, with all that is wrong said |
//! | `health` | is it alive, is it ready, and metrics |
//! | `tasks` | tasks that wait or run |
//! | `dead` | dead letters |
//! | `cluster` | everything at one look, methods, nodes, and what people did |

mod auth;
mod cluster;
mod dead;
mod health;
mod input;
mod problem;
mod tasks;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use redrive::{Clock, Engine};
use tokio::net::TcpListener;

use crate::http::HttpDelivery;

/// Where the API begins.
const API: &str = "/api/v1";
/// Largest body of a request.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// What all handlers share.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) delivery: HttpDelivery,
    metrics: PrometheusHandle,
    pub(crate) clock: Clock,
    wrong: auth::Wrong,
}

impl std::ops::Deref for App {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// Collects metrics from now on. Once in a process, before the engine starts.
pub(crate) fn collect_metrics() -> anyhow::Result<PrometheusHandle> {
    PrometheusBuilder::new().install_recorder().context("collecting metrics")
}

/// A server that has its address but does not answer yet.
pub(crate) struct Server {
    listener: TcpListener,
    app: App,
}

impl Server {
    /// Takes its address.
    pub(crate) async fn bind(
        address: SocketAddr,
        engine: Engine,
        delivery: HttpDelivery,
        metrics: PrometheusHandle,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))?;
        let clock = Clock::starting_at(engine.store().now().await?);
        let shared = Shared { engine, delivery, metrics, clock, wrong: auth::Wrong::default() };
        Ok(Self { listener, app: App(Arc::new(shared)) })
    }

    pub(crate) fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// Answers until `stopped`, then ends what is under way.
    pub(crate) async fn run(self, stopped: impl Future<Output = ()> + Send + 'static) -> anyhow::Result<()> {
        let router = router(self.app).into_make_service_with_connect_info::<SocketAddr>();
        axum::serve(self.listener, router).with_graceful_shutdown(stopped).await.context("serving")
    }
}

fn router(app: App) -> Router {
    let api = Router::new().merge(tasks::routes()).merge(dead::routes()).merge(cluster::routes());
    Router::new()
        .merge(health::routes())
        .nest(API, api)
        .fallback(problem::no_such_route)
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(axum::extract::DefaultBodyLimit::max(MOST_BYTES))
        .with_state(app)
}
