//! The HTTP server: API, health, metrics.
//!
//! | file | what |
//! | --- | --- |
//! | `auth` | who asks, and what they may do |
//! | `problem` | errors as `application/problem+json` |
//! | `input`, `filter`, `pages` | bodies and queries, with all that is wrong said; pages of a list |
//! | `shapes`, `openapi` | the OpenAPI document, and a page to read it |
//! | `health` | is it alive, is it ready, and metrics |
//! | `enqueue` | writing tasks down: one, one that is tried at once, thousands |
//! | `tasks`, `dead` | tasks that wait or run, dead letters, what has ended |
//! | `bulk` | what people do to many |
//! | `cluster`, `gates`, `settings`, `events` | methods, nodes, what is held back, what holds, and what happens |
//! | `sagas`, `saga_bulk` | flows that are finished or undone, and what people do to many |
//! | `door`, `impatient` | connections: who is let in, and who loses its place |
//! | `guards` | failed rows of business tables |
//! | `people` | what they did, and their tokens |
//! | `own` | methods that are redrive's own, which nobody names from outside |

pub(crate) mod auth;
pub(crate) mod bulk;
pub(crate) mod cluster;
mod dead;
mod door;
mod enqueue;
mod events;
mod filter;
pub(crate) mod gates;
pub(crate) mod guards;
mod health;
mod impatient;
pub(crate) mod input;
mod openapi;
pub(crate) mod own;
mod pages;
mod people;
pub(crate) mod problem;
mod saga_bulk;
pub(crate) mod sagas;
mod settings;
mod shapes;
pub(crate) mod tasks;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use redrive::guard::Guards;
use redrive::{Clock, Engine, ServerSettings, Settings, Store};
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;

use crate::console::{Memory, Sealer};
use crate::http::HttpDelivery;
use problem::Problem;

pub(crate) use auth::Caller;

/// Where the API begins.
pub(crate) const API: &str = "/api/v1";

/// Which version answers: in every answer of the API, so that it is known for redrive's own.
pub(crate) const VERSION: axum::http::HeaderName = axum::http::HeaderName::from_static("redrive-version");

/// What is a stream must not be gathered by a proxy: nginx, and others after it, listen to this.
const UNBUFFERED: [(axum::http::HeaderName, &str); 1] =
    [(axum::http::HeaderName::from_static("x-accel-buffering"), "no")];

/// What all handlers share.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) store: Store,
    /// Not there when the command line works on a database directly.
    pub(crate) engine: Option<Engine>,
    delivery: Option<HttpDelivery>,
    /// Made when they are first asked for, if there is no server.
    guards: OnceCell<Guards>,
    /// Held while a table is looked at that has no connections of its own.
    inspecting: tokio::sync::Mutex<()>,
    pub(crate) metrics: Option<PrometheusHandle>,
    /// Those of a command line, or that the engine began with; it has its own, which change.
    settings: Arc<Settings>,
    pub(crate) clock: Clock,
    wrong: auth::Wrong,
    known: auth::Known,
    listeners: events::Listeners,
    /// Made or read when somebody first comes with a cookie.
    sealer: tokio::sync::OnceCell<Sealer>,
    pub(crate) memory: Memory,
    stopping: CancellationToken,
}

impl std::ops::Deref for App {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Shared {
    pub(crate) fn engine(&self) -> Result<&Engine, Problem> {
        self.engine.as_ref().ok_or_else(no_engine)
    }

    fn delivery(&self) -> Result<&HttpDelivery, Problem> {
        self.delivery.as_ref().ok_or_else(no_engine)
    }

    pub(crate) async fn guards(&self) -> redrive::Result<&Guards> {
        self.guards.get_or_try_init(|| crate::guards::by_hand(&self.settings, &self.store)).await
    }

    /// Something may be due.
    pub(crate) fn wake(&self) {
        self.engine.iter().for_each(Engine::wake);
    }

    /// What seals the cookies of the console.
    pub(crate) async fn sealer(&self) -> redrive::Result<&Sealer> {
        self.sealer.get_or_try_init(async || Ok(Sealer::new(self.store.console_key(self.clock.now()).await?))).await
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.engine.as_ref().map_or_else(|| self.settings.clone(), Engine::settings)
    }

    /// What holds, with what people have set.
    async fn holding(&self) -> redrive::Result<Settings> {
        let mut settings = (*self.settings()).clone();
        if self.engine.is_none() {
            // One that is not valid here was set by another build: nodes pass it over, too.
            self.store.set_fields().await?.into_iter().for_each(|field| _ = settings.set(&field.path, field.value));
        }
        Ok(settings)
    }

    /// Sets a field, on all nodes. Gives it, as the list of settings names it, if it holds from their next start on all the same.
    pub(crate) async fn set(
        &self,
        path: &str,
        value: Option<serde_json::Value>,
        by: &str,
    ) -> redrive::Result<Option<String>> {
        let before = self.holding().await?;
        let asked = value.as_ref().map(|value| settings::changed(&before, path, value)).transpose()?;
        let waiting = match &self.engine {
            // What it says is of its own methods, of all of them, and only if it was the first to hear of the change.
            Some(engine) => engine.set(path, value, by).await?,
            None => self.store.set_field(path, value.as_ref(), by, self.clock.now()).await.map(|()| Vec::new())?,
        };
        let after = match asked {
            Some(asked) => asked,
            None => self.holding().await?,
        };
        let told = settings::limit_by_business(path).filter(|limit| waiting.contains(limit));
        Ok(told.or_else(|| self.waiting(path, &before, &after)))
    }

    /// The field of this path, if it is one that holds from the next start of some node on. This node has begun with what it has kept, and
    /// others may have since: so it is asked of both. Without an engine, nobody knows when nodes have begun: then of the file.
    pub(crate) fn waiting(&self, path: &str, before: &Settings, after: &Settings) -> Option<String> {
        settings::waiting(path, &[&self.settings, before], after)
    }
}

impl App {
    async fn of(store: Store, settings: Settings) -> redrive::Result<Shared> {
        Ok(Shared {
            clock: Clock::starting_at(store.now().await?),
            store,
            engine: None,
            delivery: None,
            guards: OnceCell::new(),
            inspecting: tokio::sync::Mutex::default(),
            metrics: None,
            settings: Arc::new(settings),
            wrong: auth::Wrong::default(),
            known: auth::Known::default(),
            listeners: events::Listeners::default(),
            sealer: tokio::sync::OnceCell::new(),
            memory: Memory::default(),
            stopping: CancellationToken::new(),
        })
    }

    /// The API on a database, without a server: for the command line. Whoever can open the database may do everything.
    pub(crate) async fn local(store: Store, settings: Settings) -> redrive::Result<Router> {
        let limits = settings.server.clone();
        Ok(router(Self(Arc::new(Self::of(store, settings).await?)), &limits))
    }
}

/// Collects metrics from now on. Once in a process, before the engine starts.
pub(crate) fn collect_metrics() -> anyhow::Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new().install_recorder().context("collecting metrics")?;
    tokio::spawn(keep_small(handle.clone()));
    Ok(handle)
}

/// What histograms have gathered is put together now and then, also if nobody asks for it.
#[expect(clippy::disallowed_methods, reason = "a shell around one call")]
async fn keep_small(metrics: PrometheusHandle) {
    loop {
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        metrics.run_upkeep();
    }
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
        guards: Option<Guards>,
        metrics: PrometheusHandle,
    ) -> anyhow::Result<Self> {
        let listener = door::listen(address).with_context(|| format!("listening on {address}"))?;
        let shared = App::of(engine.store().clone(), (*engine.settings()).clone()).await?;
        let shared = Shared {
            engine: Some(engine),
            delivery: Some(delivery),
            guards: OnceCell::new_with(guards),
            metrics: Some(metrics),
            ..shared
        };
        Ok(Self { listener, app: App(Arc::new(shared)) })
    }

    pub(crate) fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// Answers until `stopped`, then ends what is under way.
    pub(crate) async fn run(self, stopped: impl Future<Output = ()> + Send) {
        let (limits, stopping) = (self.app.settings.server.clone(), self.app.stopping.clone());
        let router = router(self.app, &limits);
        let stopped = async move {
            stopped.await;
            stopping.cancel(); // streams of events end, too
        };
        door::serve(self.listener, router, &limits, stopped).await;
    }
}

/// The paths that are taken.
pub(crate) fn paths() -> Vec<String> {
    let (_, document) = described(&ServerSettings::default());
    let others = openapi::PATHS.iter().chain(&crate::console::PATHS).map(ToString::to_string);
    document.paths.paths.into_keys().chain(others).collect()
}

fn described(limits: &ServerSettings) -> (Router<App>, utoipa::openapi::OpenApi) {
    // What may rightly take long: a first try while the caller waits, a bulk, a stream of events.
    let patient = OpenApiRouter::new()
        .merge(enqueue::routes())
        .merge(bulk::routes())
        .merge(saga_bulk::routes())
        .merge(events::routes());
    let quick = OpenApiRouter::new()
        .merge(tasks::routes())
        .merge(dead::routes())
        .merge(cluster::routes())
        .merge(gates::routes())
        .merge(guards::routes())
        .merge(sagas::routes())
        .merge(settings::routes())
        .merge(people::routes())
        .layer(axum::middleware::from_fn_with_state(limits.request_timeout, in_time));
    OpenApiRouter::with_openapi(openapi::document())
        .merge(health::routes())
        .nest(API, patient.merge(quick))
        .split_for_parts()
}

fn router(app: App, limits: &ServerSettings) -> Router {
    let (router, document) = described(limits);
    // None of them is one of ours: they were told which are taken.
    let own_routes = |guards| guards::own_routes(&app, guards, limits.request_timeout);
    let guards = app.guards.get().map(own_routes).unwrap_or_default();
    router
        .merge(guards.with_state(()))
        .merge(openapi::routes(document))
        .merge(crate::console::routes(&app, limits))
        .fallback(crate::console::no_such_page)
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(axum::extract::DefaultBodyLimit::max(limits.max_body))
        // For the whole of a body: who sends a byte now and then would otherwise keep its place for years.
        .layer(tower_http::timeout::RequestBodyDeadlineLayer::new(limits.request_timeout))
        .layer(axum::middleware::from_fn(versioned))
        .with_state(app)
}

/// Answers that take too long are given up.
pub(crate) async fn in_time(
    State(limit): State<std::time::Duration>,
    request: Request,
    next: axum::middleware::Next,
) -> Response {
    let answer = tokio::time::timeout(limit, next.run(request)).await;
    answer.unwrap_or_else(|_| problem::too_slow().into_response())
}

/// What is below the API says which version it is from, be it an error or that there is no such route.
async fn versioned(request: Request, next: axum::middleware::Next) -> Response {
    let below = request.uri().path().strip_prefix(API);
    let is_api = below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let mut answer = next.run(request).await;
    if is_api {
        let version = HeaderValue::from_static(env!("CARGO_PKG_VERSION"));
        answer.headers_mut().insert(VERSION, version);
    }
    answer
}

fn no_engine() -> Problem {
    let what = "this takes a server that runs: name it with --server, or see redrive serve";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no_engine", what)
}
