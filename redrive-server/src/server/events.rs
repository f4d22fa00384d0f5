//! What happens, as it happens: server-sent events.
//!
//! A stream tells of what the node that answers does; other nodes tell of theirs. Who is too slow is told how many they have missed
//! (`missed`), and looks at the API for the rest. A comment goes out every 15 s, so that proxies keep the connection.
//!
//! *Invariants.* A stream does not outlive the right to it: whose token is revoked or expires, or whose session ends, hears nothing
//! more after [`LOOK_AGAIN`].
//!
//! *Failure.* That the token cannot be looked at just now does not end a stream: it is looked at again a little later.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::request::Parts;
use axum::response::IntoResponse;
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use futures_util::stream;
use redrive::Event;
use serde::Deserialize;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{self, Viewer};
use super::input::Asked;
use super::problem::Answer;
use super::{App, UNBUFFERED};

/// How often it is looked whether the listener may still listen.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(events))
}

/// Which events.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// Some of `enqueued`, `claimed`, `started`, `done`, `failed`, `postponed`, `cancelled`, `dead`, `rescued`, `lost`, `fenced`, `open`, `half_open`, `closed`, `probe`, `saga`, with
    /// commas between them. Default: all.
    what: Option<String>,
    /// Tasks of this method only.
    method: Option<String>,
}

impl Wanted {
    fn takes(&self, event: &Event) -> bool {
        let (what, method) = match event {
            Event::Task { what, method, .. } => (what, Some(method)),
            Event::Node { what, .. } => (what, None),
            Event::Gate { to, .. } => (to, None),
            Event::Probe { .. } => (&"probe", None),
            Event::Saga { .. } => (&"saga", None),
            _ => return false,
        };
        self.what.as_ref().is_none_or(|wanted| wanted.split(',').any(|w| w.trim() == *what))
            && self.method.as_ref().is_none_or(|wanted| method == Some(wanted))
    }
}

/// Follow what happens
///
/// Server-sent events of the node that answers, from now on.
#[utoipa::path(get, path = "/events", tag = "cluster", params(Wanted),
    responses((status = 200, body = String, content_type = "text/event-stream", description = "One event after the other.")))]
async fn events(
    State(app): State<App>,
    Viewer(_): Viewer,
    Asked(wanted): Asked<Wanted>,
    parts: Parts,
) -> Answer<impl IntoResponse> {
    let receiver = app.engine()?.events();
    let until = Box::pin(ended(app, parts));
    let all = stream::unfold((receiver, wanted, until), async |(mut receiver, wanted, mut until)| {
        let event = tokio::select! {
            event = next(&mut receiver, &wanted) => event?,
            () = &mut until => return None,
        };
        Some((Ok::<_, Infallible>(event), (receiver, wanted, until)))
    });
    Ok((UNBUFFERED, Sse::new(all).keep_alive(KeepAlive::new().interval(Duration::from_secs(15)))))
}

/// The server stops, or this listener may not listen any more.
#[expect(clippy::disallowed_methods, reason = "a shell around one look")]
async fn ended(app: App, asked: Parts) {
    let looks = async {
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            if matches!(auth::still_knows(&app, &asked).await, Ok(false)) {
                return;
            }
        }
    };
    tokio::select! {
        () = app.stopping.cancelled() => {}
        () = looks => {}
    }
}

async fn next(receiver: &mut Receiver<Event>, wanted: &Wanted) -> Option<Sent> {
    loop {
        match receiver.recv().await {
            Ok(event) if wanted.takes(&event) => return Some(sent(&event)),
            Ok(_) => {}
            Err(RecvError::Lagged(n)) => return Some(Sent::default().event("missed").data(n.to_string())),
            Err(RecvError::Closed) => return None,
        }
    }
}

fn sent(event: &Event) -> Sent {
    let name = match event {
        Event::Task { what, .. } | Event::Node { what, .. } => what,
        Event::Gate { .. } => "gate",
        Event::Probe { .. } => "probe",
        Event::Saga { .. } => "saga",
        _ => "other",
    };
    Sent::default().event(name).data(serde_json::to_string(event).unwrap_or_default()) // plain values cannot fail
}
