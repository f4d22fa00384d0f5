//! Everything at one look, methods and nodes.

use axum::Json as Shows;
use axum::extract::State;
use redrive::store::{Count, Node, Overview, Paused};
use redrive::{NodeNumber, Timestamp};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::auth::{Operator, Viewer};
use super::input::{Json, MethodName, Said};
use super::problem::Answer;
use super::shapes::{CountShape, OverviewShape};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(overview))
        .routes(routes!(methods))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(nodes))
}

/// Everything at one look
///
/// Counts say how sure they are: exact, at least so many, or what the statistics of the database say.
#[utoipa::path(get, path = "/overview", tag = "cluster", responses((status = 200, body = OverviewShape)))]
async fn overview(State(app): State<App>, Viewer(_): Viewer) -> Answer<Shows<Overview>> {
    Ok(Shows(app.store.overview().await?))
}

#[derive(Debug, Serialize, ToSchema)]
struct Methods {
    methods: Vec<MethodShown>,
}

/// A method that has tasks or dead letters, is paused, or is handled by a node.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = Method)]
pub(crate) struct MethodShown {
    pub(crate) method: String,
    #[schema(value_type = CountShape)]
    pub(crate) tasks: Count,
    #[schema(value_type = CountShape)]
    pub(crate) dead: Count,
    /// When the first of those that wait is due.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) oldest_due: Option<Timestamp>,
    /// Since when, and by whom.
    pub(crate) paused: Option<PausedShown>,
    /// Live nodes that handle it. Tasks of a method without any wait.
    pub(crate) nodes: usize,
    /// What the settings say of it: limits and policy fields.
    #[schema(value_type = Option<Object>)]
    pub(crate) settings: Value,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Paused)]
pub(crate) struct PausedShown {
    #[schema(value_type = String, format = DateTime)]
    pub(crate) since: Timestamp,
    pub(crate) by: Option<String>,
}

/// List methods
#[utoipa::path(get, path = "/methods", tag = "cluster", responses((status = 200, body = Methods)))]
async fn methods(State(app): State<App>, Viewer(_): Viewer) -> Answer<Shows<Methods>> {
    Ok(Shows(Methods { methods: Box::pin(all_methods(&app)).await? }))
}

/// Those that have tasks or dead letters, are paused, or are handled by a node.
pub(crate) async fn all_methods(app: &App) -> Answer<Vec<MethodShown>> {
    let overview = app.store.overview().await?;
    methods_of(app, overview).await
}

/// The same by what was counted before.
pub(crate) async fn methods_of(app: &App, overview: Overview) -> Answer<Vec<MethodShown>> {
    let (paused, nodes) = tokio::try_join!(app.store.paused(), app.store.nodes())?;
    let live: Vec<Node> = nodes.into_iter().filter(|n| !n.dead && !n.leaving).collect();
    let mut methods: Vec<MethodShown> = overview.methods.into_iter().map(MethodShown::from).collect();
    let others = paused.iter().map(|p| &p.method).chain(live.iter().flat_map(|n| &n.registration.methods));
    for name in others {
        if !methods.iter().any(|m| &m.method == name) {
            methods.push(MethodShown { method: name.clone(), ..MethodShown::default() });
        }
    }
    let settings = app.settings();
    for shown in &mut methods {
        shown.nodes = live.iter().filter(|n| n.registration.methods.contains(&shown.method)).count();
        shown.paused = paused.iter().find(|p| p.method == shown.method).map(PausedShown::from);
        shown.settings = settings.methods.get(&shown.method).map_or(Value::Null, |m| serde_json::json!(m));
    }
    Ok(methods)
}

impl From<redrive::store::MethodCount> for MethodShown {
    fn from(count: redrive::store::MethodCount) -> Self {
        Self {
            method: count.method,
            tasks: count.tasks,
            dead: count.dead,
            oldest_due: count.oldest_due,
            ..Self::default()
        }
    }
}

impl From<&Paused> for PausedShown {
    fn from(paused: &Paused) -> Self {
        Self { since: paused.since, by: paused.by.clone() }
    }
}

#[derive(Debug, Serialize, ToSchema)]
struct Changed {
    /// `false`: it was so already.
    changed: bool,
}

/// Pause a method
///
/// Its tasks are held back, on all nodes, until it is resumed. What runs goes on.
#[utoipa::path(post, path = "/methods/{method}/pause", tag = "cluster", params(("method" = String, Path)), request_body = Said,
    responses((status = 200, body = Changed)))]
async fn pause(
    State(app): State<App>,
    Operator(who): Operator,
    MethodName(method): MethodName,
    Json(said): Json<Said>,
) -> Answer<Shows<Changed>> {
    Ok(Shows(Changed { changed: set_paused(&app, &method, true, &who.name, said.note()?).await? }))
}

/// Resume a method
#[utoipa::path(post, path = "/methods/{method}/resume", tag = "cluster", params(("method" = String, Path)), request_body = Said,
    responses((status = 200, body = Changed)))]
async fn resume(
    State(app): State<App>,
    Operator(who): Operator,
    MethodName(method): MethodName,
    Json(said): Json<Said>,
) -> Answer<Shows<Changed>> {
    Ok(Shows(Changed { changed: set_paused(&app, &method, false, &who.name, said.note()?).await? }))
}

/// Pauses or resumes a method: at once on this node, if it is one. `false`: it was so already.
pub(crate) async fn set_paused(
    app: &App,
    method: &str,
    paused: bool,
    by: &str,
    note: Option<&str>,
) -> redrive::Result<bool> {
    let (acting, now) = (app.store.acting(by)?, app.clock.now());
    let acting = note.map_or(acting, |note| acting.noting(note));
    let changed = if paused { acting.pause(method, now).await? } else { acting.resume(method, now).await? };
    if let Some(engine) = &app.engine {
        engine.follow_people().await?;
    }
    Ok(changed)
}

#[derive(Debug, Serialize, ToSchema)]
struct Nodes {
    nodes: Vec<NodeShown>,
}

/// A process that runs tasks.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Node)]
struct NodeShown {
    #[schema(value_type = i64)]
    number: NodeNumber,
    name: String,
    build: String,
    /// `alive`, `leaving`, `left` (it stopped in good order) or `dead` (it did not).
    state: &'static str,
    methods: Vec<String>,
    /// How many of the 64 shards it looks after, by method, if nodes find each other by the database.
    shards: std::collections::BTreeMap<String, usize>,
    #[schema(value_type = String, format = DateTime)]
    beat_at: Timestamp,
    /// Its lease, such as `10s`. Missing for a node of an older build.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    started_at: Timestamp,
}

/// List nodes
///
/// Those that have stopped or died are there for a week.
#[utoipa::path(get, path = "/nodes", tag = "cluster", responses((status = 200, body = Nodes)))]
async fn nodes(State(app): State<App>, Viewer(_): Viewer) -> Answer<Shows<Nodes>> {
    let nodes = app.store.nodes().await?;
    let shown = nodes.iter().map(|n| NodeShown {
        number: n.number,
        name: n.registration.name.clone(),
        build: n.registration.build.clone(),
        state: told(n),
        methods: n.registration.methods.clone(),
        shards: n.registration.methods.iter().map(|m| (m.clone(), n.shards(m, &nodes).len())).collect(),
        beat_at: n.beat_at,
        lease: Some(n.registration.lease)
            .filter(|lease| !lease.is_zero())
            .map(|lease| humantime::format_duration(lease).to_string()),
        started_at: n.started_at,
    });
    Ok(Shows(Nodes { nodes: shown.collect() }))
}

/// As the API tells it: who has left in good order is not among those that died.
fn told(node: &Node) -> &'static str {
    match state(node) {
        "dead" if node.leaving => "left",
        state => state,
    }
}

pub(crate) fn state(node: &Node) -> &'static str {
    match (node.dead, node.leaving) {
        (true, _) => "dead",
        (false, true) => "leaving",
        (false, false) => "alive",
    }
}
