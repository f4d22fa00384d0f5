//! Gates: which targets are held back, and what people decide about them.

use axum::Json as Shows;
use axum::extract::State;
use axum::http::StatusCode;
use redrive::Lane;
use redrive::gate::{Gate, Hold};
use redrive::store::GateAction;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::auth::{Operator, Viewer};
use super::input::{Json, Names};
use super::problem::{Answer, Problem};
use super::shapes::{GateShape, HoldShape};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(hold)).routes(routes!(release)).routes(routes!(reset))
}

#[derive(Debug, Serialize, ToSchema)]
struct Gates {
    #[schema(value_type = Vec<GateShape>)]
    gates: Vec<Gate>,
}

/// List gates
///
/// Those that have opened, or were held, at some time.
#[utoipa::path(get, path = "/gates", tag = "gates", responses((status = 200, body = Gates)))]
async fn list(State(app): State<App>, Viewer(_): Viewer) -> Answer<Shows<Gates>> {
    Ok(Shows(Gates { gates: app.store.gates().await? }))
}

/// How a gate is held.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Held {
    /// `open`: nothing goes through; `closed`: everything does, whatever comes of it.
    #[schema(value_type = HoldShape)]
    state: Hold,
    #[schema(max_length = 1000)]
    note: Option<String>,
}

/// Hold a gate
///
/// Open or closed, until it is released or reset. A gate is named as the list names it, by its method, or as `http:` and a host.
#[utoipa::path(post, path = "/gates/{gate}/hold", tag = "gates", params(("gate" = String, Path)), request_body = Held,
    responses((status = 200, body = GateShape)))]
async fn hold(
    State(app): State<App>,
    Operator(who): Operator,
    Names([gate]): Names<1>,
    Json(held): Json<Held>,
) -> Answer<Shows<Gate>> {
    let lane = find(&app, &gate, true).await?;
    Ok(Shows(act(&app, lane, GateAction::Hold(held.state), &who.name, held.note.as_deref()).await?))
}

/// Release a gate that is held
///
/// It is as it was; if that is open, it gives probes away at once.
#[utoipa::path(post, path = "/gates/{gate}/release", tag = "gates", params(("gate" = String, Path)),
    responses((status = 200, body = GateShape)))]
async fn release(State(app): State<App>, Operator(who): Operator, Names([gate]): Names<1>) -> Answer<Shows<Gate>> {
    Ok(Shows(act(&app, find(&app, &gate, false).await?, GateAction::Release, &who.name, None).await?))
}

/// Reset a gate
///
/// It is closed, and forgets what was.
#[utoipa::path(post, path = "/gates/{gate}/reset", tag = "gates", params(("gate" = String, Path)),
    responses((status = 200, body = GateShape)))]
async fn reset(State(app): State<App>, Operator(who): Operator, Names([gate]): Names<1>) -> Answer<Shows<Gate>> {
    Ok(Shows(act(&app, find(&app, &gate, false).await?, GateAction::Reset, &who.name, None).await?))
}

pub(crate) async fn act(
    app: &App,
    lane: Lane,
    action: GateAction,
    by: &str,
    note: Option<&str>,
) -> redrive::Result<Gate> {
    app.store.act_on_gate(lane, action, by, note, app.clock.now()).await
}

/// The lane of a gate that is there, by its name or its lane's number; or, if it may be made, of a method or a host.
pub(crate) async fn find(app: &App, name: &str, make: bool) -> Answer<Lane> {
    let known = app.store.gates().await?.into_iter().find(|gate| gate.name == name || gate.lane.0.to_string() == name);
    if let Some(gate) = known {
        return Ok(gate.lane);
    }
    if !make {
        return Err(Problem::not_found("gate", name));
    }
    let host = name.strip_prefix("http:").filter(|host| !host.is_empty() && !host.contains('\0'));
    let nodes = app.store.nodes().await?;
    let is_method = nodes.iter().any(|node| !node.dead && node.registration.methods.iter().any(|m| m == name));
    let (lane, name) = match host {
        Some(host) => (Lane::part(crate::http::METHOD, host), host),
        None if is_method => (Lane::of(name), name),
        None => {
            let detail = format!("there is no gate and no method {name:?}; that of a host is named http:HOST");
            return Err(Problem::new(StatusCode::NOT_FOUND, "not_found", detail));
        }
    };
    app.store.make_gate(lane, name, app.clock.now()).await?;
    Ok(lane)
}
