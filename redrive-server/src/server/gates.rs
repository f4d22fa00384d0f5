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
use super::input::{Json, Names, Said, noted};
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
/// Gates that have opened or were held. One that nobody has needed for an hour is forgotten.
#[utoipa::path(get, path = "/gates", tag = "gates", responses((status = 200, body = Gates)))]
async fn list(State(app): State<App>, Viewer(_): Viewer) -> Answer<Shows<Gates>> {
    Ok(Shows(Gates { gates: all(&app).await? }))
}

/// All gates as they are now.
pub(crate) async fn all(app: &App) -> redrive::Result<Vec<Gate>> {
    let (gates, now) = (app.store.gates().await?, app.clock.now());
    Ok(gates.iter().map(|gate| gate.at(now)).collect())
}

/// How a gate is held.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Held {
    /// `open`: nothing goes through; `closed`: everything does, whatever comes of it.
    #[schema(value_type = HoldShape)]
    state: Hold,
    /// Why, for the list of gates and the audit; at most 1000 bytes.
    #[schema(max_length = 1000)]
    note: Option<String>,
}

/// Bytes of what a gate is held for. The store cuts what is longer.
pub(crate) const LONGEST_WHY: usize = 1_000;

/// Hold a gate
///
/// Open or closed, until it is released or reset. A gate is named as the list names it, by its method, or as `http:HOST:PORT`; that of sagas' requests to a host as `saga.http:HOST:PORT`.
#[utoipa::path(post, path = "/gates/{gate}/hold", tag = "gates", params(("gate" = String, Path)), request_body = Held,
    responses((status = 200, body = GateShape)))]
async fn hold(
    State(app): State<App>,
    Operator(who): Operator,
    Names([gate]): Names<1>,
    Json(held): Json<Held>,
) -> Answer<Shows<Gate>> {
    let note = noted(held.note.as_deref().unwrap_or_default(), LONGEST_WHY)?;
    let lane = find(&app, &gate, true).await?;
    Ok(Shows(act(&app, lane, GateAction::Hold(held.state), &who.name, note).await?))
}

/// Release a gate that is held
///
/// It is as it was; if that is open, it is probed at once.
#[utoipa::path(post, path = "/gates/{gate}/release", tag = "gates", params(("gate" = String, Path)), request_body = Said,
    responses((status = 200, body = GateShape)))]
async fn release(
    State(app): State<App>,
    Operator(who): Operator,
    Names([gate]): Names<1>,
    Json(said): Json<Said>,
) -> Answer<Shows<Gate>> {
    let lane = find(&app, &gate, false).await?;
    Ok(Shows(act(&app, lane, GateAction::Release, &who.name, said.note()?).await?))
}

/// Reset a gate
///
/// It is closed, and forgets what was.
#[utoipa::path(post, path = "/gates/{gate}/reset", tag = "gates", params(("gate" = String, Path)), request_body = Said,
    responses((status = 200, body = GateShape)))]
async fn reset(
    State(app): State<App>,
    Operator(who): Operator,
    Names([gate]): Names<1>,
    Json(said): Json<Said>,
) -> Answer<Shows<Gate>> {
    let lane = find(&app, &gate, false).await?;
    Ok(Shows(act(&app, lane, GateAction::Reset, &who.name, said.note()?).await?))
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
    let gates = app.store.gates().await?;
    let is_meant = |gate: &&Gate| gate.name == name || gate.lane.0.to_string() == name;
    match gates.iter().filter(is_meant).collect::<Vec<_>>()[..] {
        [] => {}
        [gate] => return Ok(gate.lane),
        [_, _, ..] => return Err(redrive::Error::invalid("gate", TWO_OF_A_NAME).into()),
    }
    let part = part_of(name)?;
    let lane = part.as_ref().map_or_else(|| Lane::of(name), |(method, part)| Lane::part(method, part));
    if gates.iter().any(|gate| gate.lane == lane) {
        return Ok(lane);
    }
    if !make {
        return Err(Problem::not_found("gate", name));
    }
    if part.is_none() && !is_method(app, name).await? {
        let detail = format!("there is no gate and no method {name:?}; that of a host is named http:HOST:PORT");
        return Err(Problem::new(StatusCode::NOT_FOUND, "not_found", detail));
    }
    app.store.make_gate(lane, part.as_ref().map_or(name, |(_, part)| part), app.clock.now()).await?;
    Ok(lane)
}

const TWO_OF_A_NAME: &str = "is the name of several: that of HTTP tasks is http:HOST:PORT, that of sagas' requests saga.http:HOST:PORT; \
    or name it by the number of its lane";

/// The method and the part of it that a name such as `http:HOST:PORT` means.
fn part_of(name: &str) -> redrive::Result<Option<(&'static str, String)>> {
    let of = |method: &'static str| Some((method, name.strip_prefix(method)?.strip_prefix(':')?));
    let Some((method, part)) = of(crate::http::METHOD).or_else(|| of(crate::saga::METHOD)) else { return Ok(None) };
    Ok(Some((method, host_and_port(part)?)))
}

/// As requests name the part that they go to. A gate of another name would be held, and hold nothing.
fn host_and_port(text: &str) -> redrive::Result<String> {
    let read = |(host, port): (&str, &str)| Some((url::Host::parse(host).ok()?, port.parse::<u16>().ok()?));
    let named = text.rsplit_once(':').and_then(read).map(|(host, port)| format!("{host}:{port}"));
    let wrong = "that of a host is named http:HOST:PORT, always with the port (443 for https, 80 for http)";
    named.ok_or_else(|| redrive::Error::invalid("gate", wrong))
}

async fn is_method(app: &App, name: &str) -> redrive::Result<bool> {
    let nodes = app.store.nodes().await?;
    Ok(nodes.iter().any(|node| !node.dead && node.registration.methods.iter().any(|method| method == name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_tasks_and_of_sagas_have_gates_of_their_own() {
        let named = |name| part_of(name).unwrap().map(|(method, host)| format!("{method} {host}"));
        assert_eq!(named("http:Pay.example:443").as_deref(), Some("http pay.example:443"));
        assert_eq!(named("saga.http:pay.example:443").as_deref(), Some("saga.http pay.example:443"));
        assert_eq!((named("http.billing"), named("charge")), (None, None));
        assert!(part_of("saga.http:pay.example").is_err());
    }

    #[test]
    fn a_host_is_named_as_requests_name_it() {
        for (given, named) in
            [("example.org:443", "example.org:443"), ("Example.ORG:80", "example.org:80"), ("[::1]:8080", "[::1]:8080")]
        {
            assert_eq!(host_and_port(given).unwrap(), named);
        }
        for wrong in
            ["", "example.org", "127.0.0.1", "example.org:", ":443", "[::1]", "::1", "a/b:80", "a\0b:80", "h:70000"]
        {
            let said = host_and_port(wrong).unwrap_err().to_string();
            assert!(said.contains("http:HOST:PORT"), "{wrong}: {said}");
        }
    }
}
