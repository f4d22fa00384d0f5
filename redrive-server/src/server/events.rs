//! What happens, as it happens: server-sent events.
//!
//! A stream tells of what the node that answers does; other nodes tell of theirs. Who is too slow is told how many they have missed
//! (`missed`), and looks at the API for the rest. A comment goes out every 15 s, so that proxies keep the connection.
//!
//! *Invariants.* A stream does not outlive the right to it: whose token is revoked or expires, or whose session ends, hears nothing
//! more after [`LOOK_AGAIN`].
//!
//! A stream is a connection that stays, so there are not more than [`MOST_OF_ONE`] for one token, nor in all more than a quarter of
//! `server.max_connections`: the others are left for requests. Whoever comes above that is told to come back later (429).
//!
//! *Failure.* That the token cannot be looked at just now does not end a stream: it is looked at again a little later.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
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
use super::problem::{Answer, Problem};
use super::{App, UNBUFFERED};

/// How often it is looked whether the listener may still listen.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Streams of one token.
const MOST_OF_ONE: usize = 20;
/// Streams in all, however few connections there may be.
const FEWEST: usize = 4;

/// What can be asked for.
const WORDS: [&str; 16] = [
    "enqueued",
    "claimed",
    "started",
    "done",
    "failed",
    "postponed",
    "cancelled",
    "dead",
    "rescued",
    "lost",
    "fenced",
    "open",
    "half_open",
    "closed",
    "probe",
    "saga",
];

/// How many streams there are, by the name of the token.
#[derive(Debug, Default)]
pub(super) struct Listeners(Mutex<HashMap<String, usize>>);

/// The place of one stream; free again with this.
struct Place {
    app: App,
    name: String,
}

impl Listeners {
    /// `false`: there are too many already.
    fn enter(&self, name: &str, max_connections: usize) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_one = all.get(name).copied().unwrap_or(0);
        let fits = of_one < MOST_OF_ONE && all.values().sum::<usize>() < (max_connections / 4).max(FEWEST);
        if fits {
            all.insert(name.to_owned(), of_one + 1);
        }
        fits
    }

    fn leave(&self, name: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = all.get_mut(name) {
            *n -= 1;
        }
        all.retain(|_, n| *n > 0);
    }
}

impl Place {
    fn take(app: &App, name: String) -> Answer<Self> {
        if app.listeners.enter(&name, app.settings.server.max_connections) {
            return Ok(Self { app: app.clone(), name });
        }
        let detail = format!(
            "too many follow what happens already: up to {MOST_OF_ONE} with one token, and a quarter of server.max_connections in all"
        );
        Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", detail))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.app.listeners.leave(&self.name);
    }
}

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
    /// Who asks for what there is not would hear nothing for ever.
    fn check(&self) -> redrive::Result<()> {
        let mut asked = self.what.iter().flat_map(|what| what.split(',')).map(str::trim);
        match asked.find(|word| !WORDS.contains(word)) {
            Some(word) => Err(redrive::Error::invalid("what", format!("{word:?} is none of {}", WORDS.join(", ")))),
            None => Ok(()),
        }
    }

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
    responses((status = 200, body = String, content_type = "text/event-stream", description = "One event after the other."),
        (status = 429, body = Problem, content_type = "application/problem+json",
            description = "Too many streams with this token, or in all; or too many wrong tokens came from your address.")))]
async fn events(
    State(app): State<App>,
    Viewer(who): Viewer,
    Asked(wanted): Asked<Wanted>,
    parts: Parts,
) -> Answer<impl IntoResponse> {
    wanted.check()?;
    let receiver = app.engine()?.events();
    let place = Place::take(&app, who.name)?;
    let until = Box::pin(ended(app, parts));
    let all = stream::unfold((receiver, wanted, until, place), async |(mut receiver, wanted, mut until, place)| {
        let event = tokio::select! {
            event = next(&mut receiver, &wanted) => event?,
            () = &mut until => return None,
        };
        Some((Ok::<_, Infallible>(event), (receiver, wanted, until, place)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_connections_may_listen_and_no_token_takes_all_of_them() {
        let all = Listeners::default();
        assert!((0..MOST_OF_ONE).all(|_| all.enter("ada", 1_000)) && !all.enter("ada", 1_000));
        assert!(all.enter("bob", 100) && (0..4).all(|_| all.enter("bob", 100)), "25 of 100");
        assert!(!all.enter("bob", 100) && !all.enter("eve", 100));
        all.leave("ada");
        assert!(all.enter("eve", 100) && !all.enter("ada", 100));
        let few = Listeners::default();
        assert!((0..FEWEST).all(|_| few.enter("ada", 1)) && !few.enter("ada", 1));
        (0..FEWEST).for_each(|_| few.leave("ada"));
        assert!(few.0.lock().unwrap().is_empty());
    }
}
